"""From what pods use to what their device does, where no driver tells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controlplane.engines.base import PodUsage, UsageReport

STALE_AFTER_SECONDS = 60.0  # for so long a pod's last progress line counts

Holder = tuple[PodUsage, int, int | None]
"""A pod's use of its share, the milli-GPUs that it holds of the device, and the MiB that it uses of it, None where that
is not known."""


def known_sum(amounts: Iterable[int | None]) -> int | None:
    """The sum of what is known; None where nothing is. What nobody holds is known to be 0."""
    told = list(amounts)
    known = [amount for amount in told if amount is not None]
    return sum(known) if known or not told else None


def part_of(amount: int | None, parts: int) -> int | None:
    """An even part of an amount, where that is known."""
    return None if amount is None else amount // parts


def device_usage(node: str, index: int, holders: Sequence[Holder]) -> UsageReport:
    """A device's report: the utilisation of its holders by their shares, and their memory."""
    utilization = sum((usage.utilization or 0.0) * milli_gpus / 1000 for usage, milli_gpus, _ in holders)
    return UsageReport(
        node,
        index,
        min(1.0, utilization),
        known_sum(memory_mib for _, _, memory_mib in holders),
        tuple(usage for usage, _, _ in holders),
    )
