"""Data for the admin pages of clusters."""

import json
from typing import Any

from controlplane.models import Cluster
from controlplane.queries.nodes import cluster_rows
from dashboards.reads.base_page import shown_state

Row = dict[str, Any]
TONES = {"attached": "good", "checking": "accent", "refused": "bad", "unreachable": "bad"}
OUTCOMES = {"ok": "good", "warning": "warning", "failed": "bad"}


def rows(clusters: list[Cluster]) -> list[Row]:
    """Return clusters in REST form as admins see them, with the colour of the state and the number of failed checks."""
    return [_row(shown) for shown in cluster_rows(clusters, is_admin=True)]


def written(value: Any) -> str:
    """Return a setting as text for the form: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _row(shown: Row) -> Row:
    status = shown["status"]
    state = shown_state(status["state"], is_reachable=status["is_reachable"])
    checks = [
        check | {"name": check["name"].replace("_", " "), "tone": OUTCOMES[check["outcome"]]}
        for check in status["checks"]
    ]
    return shown | {
        "state": state,
        "tone": TONES[state],
        "checks": checks,
        "knobs": {name: written(value) for name, value in shown["settings"].items()},
        "odd": sum(check["outcome"] != "ok" for check in checks),
        "failed": sum(check["outcome"] == "failed" for check in checks),
    }
