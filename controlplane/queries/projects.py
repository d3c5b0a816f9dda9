"""Projects with members and status in REST form. Four queries for any number of projects."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from controlplane.app_holdings import project_statuses, shown_kinds
from controlplane.clusters.settings import NAMESPACE_PREFIX
from controlplane.models import Department, Membership, Project
from controlplane.models.projects import Share
from controlplane.notation import decimal


def project_rows(projects: Sequence[Project]) -> list[dict[str, Any]]:
    """Return projects as REST objects, with members and status; the number of queries does not depend on their
    number. Load `cluster` and `department` with them (select_related)."""
    ids = [project.pk for project in projects]
    members, standings = _members(ids), project_statuses(ids)
    return [_shape(project, members[project.pk], standings.get(project.pk, {})) for project in projects]


def project_detail(project: Project) -> dict[str, Any]:
    """Return one project as a REST object, with members and status."""
    return project_rows([project])[0]


def namespace_of(project: Project) -> str:
    """Return the name that the project's namespace has, or would have on a cluster with namespaces."""
    return namespace_prefix(project.cluster.settings) + project.name


def namespace_prefix(settings: Mapping[str, Any]) -> str:
    """Return the prefix of namespaces in a cluster with these settings, NAMESPACE_PREFIX by default."""
    return str(settings.get("namespace_prefix", NAMESPACE_PREFIX))


def department_rows(departments: Sequence[Department]) -> list[dict[str, Any]]:
    """Return departments as REST objects with the names of their projects; one query."""
    names: dict[int, list[str]] = defaultdict(list)
    below = Project.objects.filter(department__in=[department.pk for department in departments])
    for department_id, name in below.order_by("name").values_list("department_id", "name"):
        names[department_id].append(name)
    return [
        {"name": department.name, **_share(department), "created_at": department.created_at}
        | {"projects": names[department.pk]}
        for department in departments
    ]


def _share(share: Share) -> dict[str, Any]:
    return {
        "gpu_quota": decimal(share.gpu_quota_milli),
        "over_quota_weight": _decimal_or_none(share.over_quota_weight_milli),
        "gpu_limit": _decimal_or_none(share.gpu_limit_milli),
        "priority": share.priority,
    }


def _shape(project: Project, members: list[dict[str, Any]], standing: Mapping[str, int]) -> dict[str, Any]:
    allocated, quota = standing.get("allocated", 0), project.gpu_quota_milli
    return {
        "name": project.name,
        "description": project.description,
        **_share(project),
        "department": project.department.name if project.department else None,
        "cluster": project.cluster.name,
        "node_pools": {kind: [] for kind in shown_kinds()} | project.node_pools,
        "interactive_max_seconds": project.interactive_max_seconds,
        "interactive_idle_seconds": project.interactive_idle_seconds,
        "created_at": project.created_at,
        "members": members,
        "status": {
            "allocated_gpus": decimal(allocated),
            "in_quota_gpus": decimal(min(allocated, quota)),
            "over_quota_gpus": decimal(max(0, allocated - quota)),
            "fair_share_gpus": decimal(project.fair_share_milli),
            "recent_usage": project.recent_usage,
            "requested_gpus": decimal(allocated + standing.get("waiting", 0)),
            "running_jobs": standing.get("running", 0),
            "queued_jobs": standing.get("queued", 0),
            "namespace": namespace_of(project),
        },
    }


def _members(project_ids: Iterable[int]) -> dict[int, list[dict[str, Any]]]:
    rows: dict[int, list[dict[str, Any]]] = defaultdict(list)
    found = Membership.objects.filter(project_id__in=list(project_ids)).order_by("user__username")
    for project_id, user, role in found.values_list("project_id", "user__username", "role"):
        rows[project_id].append({"user": user, "role": role})
    return rows


def _decimal_or_none(milli: int | None) -> int | float | None:
    return None if milli is None else decimal(milli)
