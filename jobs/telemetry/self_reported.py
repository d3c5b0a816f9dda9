"""GPU usage that pods report in progress lines, for devices without measurements.

A pod's last progress line is valid for a minute. Usage of a pod without one, and of its devices, is unknown
rather than idle.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypeVar

from controlplane.engines.base import PodUsage, UsageReport
from controlplane.engines.usage import STALE_AFTER_SECONDS, device_usage, part_of
from controlplane.logstore.progress import Progress
from jobs.models import Allocation

STALE_AFTER = timedelta(seconds=STALE_AFTER_SECONDS)
T = TypeVar("T", PodUsage, UsageReport)


@dataclass(slots=True)
class SelfReported:
    """The last progress line of each pod, by pod name. Kept in memory: after a restart usage is unknown until
    the next lines."""

    self_reported: dict[str, tuple[datetime, PodUsage]] = field(default_factory=dict)

    def update(self, pod_name: str, progress: Progress | None, now: datetime) -> PodUsage | None:
        """Store the usage in a pod's new line, if any. Return its last report; None if that is older than
        STALE_AFTER or there is none."""
        if progress is not None and progress.gpu_utilization is not None:
            usage = PodUsage(pod_name, progress.gpu_utilization, progress.gpu_memory_mib)
            self.self_reported[pod_name] = (now, usage)
        at, last = self.self_reported.get(pod_name, (now, None))
        return last if now - at <= STALE_AFTER else None

    def keep(self, pod_names: set[str]) -> None:
        """Drop the reports of all pods except those with these names."""
        self.self_reported = {name: said for name, said in self.self_reported.items() if name in pod_names}


def completed(
    reports: Sequence[UsageReport], self_reported: Mapping[str, PodUsage]
) -> tuple[tuple[UsageReport, ...], dict[str, PodUsage]]:
    """Return the measurements by device and by pod. Values that were not measured come from `self_reported`, the
    usage by pod name."""
    usages = {usage.pod_name: usage for report in reports for usage in report.pods}
    lacking = {name: said for name, said in self_reported.items() if _lacks_a_figure(usages.get(name))}
    for name, said in lacking.items():
        usages[name] = _first_known(usages.get(name, said), said)
    devices = {(report.node, report.device_index): report for report in reports}
    for report in device_reports(lacking):
        place = (report.node, report.device_index)
        devices[place] = _first_known(devices.get(place, report), report)
    return tuple(devices.values()), usages


def _lacks_a_figure(usage: PodUsage | None) -> bool:
    return usage is None or usage.utilization is None or usage.memory_used_mib is None


def _first_known(measured: T, said: T) -> T:
    if measured.utilization is None:
        measured = replace(measured, utilization=said.utilization)
    if measured.memory_used_mib is None:
        measured = replace(measured, memory_used_mib=said.memory_used_mib)
    return measured


def device_reports(usages: dict[str, PodUsage]) -> tuple[UsageReport, ...]:
    """Return one report per device of the pods in `usages` (by name): utilisation weighted by the pods' shares, and
    memory, which a pod with several devices is assumed to use evenly."""
    if not usages:
        return ()
    rows = Allocation.objects.filter(pod__name__in=list(usages), released_at=None)
    columns = ("device__node__name", "device__index", "pod__name", "milli_gpus")
    held: dict[tuple[str, int], list[tuple[PodUsage, int]]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for node, index, pod_name, milli in rows.values_list(*columns).order_by("device_id"):
        held[node, index].append((usages[pod_name], milli))
        counts[pod_name] += 1
    return tuple(
        device_usage(
            node,
            index,
            [
                (usage, milli, part_of(usage.memory_used_mib, counts[usage.pod_name]))
                for usage, milli in users
            ],
        )
        for (node, index), users in held.items()
    )
