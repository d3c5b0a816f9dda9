"""The present values of what is measured. Charts end with them: while a cluster is at rest, samples are a minute
apart, and each is written with the next one (decision 101)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Avg, Q, Sum
from django.db.models.functions import Now

from controlplane.models import Device, Lease
from controlplane.telemetry.metrics import GPU_MEMORY, GPU_UTILIZATION

# While nothing is unfinished, a cycle completes only every 5 s.
LOOP_SECONDS = 10
# A cluster at rest is collected from once a minute, up to a pass of the loop (15 s) later.
COLLECT_SECONDS = 80
# The age of the newest stored sample while measuring works: two collections and a step.
SAMPLE_SECONDS = 170


@dataclass(frozen=True, slots=True)
class Use:
    """The present values of one cluster; None where nothing is measured."""

    utilization: float | None
    memory_mib: int | None

    def value(self, metric: str) -> float | None:
        """Return the value of a metric of clusters; None if there is none."""
        return {GPU_UTILIZATION: self.utilization, GPU_MEMORY: self.memory_mib}.get(metric)


def current_use() -> Mapping[str, Use]:
    """Return the present use of each cluster that answers, by name; {} if the loop or the collection of measurements
    has stopped, since then nothing is known of the present."""
    if not _is_collecting():
        return {}
    devices = Device.objects.filter(node__cluster__detached_at=None, node__cluster__is_reachable=True)
    sums = devices.values_list("node__cluster__name").annotate(Avg("utilization"), Sum("memory_used_mib"))
    return {name: Use(utilization, memory) for name, utilization, memory in sums.order_by()}


def _is_collecting() -> bool:
    limits = {"loop": LOOP_SECONDS, "collect": COLLECT_SECONDS}
    recent = Q()
    for name, seconds in limits.items():
        recent |= Q(name=name, completed_at__gte=Now() - timedelta(seconds=seconds))
    return Lease.objects.filter(recent).count() == len(limits)
