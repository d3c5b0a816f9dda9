"""Measure the usage of devices and pods.

For a simulated device, the usage is what its pods print: each pod's last progress line, weighted by its share of
the device. A pod without a recent line counts as idle. A real device is read through NVML, and progress lines only
divide the reading among its pods.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.engines.base import NodeReport, PodSpec, PodUsage, UsageReport
from controlplane.engines.usage import STALE_AFTER_SECONDS, device_usage
from controlplane.logstore.progress import Progress, latest_progress


@dataclass(frozen=True, slots=True)
class _Seen:
    size: int
    progress: Progress | None


class Gauges:
    """Measures devices and pods by their logs and the driver. Remembers each log's size, so that an unchanged log
    costs one stat."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def read(
        self, nodes: tuple[NodeReport, ...], running: Iterable[PodSpec], readings: Mapping[int, UsageReport]
    ) -> tuple[UsageReport, ...]:
        """Return one report per device of `nodes`. `running`: the specs of the running pods; `readings`: the driver's
        measurements by device index, empty for simulated devices."""
        specs = tuple(running)
        usages = {spec.name: self._pod_usage(spec) for spec in specs}
        self._seen = {
            spec.log_path: self._seen[spec.log_path] for spec in specs if spec.log_path in self._seen
        }
        reports = []
        for node in nodes:
            for device in node.devices:
                report = _simulated(node.name, device.index, specs, usages)
                reading = readings.get(device.index)
                if reading is not None:
                    report = replace(
                        report, utilization=reading.utilization, memory_used_mib=reading.memory_used_mib
                    )
                reports.append(report)
        return tuple(reports)

    def _pod_usage(self, spec: PodSpec) -> PodUsage:
        progress = self._progress(spec.log_path)
        if progress is None or time.time() - progress.time_ms / 1000 > STALE_AFTER_SECONDS:
            return PodUsage(spec.name, 0.0, 0)
        return PodUsage(spec.name, progress.gpu_utilization or 0.0, progress.gpu_memory_mib or 0)

    def _progress(self, path: str) -> Progress | None:
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return None
        seen = self._seen.get(path)
        if seen is None or seen.size != size:
            progress = latest_progress(path)
            if progress is None and seen is not None:
                # The progress line is too far back in the log to be read again.
                progress = seen.progress
            seen = self._seen[path] = _Seen(size, progress)
        return seen.progress


def _simulated(
    node_name: str, index: int, specs: tuple[PodSpec, ...], usages: Mapping[str, PodUsage]
) -> UsageReport:
    holders = []
    for spec in specs:
        share = next((share for share in spec.devices if share.index == index), None)
        if spec.node == node_name and share is not None:
            usage = usages[spec.name]
            memory_mib = min((usage.memory_used_mib or 0) // len(spec.devices), share.memory_mib)
            holders.append((usage, share.milli_gpus, memory_mib))
    return device_usage(node_name, index, holders)
