"""Names, steps and arithmetic of samples. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

GPU_UTILIZATION, GPU_MEMORY = "gpu_utilization", "gpu_memory_used_mib"
JOBS_RUNNING, JOBS_QUEUED, QUEUE_WAIT = "jobs_running", "jobs_queued", "queue_wait_seconds"
GPUS_ALLOCATED = "gpus_allocated"
# Metrics for the pages only: GPUs of ready nodes by cluster, as change points; and GPU seconds by project and user,
# as sums.
GPU_CAPACITY, GPU_SECONDS = "gpu_capacity", "gpu_seconds"
METRICS = (GPU_UTILIZATION, GPU_MEMORY, GPUS_ALLOCATED, JOBS_RUNNING, JOBS_QUEUED, QUEUE_WAIT)
SUBJECTS = ("cluster", "project", "node", "device", "job")
# The kind of event that announces new samples.
SAMPLED = "telemetry.sampled"

# Metrics that are stored as change points, because allocation must be exact over any range.
STEPWISE = (GPUS_ALLOCATED, GPU_CAPACITY)
# The value of `by` for subjects of the form "PROJECT_ID/USER_ID".
MEMBER = "member"
# The value of `step_seconds` for a value that holds until the subject's next change point.
CHANGE_POINT = 0
STEPS = (10, 60, 600, 3600)  # seconds
KEEP = {
    10: timedelta(hours=6),
    60: timedelta(days=3),
    600: timedelta(days=30),
    3600: timedelta(days=730),
}

Key: TypeAlias = tuple[str, str, str]  # metric, by, subject


@dataclass(slots=True)
class Aggregate:
    """Minimum, maximum, sum and count of a metric's measurements over a time span."""

    minimum: float
    maximum: float
    total: float
    count: int = 1

    def add(self, other: "Aggregate") -> None:
        """Merge `other`, the same metric over another span, into this one."""
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        self.total, self.count = self.total + other.total, self.count + other.count


def joined(rows: Iterable[Any], step_seconds: int) -> dict[tuple[Key, datetime], Aggregate]:
    """Combine samples into one aggregate per metric, subject and step of `step_seconds`, by (key, start of the step).
    `rows`: objects with the columns of Sample."""
    aggregates: dict[tuple[Key, datetime], Aggregate] = {}
    for row in rows:
        key = (row.metric, row.by, row.subject), floor(row.at, step_seconds)
        aggregate = Aggregate(row.minimum, row.maximum, row.total, row.count)
        if key in aggregates:
            aggregates[key].add(aggregate)
        else:
            aggregates[key] = aggregate
    return aggregates


def floor(at: datetime, step_seconds: int) -> datetime:
    """Return the start of the step of `step_seconds` that contains `at`; steps are counted from the Unix epoch."""
    stamp = int(at.timestamp())
    return datetime.fromtimestamp(stamp - stamp % step_seconds, UTC)
