"""What a process of the loop remembers about each cluster from one cycle to the next. Nothing is lost with it: the
next cycle reads it again."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from controlplane.engines.base import DepartmentReport, NodeReport, ProjectReport
from controlplane.loop.hold_writes import HoldProgress
from controlplane.loop.observe import JobCache
from controlplane.loop.pod_diff import DiffCache, PodCache
from controlplane.loop.unsettled import UnsettledJobs
from controlplane.models import Cluster
from controlplane.scheduling.incremental import Scheduler
from jobs.telemetry.collect import UsageMemory

Numbers: TypeAlias = tuple[ProjectReport, DepartmentReport | None]
"""The quota numbers that bound a project's jobs: its report without members, and its department's report."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Quota numbers of a project that its cluster has not been sent yet, and since when the project's jobs wait for
    that."""

    numbers: Numbers
    since: datetime


@dataclass(slots=True)
class ClusterContext:
    """What the loop of this process remembers of one cluster. `housekept_at`: the last work on rows that seldom change,
    None before the first; `planned_at`: when the last plan was ready, by time.perf_counter(); `plan_seconds`: how long
    it took; `awaited`: by name, the projects whose quotas the cluster has not been sent yet; `seen_nodes`: the nodes at
    the last look at the engine alone."""

    housekept_at: datetime | None = None
    planned_at: float = 0.0
    plan_seconds: float = 0.0
    pods: PodCache = field(default_factory=PodCache)
    diffs: DiffCache = field(default_factory=DiffCache)
    unsettled: UnsettledJobs = field(default_factory=UnsettledJobs)
    jobs: JobCache = field(default_factory=JobCache)
    scheduler: Scheduler = field(default_factory=Scheduler)
    holds: HoldProgress = field(default_factory=HoldProgress)
    awaited: Mapping[str, Awaited] = field(default_factory=dict)
    usage: UsageMemory = field(default_factory=UsageMemory)
    seen_nodes: Sequence[NodeReport] | None = None


_contexts: dict[int, ClusterContext] = {}


def context_of(cluster: Cluster) -> ClusterContext:
    """Return this process's context of the cluster. Each field is used by one thread of the loop only, except
    `awaited`, which two threads replace as a whole."""
    found = _contexts.get(cluster.pk)
    return _contexts.setdefault(cluster.pk, ClusterContext()) if found is None else found


def forget_contexts(keep: Collection[int] = ()) -> None:
    """Drop the contexts of all clusters, except those whose primary keys are in `keep`."""
    for key in [key for key in list(_contexts) if key not in keep]:
        _contexts.pop(key, None)
