"""What a process of the loop keeps about each cluster from one pass to the next. Losing it costs only time."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from controlplane.engines.base import DepartmentReport, ProjectReport
from controlplane.loop.pod_diff import DiffCache
from controlplane.models import Cluster
from controlplane.telemetry.collect import UsageMemory

Numbers: TypeAlias = tuple[ProjectReport, DepartmentReport | None]
"""What bounds a project's jobs: it without its members, and its department."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Numbers that a cluster lacks, and since when its project waits for them."""

    numbers: Numbers
    since: datetime


@dataclass(slots=True)
class ClusterContext:
    """`planned_at`, `plan_seconds`: when the last plan was ready, and how long it took (time.perf_counter)."""

    housekept_at: datetime | None = None
    planned_at: float = 0.0
    plan_seconds: float = 0.0
    diffs: DiffCache = field(default_factory=DiffCache)
    awaited: Mapping[str, Awaited] = field(default_factory=dict)
    usage: UsageMemory = field(default_factory=UsageMemory)


_contexts: dict[int, ClusterContext] = {}


def context_of(cluster: Cluster) -> ClusterContext:
    """Return the cluster's context in this process. Each of its fields belongs to one thread of the loop."""
    return _contexts.setdefault(cluster.pk, ClusterContext())


def forget_contexts(keep: Collection[int] = ()) -> None:
    """Forget all clusters except those with these primary keys."""
    for key in [key for key in list(_contexts) if key not in keep]:
        _contexts.pop(key, None)
