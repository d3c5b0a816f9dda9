"""`make reference`: writes the pages of docs/reference that come from the code. tests/house compares them."""

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402  needs the path above

from controlplane.config.environment import SETTINGS  # noqa: E402  the same
from controlplane.engines.kubernetes import rbac, tenancy  # noqa: E402  the same

SETTINGS_PAGE = ROOT / "docs" / "reference" / "settings.md"
PROJECT_ROLES = (ROOT / "deploy" / "rbac.yaml", ROOT / "deploy" / "chart" / "files" / "rbac.yaml")
CLUSTER_ROLE = ROOT / "deploy" / "chart" / "files" / "clusterrole.yaml"
WEB_ROLE = CLUSTER_ROLE.with_name("clusterrole-web.yaml")
# when the chart's role has a rule, in the words of its values
CONDITIONS = {
    rbac.WITH_KAI: 'eq .Values.cluster.scheduler "kai"',
    rbac.WITH_MPI_OPERATOR: 'ne (toString .Values.cluster.settings.mpi_operator) "false"',
}


def settings_page() -> str:
    """The text of docs/reference/settings.md."""
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


def cluster_role(rules: Iterable[rbac.Rule] = rbac.NEEDED) -> str:
    """The rules of one of the chart's ClusterRoles: what the engine says that it needs."""
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
    """What users of kubectl may do in their projects: for the chart, and for clusters that are attached without it."""
    head = "# Written by `make reference` from controlplane/engines/kubernetes/tenancy.py: edit that.\n"
    return head + yaml.safe_dump_all(tenancy.cluster_roles(), sort_keys=False)


def main() -> None:
    """Write the pages, and the roles."""
    roles = [(path, project_roles()) for path in PROJECT_ROLES]
    web = [(WEB_ROLE, cluster_role(rbac.OF_WEB))]
    for path, text in ((SETTINGS_PAGE, settings_page()), (CLUSTER_ROLE, cluster_role()), *roles, *web):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
