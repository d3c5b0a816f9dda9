"""Compute a device's usage from its pods' usage, if no driver measures it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from controlplane.engines.base import PodUsage, UsageReport

# How many seconds a pod's last progress line counts as its present usage; a program that hangs prints no
# further one and must count as idle.
STALE_AFTER_SECONDS = 60.0

Holder = tuple[PodUsage, int, int | None]
"""(a pod's usage of its share, the milli-GPUs that it holds of the device,
the MiB of the device that it uses, None if unknown)."""


def known_sum(amounts: Iterable[int | None]) -> int | None:
    """Return the sum of the amounts that are not None; 0 for no amounts, None if all are None."""
    values = list(amounts)
    known = [amount for amount in values if amount is not None]
    return sum(known) if known or not values else None


def part_of(amount: int | None, parts: int) -> int | None:
    """Return one of `parts` equal parts of an amount, rounded down; None for None."""
    return None if amount is None else amount // parts


def device_usage(node: str, index: int, holders: Sequence[Holder]) -> UsageReport:
    """Return the report of device `index` of `node`: the utilisation of its holders weighted by share (an unknown one
    counts as 0), and the memory of those with a known one."""
    utilization = sum((usage.utilization or 0.0) * milli_gpus / 1000 for usage, milli_gpus, _ in holders)
    return UsageReport(
        node,
        index,
        min(1.0, utilization),
        known_sum(memory_mib for _, _, memory_mib in holders),
        tuple(usage for usage, _, _ in holders),
    )
