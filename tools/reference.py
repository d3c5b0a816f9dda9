"""`make reference`: writes the pages of docs/reference that come from the code. tests/house compares them."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from controlplane.engines.kubernetes import rights  # noqa: E402  needs the path above
from controlplane.environment import SETTINGS  # noqa: E402  the same

SETTINGS_PAGE = ROOT / "docs" / "reference" / "settings.md"
CLUSTER_ROLE = ROOT / "deploy" / "chart" / "files" / "clusterrole.yaml"
# when the chart's role has a rule, in the words of its values
CONDITIONS = {
    rights.WITH_KAI: 'eq .Values.cluster.scheduler "kai"',
    rights.WITH_MPI_OPERATOR: ".Values.cluster.settings.mpi_operator",
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
            "hint. This page is written by `make reference` from `controlplane/environment.py`.",
            "",
            "| variable | default | what it does |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def cluster_role() -> str:
    """The rules of the chart's ClusterRole: what the engine says that it needs."""
    lines = ["# Written by `make reference` from controlplane/engines/kubernetes/rights.py: edit that."]
    for rule in rights.NEEDED:
        condition = CONDITIONS.get(rule.when)
        group, verbs = rule.group or '""', ", ".join(rule.verbs)
        words = f"apiGroups: [{group}], resources: [{rule.resource}], verbs: [{verbs}]"
        lines += [f"{{{{- if {condition} }}}}"] if condition else []
        lines += [f"- {{{words}}}"]
        lines += ["{{- end }}"] if condition else []
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the pages, and the chart's role."""
    for path, text in ((SETTINGS_PAGE, settings_page()), (CLUSTER_ROLE, cluster_role())):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
