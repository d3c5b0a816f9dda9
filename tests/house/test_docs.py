"""The documentation says what is there: settings, commands, links, pictures."""

import re
import subprocess
from pathlib import Path

import pytest

from controlplane.checks import CLIENT_VARIABLES
from controlplane.config.environment import SETTINGS
from controlplane.engines.kubernetes import rbac
from tests.house.sources import ROOT, python_files
from tools import reference

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MAKE_COMMAND = re.compile(r"`make ([a-z][a-z-]*)|^\s*make ([a-z][a-z-]*)", re.MULTILINE)
VARIABLE = re.compile(r"\b(?:TRAINYARD_[A-Z_]+|DATABASE_URL)\b")
# variables that pods see or that one process of ours hands to another; docs/reference has them in their places
NOT_SETTINGS = ("engines", "kinds", "fields", "cli", "supervisor", "gateway")


def tracked(pattern: str) -> list[Path]:
    """The files that git knows and those that it would take, by a pathspec."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", pattern]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).exists()]


def test_the_settings_page_is_what_the_code_says() -> None:
    assert reference.SETTINGS_PAGE.read_text() == reference.settings_page(), "run `make reference`"


def test_the_page_of_jobs_fields_is_what_the_code_says() -> None:
    assert reference.JOBS_PAGE.read_text() == reference.jobs_page(), "run `make reference`"


def test_the_charts_role_is_what_the_engine_needs() -> None:
    assert reference.CLUSTER_ROLE.read_text() == reference.cluster_role(), "run `make reference`"
    assert reference.WEB_ROLE.read_text() == reference.cluster_role(rbac.OF_WEB), "run `make reference`"


def test_the_roles_of_projects_are_what_the_engine_refers_to() -> None:
    for path in reference.PROJECT_ROLES:
        assert path.read_text() == reference.project_roles(), "run `make reference`"


def test_every_variable_that_the_code_reads_is_a_declared_setting() -> None:
    declared = {setting.name for setting in SETTINGS} | CLIENT_VARIABLES
    sources = list(python_files(("controlplane", "jobs", "dashboards", "datasets")))
    read = {
        (name, path.relative_to(ROOT).as_posix())
        for path in sources
        if not set(NOT_SETTINGS) & set(path.parts)
        for name in VARIABLE.findall(path.read_text(encoding="utf-8"))
        if not name.endswith("_")
    }
    assert not [where for where in sorted(read) if where[0] not in declared]


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_our_own_files_resolve(page: Path) -> None:
    targets = [target.split("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8"))]
    own = [
        target for target in targets if target and "://" not in target and not target.startswith("mailto:")
    ]
    broken = [target for target in own if not (page.parent / target).exists()]
    assert not broken, f"{page.relative_to(ROOT)} links to {', '.join(broken)}"


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_make_commands_in_the_text_exist(page: Path) -> None:
    rules = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {first or second for first, second in MAKE_COMMAND.findall(page.read_text(encoding="utf-8"))}
    assert named <= rules, f"{page.relative_to(ROOT)} names make {', '.join(sorted(named - rules))}"


def test_every_decision_is_in_the_index() -> None:
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    records = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert records
    assert not [name for name in records if name not in index]
