"""Projects with their current allocation, in REST form plus colour and bar. A constant number of queries."""

from collections.abc import Sequence
from typing import Any

from controlplane.access import Actor
from controlplane.models import Membership, NodePool, Project
from controlplane.queries.projects import project_rows as shaped
from dashboards.formats import rounded

Row = dict[str, Any]
ROLES = {"owner": 0, "member": 1, "viewer": 2}


def project_row(project: Project) -> Row:
    """Return one project in REST form with its allocation bar (see `bar`); members sorted by role, highest
    first."""
    row = shaped([project])[0] | {"palette_index": project.palette_index, "is_visible": True}
    row["members"] = sorted(row["members"], key=lambda member: (ROLES[member["role"]], member["user"]))
    return with_bars([row])[0]


def roles_of(actor: Actor) -> dict[str, str]:
    """Return the actor's role in each of the actor's projects, by project name."""
    return dict(Membership.objects.filter(user=actor.user).values_list("project__name", "role"))


def palette() -> dict[str, int]:
    """Return the palette index of every project by name, for the browser."""
    return dict(Project.objects.values_list("name", "palette_index"))


def pool_names() -> list[str]:
    """Return the node pool names of all clusters."""
    return sorted(set(NodePool.objects.values_list("name", flat=True)))


def with_bars(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, each with an allocation bar (see `bar`) whose parts are in percent of the largest project's
    bar."""
    full = max((_widest(row) for row in rows), default=0) or 1
    return [row | {"bar": bar(row["gpu_quota"], row["status"], full)} for row in rows]


def bar(quota: float, status: Row, full: float) -> dict[str, Any]:
    """Return the parts of one allocation bar, in percent of `full` GPUs: "all" that is allocated, the "quota", what is
    "borrowed" beyond it, and the "fair" share; "fair_differs": the fair share is neither 0 nor the quota. `quota`: in
    GPUs; `status`: the project's, in REST form."""
    held, fair = status["allocated_gpus"], status["fair_share_gpus"]
    return {
        "all": _percent(held, full),
        "quota": _percent(quota, full),
        "borrowed": _percent(max(0, held - quota), full),
        "fair": _percent(fair, full),
        "fair_differs": fair not in (0, quota),
    }


def _widest(row: Row) -> float:
    return float(max(row["gpu_quota"], row["status"]["allocated_gpus"], row["status"]["fair_share_gpus"]))


def _percent(part: float, full: float) -> float | int:
    return rounded(100 * part / full, 2)
