"""Every few seconds, send each cluster its projects, departments and members; in one process at a time.

A cluster's own scheduler places jobs by the quotas that it has, and never moves a job that it placed by an old one.
So cycles hold back the jobs of projects whose quotas were not sent yet, and request a sync. Each process compares
with what it sent itself: to repeat another process's sync costs little.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from weakref import WeakKeyDictionary

from controlplane.engines.base import (
    DepartmentReport,
    Engine,
    EngineRefused,
    EngineUnreachable,
    ProjectReport,
)
from controlplane.engines.kinds import engine_kind
from controlplane.loop.claims import claim, keep, release
from controlplane.loop.cluster_context import Awaited, Numbers, context_of
from controlplane.loop.cluster_warnings import set_warning
from controlplane.loop.engine_pool import attached_clusters, engine_for
from controlplane.models import Cluster, Membership, Project

logger = logging.getLogger(__name__)

LEASE = "tenants"
# Long, because the first sync of a cluster writes several objects for each of its projects.
LEASE_SECONDS = 60
# The category of this warning among the cluster's checks.
CHECK = "projects"
WITHOUT_IT = "Jobs of the other projects go on; those of this one may not start until this is corrected."
# The longest time that jobs are held back, because a cluster that refuses its projects for any reason must not
# stop all work.
HELD_SECONDS = 30


# Set when a cluster lacks the latest numbers, so that the loop sends them at once.
sync_requested = threading.Event()
# Keyed by engine, because a newly opened engine has been sent nothing.
_sent: WeakKeyDictionary[Engine, Mapping[str, Numbers]] = WeakKeyDictionary()


def sync_projects_once(on_synced: Callable[[], None] = lambda: None) -> bool:
    """Send every attached cluster its projects, if its kind keeps any. Return False, with nothing sent, if another
    process holds the lease.

    A refusal becomes a warning on the cluster, with an event, and does not affect other clusters. Clusters with
    waiting jobs come first; `on_synced` is called after each of these, unless it has to be sent again.
    """
    clusters = [one for one in attached_clusters() if engine_kind(one.engine).keeps_projects]
    if not clusters:
        return True
    token = claim(LEASE, LEASE_SECONDS)
    if token is None:
        return False
    outcomes = []
    try:
        for cluster in sorted(clusters, key=lambda cluster: not context_of(cluster).awaited):
            outcomes.append(_sync(cluster, on_synced))
            kept = keep(LEASE, token, LEASE_SECONDS)
            if kept is None:
                # The sync took longer than the lease lasts; the new holder of the lease continues.
                break
            token = kept
    finally:
        release(LEASE, token, is_complete=all(outcomes))
    return True


def unsynced_projects(cluster: Cluster, engine: Engine, now: datetime) -> frozenset[str]:
    """Return the names of the projects whose present quotas this process has not sent to the cluster, and request a
    sync. Quotas that were refused permanently count as sent. No project is returned for longer than HELD_SECONDS."""
    rows, context = _rows(cluster), context_of(cluster)
    numbers = _numbers([_project(row) for row in rows], _departments(rows))
    earlier = context.awaited
    awaited = _await(numbers, _sent.get(engine, {}), earlier, now)
    context.awaited = awaited
    if any(name not in earlier or earlier[name].numbers != one.numbers for name, one in awaited.items()):
        sync_requested.set()
    return frozenset(name for name, one in awaited.items() if _is_held(one, now))


def project_reports(cluster: Cluster) -> tuple[list[ProjectReport], list[DepartmentReport]]:
    """Return the cluster's projects with their members, and its departments, each by name."""
    members: dict[int, list[tuple[str, str]]] = {}
    memberships = Membership.objects.filter(project__cluster=cluster).order_by("user__username")
    for project_id, name, role in memberships.values_list("project_id", "user__username", "role"):
        members.setdefault(project_id, []).append((name, role))
    rows = _rows(cluster)
    return [_project(row, members.get(row.pk, ())) for row in rows], _departments(rows)


def _await(
    numbers: Mapping[str, Numbers], sent: Mapping[str, Numbers], earlier: Mapping[str, Awaited], now: datetime
) -> dict[str, Awaited]:
    """Return the quotas `numbers` (by project) that differ from those `sent`, with the time since when. A project
    whose quotas change again keeps its time in `earlier`."""
    return {
        name: Awaited(found, earlier[name].since if name in earlier else now)
        for name, found in numbers.items()
        if sent.get(name) != found
    }


def _is_held(one: Awaited, now: datetime) -> bool:
    # Negative if the clock was set back, which must not hold jobs back for as long again.
    return 0 <= (now - one.since).total_seconds() < HELD_SECONDS


def _numbers(
    projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport]
) -> dict[str, Numbers]:
    """Return, by project, the quota numbers by which the cluster's scheduler places jobs."""
    above = {department.name: department for department in departments}
    return {one.name: (replace(one, members=()), above.get(one.department)) for one in projects}


def _rows(cluster: Cluster) -> list[Project]:
    return list(Project.objects.filter(cluster=cluster).select_related("department").order_by("name"))


def _departments(rows: Sequence[Project]) -> list[DepartmentReport]:
    departments = {row.department.name: row.department for row in rows if row.department}
    return [
        DepartmentReport(name, row.gpu_quota_milli, row.gpu_limit_milli, row.weight_milli, row.priority)
        for name, row in sorted(departments.items())
    ]


def _project(project: Project, members: Sequence[tuple[str, str]] = ()) -> ProjectReport:
    return ProjectReport(
        name=project.name,
        quota_milli_gpus=project.gpu_quota_milli,
        limit_milli_gpus=project.gpu_limit_milli,
        weight_milli=project.weight_milli,
        priority=project.priority,
        department=project.department.name if project.department else "",
        members=tuple(members),
    )


def _sync(cluster: Cluster, on_synced: Callable[[], None]) -> bool:
    """Send one cluster its projects. Return False if it did not accept all of them. Errors are logged, not raised."""
    try:
        refusal = _send(cluster)
    except EngineUnreachable:
        # Not logged here, because the loop reports an unreachable engine.
        return False
    except Exception:
        logger.exception(
            "the projects of cluster %s could not be applied; the next pass tries again", cluster.name
        )
        return False
    context = context_of(cluster)
    if _is_over(refusal) and context.awaited:
        context.awaited = {}
        on_synced()
    set_warning(
        cluster,
        CHECK,
        refusal.message if refusal else "",
        without_it=WITHOUT_IT,
        begins="cluster.projects_refused",
        ends="cluster.projects_synced",
    )
    return refusal is None


def _send(cluster: Cluster) -> EngineRefused | None:
    """Send the projects, and remember what was sent, also if a part was permanently refused. Return the refusal, None
    if there was none. Raises EngineUnreachable if the cluster does not answer."""
    engine, (projects, departments) = engine_for(cluster), project_reports(cluster)
    refusal = None
    try:
        engine.sync_projects(projects, departments)
    except EngineRefused as error:
        refusal = error
    if _is_over(refusal):
        _sent[engine] = _numbers(projects, departments)
    return refusal


def _is_over(refusal: EngineRefused | None) -> bool:
    """Return whether nothing has to be sent again: there was no refusal, or it was permanent."""
    return refusal is None or not refusal.is_passing
