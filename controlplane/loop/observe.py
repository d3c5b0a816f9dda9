"""OBSERVE: read rows into a ClusterView, with a fixed number of queries for any number of jobs and nodes."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import is_, itemgetter
from typing import Any, TypeAlias

from django.conf import settings
from django.db.models import QuerySet

from controlplane.engines.base import UNSCHEDULABLE
from controlplane.loop.job_views import JobViews
from controlplane.loop.node_views import NodeCache
from controlplane.loop.placements import PlacementCache, Placements
from controlplane.models import Cluster, Project
from controlplane.models.prepared import Rows, prepared
from controlplane.scheduling.view import (
    ClusterView,
    DepartmentView,
    JobView,
    PodPlacement,
    ProjectView,
)
from controlplane.telemetry.usage import UsageCache, half_life_of
from datasets.queries.job_data import NO_DATA, DataView, JobData, observe_data
from datasets.queries.volume_waits import volume_waits
from jobs import lifecycle
from jobs.models import Job, Pod
from jobs.queries import plain_rows
from jobs.row_cache import RowCache, updated_in_order
from jobs.run_times import RunTimeCache

# How long a job prefers other nodes after the cluster refused its pod on one. The cause may be in no view, such
# as a volume in another zone or a port that is in use.
AVOID_SECONDS = 60

_JOB_COLUMNS = (
    "id", "name", "project__name", "submit_rank", "kind", "state", "priority", "is_preemptible", "milli_gpus",
    "gpu_memory_mib", "pods_wanted", "spec", "not_before", "details", "started_at", "progress", "reason", "message",
    "queue_position", "next_state", "user_id", "attempt", "created_at", "queued_at",
)  # fmt: skip
# The columns of a job that has just been submitted.
_AS_SUBMITTED: Mapping[str, Any] = {
    "state": lifecycle.QUEUED,
    "next_state": "",
    "not_before": None,
    "started_at": None,
    "attempt": 0,
    "details": {},
    "progress": {},
}

_Seen: TypeAlias = tuple[
    int | None, tuple[PodPlacement, ...], tuple[str, ...], tuple[tuple[str, str], ...], JobData
]
"""A job's data from other tables: its learned run time, the placements of its pods, the nodes on which the
cluster refused them, the volume that it waits for, and the locations of its data."""


# Most jobs share this one, so that the first cycle makes no tuples for each of them.
_NO_WAITS: tuple[tuple[str, ...], tuple[tuple[str, str], ...], JobData] = ((), (), NO_DATA)


@dataclass(frozen=True, slots=True)
class _Waits:
    """What queued jobs wait for, by job id. `refused`: nodes that refused their pods; `volumes`: details of the
    volume; `data`: where their datasets are."""

    refused: Mapping[str, Iterable[str]]
    volumes: Mapping[str, Mapping[str, str]]
    data: DataView

    def of(self, job: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], JobData]:
        if not (job in self.refused or job in self.volumes or job in self.data.jobs):
            return _NO_WAITS
        volume = self.volumes.get(job, {})
        return tuple(sorted(self.refused.get(job, ()))), tuple(volume.items()), self.data.of(job)

    def differing(self, before: "_Waits") -> set[str]:
        """Return the ids of the jobs for which these waits and `before` differ."""
        jobs = {job for one in (self, before) for job in (*one.refused, *one.volumes, *one.data.jobs)}
        return {job for job in jobs if self.of(job) != before.of(job)}


@dataclass(frozen=True, slots=True)
class HoldStatus:
    """Why a queued job waits, and its position in the queue (None: not known yet), as stored in its row."""

    reason: str
    message: str
    details: Mapping[str, Any]
    queue_position: int | None


@dataclass(frozen=True, slots=True)
class Observation:
    """A view of the cluster, and what the last cycle stored in the rows, so that only changes are written.

    `shares`: (fair share in milli-GPUs, recent usage) by project. `holds`: by queued job. `has_past_use`: past usage
    counts for fair shares on this cluster.
    """

    view: ClusterView
    shares: Mapping[str, tuple[int, float | None]]
    holds: Mapping[str, HoldStatus]
    has_past_use: bool = False


def observe(
    cluster: Cluster,
    now: datetime,
    nodes_with_orphans: frozenset[str] = frozenset(),
    kept: "JobCache | None" = None,
) -> Observation:
    """Read a cluster's rows into a view. Rows may change between the queries, so decisions are recorded under guards.

    `nodes_with_orphans`: nodes that get no new pods (see reconcile). `kept`: what one thread remembers of its
    observations of this cluster; None reads everything anew.
    """
    kept = JobCache() if kept is None else kept
    placements = kept.read_placements(cluster)
    kept.read_rows(cluster, now)
    waits = _waits(cluster, now, kept.rows)
    kept.note(placements, waits)
    jobs = kept.views
    held = _held_by_others(placements, kept)
    projects = _projects(cluster.pk)
    nodes = kept.nodes.read(cluster, held, nodes_with_orphans, waits.data.locations)
    half_life = half_life_of(cluster)
    gpus = sum(len(node.devices) for node in nodes)
    usage = kept.usage.of(now, gpus, half_life, {project.pk for project in projects})
    view = ClusterView(
        name=cluster.name,
        now=int(now.timestamp()),
        nodes=nodes,
        projects=tuple(project_view(project, usage.get(project.pk, 0.0)) for project in projects),
        departments=_department_views(projects),
        jobs=jobs,
        is_engine_reachable=cluster.is_reachable,
        min_runtime_seconds=settings.MIN_RUNTIME_SECONDS,
        placement=settings.PLACEMENT,
        queue_order=settings.QUEUE_ORDER,
        gang_ageing_seconds=settings.GANG_AGEING_SECONDS,
        requeue_rank_seconds=settings.REQUEUE_RANK_SECONDS,
    )
    return Observation(
        view,
        {project.name: (project.fair_share_milli, project.recent_usage) for project in projects},
        kept.holds,
        has_past_use=bool(half_life),
    )


@prepared
def _projects(cluster: int) -> QuerySet[Project]:
    return Project.objects.filter(cluster=cluster).select_related("department").order_by("pk")


def observe_job(job: Job) -> JobView:
    """Return the view of one queued job that has never run. It has no run time unless the job declares one; the
    caller may add a learned one."""
    [row] = plain_rows(Job.objects.filter(pk=job.pk), _JOB_COLUMNS)
    cluster = job.project.cluster
    waits = _Waits({}, volume_waits(cluster.pk), observe_data(cluster))
    return JobViews().of(row, None, (), *waits.of(row["id"]))


def observe_recorded(cluster: Cluster, now: datetime, jobs: QuerySet[Job]) -> Mapping[str, JobView]:
    """Return jobs in any state, by id, as they were when submitted; for replays of past submissions."""
    learned, views, found = RunTimeCache(), JobViews(), dict[str, JobView]()
    learned.renew(cluster, now, ())
    for row in plain_rows(jobs, _JOB_COLUMNS):
        found[row["id"]] = views.of({**row, **_AS_SUBMITTED}, learned.of(row), (), (), (), NO_DATA)
    return found


_Entry: TypeAlias = tuple[Mapping[str, Any], _Seen, JobView, HoldStatus | None]
"""A job's row and data from other tables, and what was made of them."""
_VIEW = itemgetter(2)


class JobCache:
    """The jobs of one cluster as last observed. An unchanged job stays the same object, so that the scheduler
    compares, and the loop writes, only what changed. Used by one thread."""

    def __init__(self) -> None:
        self.views: tuple[JobView, ...] = ()
        # Another object after any of the statuses changed, so that a change is found without a comparison.
        self.holds: Mapping[str, HoldStatus] = _Holds(self)
        self._rows = RowCache(_JOB_COLUMNS)
        self.usage = UsageCache()
        self._run_times = RunTimeCache()
        self._placements, self.nodes = PlacementCache(), NodeCache()
        self._known: dict[str, _Entry] = {}
        # Jobs with placements that are not among the known ones in an active state.
        self.inactive: set[str] = set()
        self._waited = _Waits({}, {}, DataView())
        # Jobs to compare: kept until `note` has returned, because an observation may fail after its rows were read.
        # None: all.
        self._changed: set[str] | None = None

    @property
    def rows(self) -> Iterator[Mapping[str, Any]]:
        """Return the rows of the unfinished jobs as last read, sorted by submit_rank."""
        return self._rows.rows

    def hold_of(self, job: str) -> HoldStatus | None:
        """Return the hold status in a job's row; None if it has none."""
        entry = self._known.get(job)
        return None if entry is None else entry[3]

    def read_placements(self, cluster: Cluster) -> Placements:
        """Return the placements of the unreleased pods, by job."""
        placements = self._placements.read(cluster)
        if self._changed is not None:
            self._changed |= self._placements.changed
        return placements

    def read_rows(self, cluster: Cluster, now: datetime) -> None:
        """Read the rows of the unfinished jobs. An unchanged row is the same object as before."""
        if self._run_times.renew(cluster, now, self._known):
            # Set before the read, which may fail.
            self._changed = None
        self._rows.read(lambda: _unfinished(cluster))
        if self._rows.changed is None:
            self._changed = None
        elif self._changed is not None:
            self._changed |= self._rows.changed

    def note(self, placements: Placements, waits: _Waits) -> None:
        """Update `views`, `holds` and `inactive` from the rows. A job whose view is unchanged keeps the same object."""
        wanted, views = self._wanted(waits), JobViews()
        if wanted is None:
            self._note_all(placements, waits, views)
        else:
            self._note_some(wanted, placements, waits, views)
        # Assigned last, so that after a failure the next read still compares with the rows that `views` was
        # built from.
        self._waited, self._changed = waits, set()

    def _note_all(self, placements: Placements, waits: _Waits, views: JobViews) -> None:
        known = self._known
        found = {row["id"]: self._compared(row, placements, waits, views) for row in self.rows}
        if len(known) != len(found) or not all(map(is_, found.values(), known.values())):
            self.views = tuple(map(_VIEW, found.values()))
            if _holds_of(found) != _holds_of(known):
                self.holds = _Holds(self)
            self._known = found
        self.inactive = {job for job in placements if not self._is_active(job)}

    def _note_some(self, wanted: Set[str], placements: Placements, waits: _Waits, views: JobViews) -> None:
        """Compare the `wanted` jobs with their rows; no other job differs."""
        known, news, left = self._known, dict[str, _Entry](), []
        for key in wanted:
            row = self._rows.row_of(key)
            if row is not None:
                entry = self._compared(row, placements, waits, views)
                if entry is not known.get(key):
                    news[key] = entry
            elif key in known:
                left.append(key)
        if news or left:
            if any(status != self.hold_of(key) for key, (*_, status) in news.items()) or any(
                map(self.hold_of, left)
            ):
                self.holds = _Holds(self)
            self._known = updated_in_order(known, news, left, _rank_of)
            self.views = tuple(map(_VIEW, self._known.values()))
        self.inactive -= wanted
        self.inactive |= {job for job in wanted if job in placements and not self._is_active(job)}

    def _is_active(self, job: str) -> bool:
        entry = self._known.get(job)
        return entry is not None and entry[2].state == "active"

    def _wanted(self, waits: _Waits) -> set[str] | None:
        """Return the ids of the jobs that may differ from the last observation; None if any may."""
        return None if self._changed is None else self._changed | waits.differing(self._waited)

    def _compared(
        self, row: Mapping[str, Any], placements: Placements, waits: _Waits, views: JobViews
    ) -> _Entry:
        """Return the entry for a row; the same object as before if neither the row nor the job's other data changed."""
        key = row["id"]
        before, seen = (
            self._known.get(key),
            (self._run_times.of(row), placements.get(key, ()), *waits.of(key)),
        )
        if before is not None and before[0] is row and before[1] == seen:
            return before
        view = views.of(row, *seen)
        if before is not None and view == before[2]:
            # Such as after a new hold reason: the scheduler finds unchanged jobs by identity.
            view = before[2]
        return row, seen, view, _hold_status(row)


class _Holds(Mapping[str, HoldStatus]):
    """The current hold statuses of a cache's queued jobs, by job id. Later observations change what it contains."""

    # No mapping of its own: with 100,000 queued jobs a copy takes longer than all other work on holds.
    def __init__(self, jobs: JobCache) -> None:
        self._jobs = jobs

    def __getitem__(self, job: str) -> HoldStatus:
        status = self._jobs.hold_of(job)
        if status is None:
            raise KeyError(job)
        return status

    def __iter__(self) -> Iterator[str]:
        return iter(_holds_of(self._jobs._known))

    def __len__(self) -> int:
        return len(_holds_of(self._jobs._known))


def _holds_of(known: Mapping[str, _Entry]) -> dict[str, HoldStatus]:
    return {key: status for key, (*_, status) in known.items() if status is not None}


def _rank_of(entry: _Entry) -> int:
    return int(entry[0]["submit_rank"])


def _held_by_others(placements: Placements, jobs: JobCache) -> Mapping[tuple[str, int], int]:
    """Return the milli-GPUs, by (node, device index), that are held by pods of jobs that are not active any more."""
    held: dict[tuple[str, int], int] = defaultdict(int)
    for job in jobs.inactive:
        for place in placements[job]:
            for index, milli in place.devices:
                held[place.node, index] += milli
    return held


def _unfinished(cluster: Cluster) -> QuerySet[Job]:
    waiting_or_active = (lifecycle.QUEUED, *lifecycle.ACTIVE_STATES)
    jobs = Job.objects.filter(project__cluster=cluster, state__in=waiting_or_active)
    return jobs.order_by("submit_rank")


def _waits(cluster: Cluster, now: datetime, rows: Iterator[Mapping[str, Any]]) -> _Waits:
    """Read what queued jobs wait for. `rows`: of the jobs; read them before, so that this covers every queued job."""
    if not any(row["state"] == lifecycle.QUEUED for row in rows):
        return _Waits({}, {}, observe_data(cluster, has_queued_jobs=False))
    return _Waits(_refused_nodes(cluster, now), volume_waits(cluster.pk), observe_data(cluster))


def _hold_status(row: Mapping[str, Any]) -> HoldStatus | None:
    if row["state"] != lifecycle.QUEUED:
        return None
    return HoldStatus(row["reason"], row["message"], row["details"], row["queue_position"])


def _refused_nodes(cluster: Cluster, now: datetime) -> Mapping[str, Iterable[str]]:
    """Return, by queued job, the nodes on which the cluster refused to place its pods within AVOID_SECONDS."""
    found: dict[str, set[str]] = defaultdict(set)
    for job, node in _refused_since(cluster.pk, now - timedelta(seconds=AVOID_SECONDS)):
        found[str(job)].add(node)
    return found


@prepared
def _refused_since(cluster: int, since: datetime) -> Rows[Pod]:
    pods = Pod.objects.filter(
        job__project__cluster=cluster,
        job__state=lifecycle.QUEUED,
        job__attempt__gt=0,
        reason=UNSCHEDULABLE,
        released_at__gt=since,
    )
    return pods.values_list("job_id", "node__name")


def project_view(project: Project, usage: float = 0.0) -> ProjectView:
    """Return the scheduler's view of a project. `usage`: its recent use as a share of the cluster, 0 to 1, in which
    older use counts less."""
    return ProjectView(
        name=project.name,
        quota_milli_gpus=project.gpu_quota_milli,
        weight=project.weight_milli,
        limit_milli_gpus=project.gpu_limit_milli,
        priority=project.priority,
        created_rank=project.pk,
        department=project.department.name if project.department else None,
        node_pools=tuple((kind, tuple(pools)) for kind, pools in sorted(project.node_pools.items())),
        usage=usage,
    )


def _department_views(projects: list[Project]) -> tuple[DepartmentView, ...]:
    found = {project.department.name: project.department for project in projects if project.department}
    return tuple(
        DepartmentView(
            name=name,
            quota_milli_gpus=department.gpu_quota_milli,
            weight=department.weight_milli,
            limit_milli_gpus=department.gpu_limit_milli,
            priority=department.priority,
            created_rank=department.pk,
        )
        for name, department in sorted(found.items())
    )
