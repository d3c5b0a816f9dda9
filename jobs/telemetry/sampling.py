"""Add one second's measurements of pods, devices and queues to the current sample step."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Count, F, Q, Sum

from controlplane.engines.base import PodUsage, UsageReport
from controlplane.engines.usage import known_sum
from controlplane.models import Cluster, Event
from controlplane.models.prepared import Rows, prepared
from controlplane.telemetry.metrics import (
    GPU_MEMORY,
    GPU_SECONDS,
    GPU_UTILIZATION,
    JOBS_QUEUED,
    JOBS_RUNNING,
    MEMBER,
    QUEUE_WAIT,
)
from controlplane.telemetry.samples import Accumulator
from jobs.kinds.registry import KINDS
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Allocation, Job, Pod


@dataclass(slots=True)
class PodRow:
    """The pod columns that collecting needs. `log_offset`: the byte up to which its log was read; `has_idle_limit`,
    `holds_gpus`: its job has an idle limit, or GPUs; `is_live`: not released yet."""

    id: int
    name: str
    job_id: UUID
    project: str
    rank: int
    attempt: int
    log_offset: int
    gpu_utilization: float | None
    gpu_memory_mib: int | None
    has_idle_limit: bool
    holds_gpus: bool
    is_live: bool


def pods_of(cluster: Cluster, since: datetime) -> list[PodRow]:
    """Return the cluster's unreleased pods and those released after `since`, by rank."""
    found = []
    for *row, kind, milli, released_at in _pod_columns(cluster.pk, since):
        values: list[Any] = [*row, KINDS[kind].has_interactive_limits, milli > 0, released_at is None]
        found.append(PodRow(*values))
    return found


@prepared
def _pod_columns(cluster: int, since: datetime) -> Rows[Pod]:
    recent = Q(released_at=None) | Q(released_at__gte=since)
    return (
        Pod.objects.filter(recent, node__cluster=cluster)
        .order_by("rank")
        .values_list(
            "id",
            "name",
            "job_id",
            "job__project__name",
            "rank",
            "attempt__number",
            "log_offset",
            "gpu_utilization",
            "gpu_memory_mib",
            "job__kind",
            "job__allocated_milli",
            "released_at",
        )
    )


def sample_use(
    accumulator: Accumulator,
    cluster: Cluster,
    reports: Sequence[UsageReport],
    pods: Sequence[PodRow],
    usages: Mapping[str, PodUsage],
) -> None:
    """Add this second's `reports` of devices and `usages` of pods (by name) to the current step of `accumulator`:
    for devices, nodes, the cluster, jobs and projects. A value that could not be read is skipped, not counted as
    0."""
    for report in reports:
        subject = f"{report.node}/{report.device_index}"
        _add(accumulator, "device", subject, report.utilization, report.memory_used_mib)
    by_node: dict[str, list[UsageReport]] = defaultdict(list)
    for report in reports:
        by_node[report.node].append(report)
    for node, of_node in by_node.items():
        _add_reports(accumulator, "node", node, of_node)
    if reports:
        _add_reports(accumulator, "cluster", cluster.name, reports)
    used = [(pod, usages[pod.name]) for pod in pods if pod.is_live and pod.name in usages]
    weights = _held(cluster) if used else {}
    _add_pods(accumulator, "job", [(str(pod.job_id), usage, weights[pod.id]) for pod, usage in used])
    _add_pods(accumulator, "project", [(pod.project, usage, weights[pod.id]) for pod, usage in used])


def _add(
    accumulator: Accumulator, by: str, subject: str, utilization: float | None, memory_mib: int | None
) -> None:
    if utilization is not None:
        accumulator.add((GPU_UTILIZATION, by, subject), utilization)
    if memory_mib is not None:
        accumulator.add((GPU_MEMORY, by, subject), memory_mib)


def _add_reports(accumulator: Accumulator, by: str, subject: str, reports: Sequence[UsageReport]) -> None:
    """Add, for a subject of kind `by`, the mean utilisation over the measured devices, and their memory."""
    measured = [report.utilization for report in reports if report.utilization is not None]
    mean = sum(measured) / len(measured) if measured else None
    _add(accumulator, by, subject, mean, known_sum(report.memory_used_mib for report in reports))


def _add_pods(accumulator: Accumulator, by: str, used: Sequence[tuple[str, PodUsage, int]]) -> None:
    """Add the utilisation of jobs or projects (`by`): the mean over the measured pods of each, weighted by
    milli-GPUs. `used`: (subject, usage, milli-GPUs) of each pod."""
    groups: dict[str, list[tuple[PodUsage, int]]] = defaultdict(list)
    for subject, usage, milli in used:
        groups[subject].append((usage, milli))
    for subject, members in groups.items():
        measured = [(usage.utilization, milli) for usage, milli in members if usage.utilization is not None]
        held = sum(milli for _, milli in measured)
        mean = sum(utilization * milli for utilization, milli in measured) / held if held else None
        _add(accumulator, by, subject, mean, known_sum(usage.memory_used_mib for usage, _ in members))


def _held(cluster: Cluster) -> defaultdict[int, int]:
    """Return the milli-GPUs of the cluster's pods by primary key; 0 for a pod without GPUs."""
    held: defaultdict[int, int] = defaultdict(int)
    live = Allocation.objects.filter(device__node__cluster=cluster, released_at=None)
    for pod_id, milli in live.values_list("pod_id", "milli_gpus"):
        held[pod_id] += milli
    return held


def sample_queue(accumulator: Accumulator, cluster: Cluster, before: int | None) -> int:
    """Add the numbers of running and queued jobs, and the waiting times of those that started after event number
    `before` (None: of no jobs). Return the event number to continue from."""
    rows = _job_counts(cluster.pk)
    for name, running, queued in rows:
        _add_counts(accumulator, "project", name, running, queued)
    _add_counts(
        accumulator, "cluster", cluster.name, sum(row[1] for row in rows), sum(row[2] for row in rows)
    )
    seq = Event.objects.last_seq()
    if before is not None and seq > before:
        _add_waits(accumulator, cluster, before, seq)
    return seq


@prepared
def _job_counts(cluster: int) -> Rows[Job]:
    unfinished = Job.objects.filter(project__cluster=cluster).unfinished()
    counts = unfinished.values_list("project__name").annotate(
        running=Count("pk", filter=Q(state__in=ACTIVE_STATES)), queued=Count("pk", filter=Q(state=QUEUED))
    )
    return counts.order_by()


def sample_holders(accumulator: Accumulator, cluster: Cluster, seconds: float) -> None:
    """Add to `accumulator` the GPU seconds of the last `seconds` for every project's users, by current
    allocations."""
    for project_id, user_id, milli in _held_by_user(cluster.pk):
        accumulator.add((GPU_SECONDS, MEMBER, f"{project_id}/{user_id}"), milli / 1000 * seconds)


@prepared
def _held_by_user(cluster: int) -> Rows[Allocation]:
    held = Allocation.objects.filter(released_at=None, pod__node__cluster=cluster)
    owners = held.values_list("pod__job__project_id", "pod__job__user_id")
    return owners.annotate(Sum("milli_gpus")).order_by()


def rounded(value: float | None) -> float | None:
    """Return a utilisation in stored precision, None for None."""
    # Finer changes would cause useless writes and live updates.
    return None if value is None else round(value, 3)


def _add_counts(accumulator: Accumulator, by: str, subject: str, running: int, queued: int) -> None:
    accumulator.add((JOBS_RUNNING, by, subject), running)
    accumulator.add((JOBS_QUEUED, by, subject), queued)


def _add_waits(accumulator: Accumulator, cluster: Cluster, before: int, seq: int) -> None:
    started = Event.objects.filter(seq__gt=before, seq__lte=seq, kind="job.running").values("job_id")
    waits = Job.objects.filter(pk__in=started, project__cluster=cluster, started_at__isnull=False)
    for project, wait in waits.values_list("project__name", F("started_at") - F("queued_at")):
        seconds = max(0.0, wait.total_seconds())
        accumulator.add((QUEUE_WAIT, "project", project), seconds)
        accumulator.add((QUEUE_WAIT, "cluster", cluster.name), seconds)
