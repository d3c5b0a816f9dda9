"""Every few seconds, by one process at a time: each cluster is told its projects, departments and members."""

import logging

from controlplane.engines.base import DepartmentReport, EngineRefused, EngineUnreachable, ProjectReport
from controlplane.loop.attached import attached_clusters, engine_for
from controlplane.loop.claims import claim, keep, release
from controlplane.loop.findings import note_finding
from controlplane.models import Cluster, Membership, Project

logger = logging.getLogger(__name__)

LEASE = "tenants"
LEASE_SECONDS = 60  # the first look at a cluster writes several objects for each of its projects
CHECK = "projects"  # its place among the cluster's checks
WITHOUT_IT = "Jobs of the other projects go on; those of this one may not start until it is put right."


def sync_projects_once() -> bool:
    """Tell every attached cluster its projects, unless another process is at it. What a cluster refuses stands among
    its checks, with an event; it stops neither the other clusters nor the loop."""
    token = claim(LEASE, LEASE_SECONDS)
    if token is None:
        return False
    outcomes = []
    try:
        for cluster in attached_clusters():
            outcomes.append(_sync(cluster))
            kept = keep(LEASE, token, LEASE_SECONDS)
            if kept is None:
                break  # we were slower than our lease; whoever took it goes on
            token = kept
    finally:
        release(LEASE, token, is_complete=all(outcomes))
    return True


def project_reports(cluster: Cluster) -> tuple[list[ProjectReport], list[DepartmentReport]]:
    """Return the cluster's projects with their members, and the departments above them, by name."""
    members: dict[int, list[tuple[str, str]]] = {}
    rows = Membership.objects.filter(project__cluster=cluster).order_by("user__username")
    for project_id, name, role in rows.values_list("project_id", "user__username", "role"):
        members.setdefault(project_id, []).append((name, role))
    projects = list(Project.objects.filter(cluster=cluster).select_related("department").order_by("name"))
    departments = {project.department.name: project.department for project in projects if project.department}
    return (
        [_project(project, members.get(project.pk, [])) for project in projects],
        [
            DepartmentReport(name, row.gpu_quota_milli, row.gpu_limit_milli, row.weight_milli, row.priority)
            for name, row in sorted(departments.items())
        ],
    )


def _project(project: Project, members: list[tuple[str, str]]) -> ProjectReport:
    return ProjectReport(
        name=project.name,
        quota_milli_gpus=project.gpu_quota_milli,
        limit_milli_gpus=project.gpu_limit_milli,
        weight_milli=project.weight_milli,
        priority=project.priority,
        department=project.department.name if project.department else "",
        members=tuple(members),
    )


def _sync(cluster: Cluster) -> bool:
    """Return False when the cluster did not take them all."""
    refusal = None
    try:
        engine_for(cluster).sync_projects(*project_reports(cluster))
    except EngineUnreachable:
        return False  # the loop tells that
    except EngineRefused as error:
        refusal = error
    except Exception:
        logger.exception("cluster %s was not told its projects; the next look tries again", cluster.name)
        return False
    note_finding(
        cluster,
        CHECK,
        refusal.message if refusal else "",
        without_it=WITHOUT_IT,
        begins="cluster.projects_refused",
        ends="cluster.projects_synced",
    )
    return refusal is None
