"""What is written about `yard` is what it does."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from controlplane.cli import registry
from controlplane.cli.__main__ import build_parser
from controlplane.cli.aliases import rewrite
from controlplane.cli.commands.submit import prepare_words
from controlplane.cli.reference import document
from tests.cli.conftest import CHECKOUT

REFERENCE = CHECKOUT / "docs" / "reference" / "cli.md"
PAGES = sorted((CHECKOUT / "docs" / "howto").glob("*.md"))
FOR_USERS = ("first-job.md", "moving-from-runai-and-arena.md")
YARD_LINE = re.compile(r"^(?:\$ )?(yard .*?)(?:\s+#.*)?$", re.MULTILINE)


def test_the_reference_is_the_one_that_the_program_makes():
    assert REFERENCE.read_text() == document(), (
        "run: python -m controlplane.cli.reference > docs/reference/cli.md"
    )


def test_the_reference_does_not_depend_on_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert document() == REFERENCE.read_text()


def command_lines(text: str) -> list[str]:
    """Every `yard ...` line of the fenced blocks."""
    blocks = re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in YARD_LINE.findall(block.replace("\\\n", " "))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_a_howto_parses(page: Path):
    lines = command_lines(page.read_text())
    assert lines or page.name not in FOR_USERS, "a how-to for users shows command lines"
    for line in lines:
        words = shlex.split(line.split(" < ")[0].split(" | ")[0])[1:]
        check(line, words)


def check(line: str, words: list[str]) -> None:
    found = registry.resolve(rewrite(words))
    assert found is not None, line
    command, rest = found
    end = rest.index("--") if "--" in rest else len(rest)
    assert end == len(rest) or command.takes_command, line
    build_parser(command).parse(prepare_words(rest[:end]))


@pytest.mark.parametrize("path", sorted(registry.COMMANDS))
def test_every_example_in_help_parses(path):
    for example in build_parser(registry.COMMANDS[path]).examples:
        line = (
            example.split("| ")[-1]
            .split(" < ")[0]
            .split(" > ")[0]
            .removeprefix('eval "$(')
            .removesuffix(')"')
        )
        check(example, shlex.split(line)[1:])


def test_the_version_is_the_changelogs_and_a_version():
    from controlplane.cli.version import VERSION

    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text()).get("project", {})
    assert project.get("version", VERSION) == VERSION
