"""`make reference`: write the pages of docs/reference that are generated from the code. tests/house compares
them."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402  needs the path above

from controlplane.config.environment import SETTINGS  # noqa: E402  the same
from controlplane.engines.kubernetes import rbac, tenancy  # noqa: E402  the same
from jobs.fields.declaration import Field  # noqa: E402  the same
from jobs.fields.declared import DECLARED  # noqa: E402  the same

SETTINGS_PAGE = ROOT / "docs" / "reference" / "settings.md"
JOBS_PAGE = SETTINGS_PAGE.with_name("jobs.md")
PROJECT_ROLES = (ROOT / "deploy" / "rbac.yaml", ROOT / "deploy" / "chart" / "files" / "rbac.yaml")
CLUSTER_ROLE = ROOT / "deploy" / "chart" / "files" / "clusterrole.yaml"
WEB_ROLE = CLUSTER_ROLE.with_name("clusterrole-web.yaml")
# When the chart's role contains a rule, in terms of its values.
CONDITIONS = {
    rbac.WITH_KAI: 'eq .Values.cluster.scheduler "kai"',
    rbac.WITH_MPI_OPERATOR: 'ne (toString .Values.cluster.settings.mpi_operator) "false"',
}


def settings_page() -> str:
    """Return the text of docs/reference/settings.md."""
    rows = [
        f"| `{one.name}` | {f'`{one.default}`' if one.default else 'empty'} | {one.about} |"
        for one in SETTINGS
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            "All of them come from the environment, all are optional, and an impossible one is refused at start with a",
            "hint. This page is written by `make reference` from `controlplane/config/environment.py`.",
            "",
            "| variable | default | what it does |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def jobs_page() -> str:
    """Return the text of docs/reference/jobs.md."""
    return "\n".join(
        [
            "# The fields of a job",
            "",
            "What `POST /api/v1/projects/{name}/jobs` takes, what `yard submit` and the submit form send, and what a",
            "job answers. This page is written by `make reference` from `jobs/fields/declared.py`.",
            "",
            "| field | type | default | `yard submit` | what it is |",
            "|---|---|---|---|---|",
            *map(_job_row, DECLARED),
            "",
        ]
    )


def _job_row(field: Field) -> str:
    flags = [*field.flags, *(flag for flags in field.commands.values() for flag in flags)]
    shown = dict.fromkeys(f"`{flag.spelling}`" for flag in flags if not flag.is_hidden)
    default = "by kind" if field.kind_default else f"`{json.dumps(field.omitted)}`"
    cells = (
        f"`{field.name}`",
        _type_words(field.value.schema),
        "required" if field.is_required else default,
        ", ".join(shown).replace("|", "\\|"),
        field.sentence,
    )
    return f"| {' | '.join(cells)} |"


def _type_words(schema: dict[str, Any]) -> str:
    """Return the type in a JSON schema with its limits, for example "integer, 1 to 100". Leaves out "null", which
    the default column shows."""
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    kind = next(one for one in kinds if one != "null")
    if "maximum" in schema:
        return f"{kind}, {schema['minimum']} to {schema['maximum']}"
    limits = (("maxLength", "bytes"), ("maxItems", "entries"), ("maxProperties", "names"))
    return kind + "".join(f", at most {schema[key]} {noun}" for key, noun in limits if key in schema)


def cluster_role(rules: Iterable[rbac.Rule] = rbac.NEEDED) -> str:
    """Return, as YAML for the chart, the rules of a ClusterRole; by default those that the engine needs."""
    lines = ["# Written by `make reference` from controlplane/engines/kubernetes/rbac.py: edit that."]
    for rule in rules:
        condition = CONDITIONS.get(rule.when)
        group, verbs = rule.group or '""', ", ".join(rule.verbs)
        named = f"resourceNames: [{', '.join(rule.names)}], " if rule.names else ""
        words = f"apiGroups: [{group}], resources: [{rule.resource}], {named}verbs: [{verbs}]"
        lines += [f"{{{{- if {condition} }}}}"] if condition else []
        lines += [f"- {{{words}}}"]
        lines += ["{{- end }}"] if condition else []
    return "\n".join([*lines, ""])


def project_roles() -> str:
    """Return the ClusterRoles, as YAML, of kubectl users in their projects: for the chart, and for clusters attached
    without it."""
    head = "# Written by `make reference` from controlplane/engines/kubernetes/tenancy.py: edit that.\n"
    return head + yaml.safe_dump_all(tenancy.cluster_roles(), sort_keys=False)


def main() -> None:
    """Write all pages and roles."""
    roles = [(path, project_roles()) for path in PROJECT_ROLES]
    web = [(WEB_ROLE, cluster_role(rbac.OF_WEB))]
    pages = [(SETTINGS_PAGE, settings_page()), (JOBS_PAGE, jobs_page())]
    for path, text in (*pages, (CLUSTER_ROLE, cluster_role()), *roles, *web):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
