"""From what pods use to what their device does, where no driver tells."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.engines.base import PodUsage, UsageReport

STALE_AFTER_SECONDS = 60.0  # for so long a pod's last progress line counts

Holder = tuple[PodUsage, int, int]
"""A pod's use of its share, the milli-GPUs that it holds of the device, and the MiB that it uses of it."""


def device_usage(node: str, index: int, holders: Sequence[Holder]) -> UsageReport:
    """A device's report: the utilisation of its holders by their shares, and their memory."""
    utilization = sum((usage.utilization or 0.0) * milli_gpus / 1000 for usage, milli_gpus, _ in holders)
    return UsageReport(
        node,
        index,
        min(1.0, utilization),
        sum(memory_mib for _, _, memory_mib in holders),
        tuple(usage for usage, _, _ in holders),
    )
