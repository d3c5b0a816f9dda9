"""`yard` starts fast because it imports little: what is loaded is checked here, how long it takes in bench/cli.py."""

import re
import subprocess
import sys

import pytest

from controlplane.cli import registry
from controlplane.cli.__main__ import build_parser
from controlplane.cli.version import VERSION
from tests.cli.conftest import CHECKOUT, START, job
from tests.cli.scripted import page
from tests.waiting import patience

LIST_MODULES = (
    f"import sys; sys.path.insert(0, {str(CHECKOUT)!r}); "
    "from controlplane.cli.__main__ import main; code = main(); "
    "print('\\n'.join(sorted(sys.modules)), file=sys.stderr); sys.exit(code)"
)
HEAVY = {
    "django",
    "rich",
    "yaml",
    "requests",
    "httpx",
    "click",
    "asyncio",
    "kubernetes",
    "torch",
    "numpy",
    "dataclasses",
}


def modules_of(*argv: str) -> set[str]:
    command = [sys.executable, "-I", "-S", "-c", LIST_MODULES, *argv]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True)
    return set(ran.stderr.split())


def test_version_loads_neither_network_nor_anything_installed(settings):
    loaded = modules_of("version")
    assert not loaded & (
        HEAVY | {"ssl", "socket", "http", "json", "email", "urllib", "difflib", "shutil", "lzma"}
    )
    commands = {name for name in loaded if name.startswith("controlplane.cli.commands.")}
    assert commands == {"controlplane.cli.commands.about"}


def test_a_list_loads_the_standard_library_alone(server, settings):
    server.on("GET", "projects/team-a/jobs", page(job()))
    loaded = modules_of("list", "jobs")
    assert "controlplane.cli.commands.jobs" in loaded
    assert not loaded & HEAVY
    assert not any("site-packages" in name for name in loaded)
    assert {name.split(".")[0] for name in loaded} <= {*sys.stdlib_module_names, "controlplane", "__main__"}


def test_the_fields_of_jobs_load_without_django(settings):
    loaded = modules_of("submit", "-h")
    assert "jobs.fields.declared" in loaded
    assert not loaded & (HEAVY | {"fractions", "jobs.kinds", "controlplane.settings"})


def test_every_command_of_the_registry_is_there_and_has_help(yard):
    for path, command in registry.COMMANDS.items():
        ran = yard("help", *path.split())
        assert ran.code == 0
        assert ran.out.startswith("examples:\n  "), path
        assert command.summary in ran.out
        asked = yard(*path.split(), "-h")
        assert (asked.code, asked.out) == (0, ran.out)


def test_help_without_a_command_shows_them_all(yard):
    for argv in ([], ["help"], ["--help"], ["-h"]):
        ran = yard(*argv)
        assert ran.code == 0
        assert all(path in ran.out for path in registry.COMMANDS)


def test_help_has_a_topic_for_exit_codes_and_none_for_nonsense(yard):
    assert "  7  timed out" in yard("help", "exit-codes").out
    ran = yard("help", "sumbit")
    assert (ran.code, "did you mean: yard help submit" in ran.err) == (2, True)


@pytest.mark.parametrize("argv", [["version"], ["--version"]])
def test_version(yard, argv):
    assert yard(*argv).out == f"yard {VERSION}\n"


def test_a_closed_pipe_is_no_traceback(server, settings):
    server.on("GET", "projects/team-a/jobs", page(*(job(f"job-{number}") for number in range(3000))))
    command = [sys.executable, "-I", "-c", START, "list", "jobs", "--limit", "3000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(patience(30)) == 141


GROUP_WORDS = sorted({path.split()[0] for path in registry.COMMANDS if " " in path})


@pytest.mark.parametrize("group", GROUP_WORDS)
def test_help_of_a_group_lists_its_commands_with_examples(yard, group):
    ran = yard("help", group)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"examples:\n  yard {group} ")
    commands = [command for path, command in registry.COMMANDS.items() if path.split()[0] == group]
    for command in commands:
        assert re.search(rf"^  {command.path} +{re.escape(command.summary)}$", ran.out, re.MULTILINE)
        assert f"\n  {build_parser(command).examples[0]}\n" in ran.out
    assert ran.out.endswith(f"\nMore: yard help {commands[0].path}\n")


@pytest.mark.parametrize("group", GROUP_WORDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_a_group_with_the_help_option_prints_the_groups_help(server, yard, group, flag):
    text = yard("help", group).out
    for argv in ([group, flag], [flag, group], [group, "-p", "team-b", flag], ["-p", "team-b", group, flag]):
        ran = yard(*argv)
        assert (ran.code, ran.out, ran.err) == (0, text, "")
    assert server.asked == []


def test_a_group_without_a_command_prints_the_list_to_standard_error(server, yard):
    text = yard("help", "dataset").out
    ran = yard("dataset")
    assert (ran.code, ran.out, ran.err) == (2, "", f"yard: dataset needs a command\n\n{text}")
    assert server.asked == []


def test_help_of_a_noun_has_the_verbs_that_precede_it(yard):
    text = yard("help", "node").out
    for path in ("node cordon", "list nodes", "describe node", "top nodes"):
        assert f"\n  {path} " in text
    assert "node-pool" not in text
    assert yard("nodes", "--help").out == text
    assert "\n  list node-pools " in yard("node-pool", "-h").out
    assert "\n  config project " not in yard("project", "-h").out


def test_a_noun_without_commands_of_its_own_has_help_too(yard):
    for word in ("job", "jobs"):
        ran = yard(word, "--help")
        assert ran.code == 0
        assert "\n  list jobs " in ran.out
    assert yard("job").code == 2


def test_help_of_a_command_goes_before_that_of_a_group(yard):
    assert yard("lineage", "-h").out == yard("help", "lineage").out
    assert "usage: yard lineage" in yard("help", "lineage").out
