"""A field of a job is declared once: no face names it, and a simple one stands only where its value has its effect."""

import re

import pytest

from jobs.fields.declared import DECLARED, FIELDS
from tests.house.sources import PRODUCT, ROOT, python_files

DECLARATION = "jobs/fields/declared.py"
# What draws, sends and describes fields, and those that it treats in a way of its own.
FACES = {
    "jobs/api/schemas.py": {"name"},
    "controlplane/cli/commands/submit.py": {"name", "kind", "command", "volumes", "code"},
    "dashboards/command_line.py": {"name", "kind", "command", "args", "code"},
    "dashboards/pages/job_form.py": {"name", "kind", "command", "args", "volumes", "datasets", "code"},
    "dashboards/templates/dashboards/job_form.html": {"command"},
    "dashboards/templates/dashboards/parts/job_field.html": {"name"},
    "dashboards/templates/dashboards/parts/job_rows.html": set(),
}
# field -> where its value is used; a word that means something else too is left out
USES = {
    "image_pull_secrets": ("controlplane/engines/",),
    "large_shm": ("controlplane/engines/",),
    "secret_env": ("controlplane/engines/", "controlplane/loop/podspecs.py", "jobs/kinds/spec.py"),
    "ttl_seconds_after_finished": ("jobs/transitions.py",),
    "expected_runtime_seconds": ("controlplane/scheduling/", "controlplane/loop/", "jobs/"),
    # `yard describe job` shows it with the volumes.
    "snapshot_on": ("datasets/", "controlplane/cli/commands/jobs.py"),
    "compute_template": (),
}


def fields_in(text: str) -> set[str]:
    """The fields that a source names: as a string, an attribute, or an input of a form."""
    words = set(re.findall(r"""(?:["'.]|name=)([a-z_]+)\b""", text))
    return words & FIELDS.keys()


@pytest.mark.parametrize("face", FACES)
def test_no_face_names_a_field_but_those_of_its_own(face: str) -> None:
    assert fields_in((ROOT / face).read_text()) == FACES[face]


@pytest.mark.parametrize("name", USES)
def test_a_simple_field_is_named_where_it_is_declared_and_used(name: str) -> None:
    markup = [
        path for folder in ("dashboards", "datasets", "static/js") for path in (ROOT / folder).rglob("*")
    ]
    sources = [*python_files(PRODUCT), *(path for path in markup if path.suffix in (".html", ".js"))]
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if "migrations" not in path.parts and re.search(rf"\b{name}\b", path.read_text())
    }
    assert DECLARATION in naming
    assert not [path for path in sorted(naming) if not path.startswith((DECLARATION, *USES[name]))]


def test_the_rule_bites() -> None:
    assert fields_in('<input name="retries">') == {"retries"}
    assert fields_in('given["ttl_seconds_after_finished"]') == {"ttl_seconds_after_finished"}
    assert fields_in("args.large_shm") == {"large_shm"}
    assert not fields_in("retries of a request")


def test_every_field_has_a_flag_and_an_input_unless_another_brings_it() -> None:
    assert [one.name for one in DECLARED if not (one.flags or one.commands)] == ["name", "kind", "code"]
    assert [one.name for one in DECLARED if not one.input] == ["args", "compute_template"]
