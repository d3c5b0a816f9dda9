"""Once a second, store jobs' progress and device usage in rows and samples, and write one event."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from controlplane.engines.base import USAGE, Engine, EngineUnreachable, PodUsage, UsageReport
from controlplane.logstore.progress import Progress, find_progress, progress_after
from controlplane.logstore.reader import log_path, read_page, tail
from controlplane.models import Cluster, Device, Event
from controlplane.models.bulk_update import Change, change_rows
from controlplane.models.prepared import Rows, prepared
from controlplane.telemetry.metrics import SAMPLED
from controlplane.telemetry.samples import STEP_SECONDS, Accumulator
from jobs.kinds.registry import KINDS
from jobs.lifecycle import ACTIVE_STATES, QUEUED, SUSPENDED
from jobs.models import Job, Pod
from jobs.telemetry.sampling import PodRow, pods_of, rounded, sample_holders, sample_queue, sample_use
from jobs.telemetry.self_reported import SelfReported, completed

logger = logging.getLogger(__name__)

# A job's last lines are read for this long after its pod has been released, because they may arrive after its end is
# known.
LATE_SECONDS = 15
# If a log has more unread bytes than this, only its end is read, because only the newest progress is shown.
BEHIND_BYTES = 1 << 20
LOOK_BACK_LINES, PAGE_LINES = 200, 5000
# Resolution of "last seen working"; avoids a write every second.
BUSY_GRAIN_SECONDS = 5.0
# If two collections are further apart than this, the GPU hours between them are unknown and not counted.
HOLDERS_GAP_SECONDS = 120
# The interval of samples of devices that report the same, while no pod runs. Less than a minute, because the passes of
# the loop are not exact.
REST_SECONDS = 55
# Finer resolution for jobs with an idle limit, which may be short.
LIMITED_GRAIN_SECONDS = 0.5
DEVICE_COLUMNS = ("pk", "node__name", "index", "utilization", "memory_used_mib", "busy_at")
JOB_COLUMNS = ("pk", "kind", "progress", "gpu_utilization", "active_at")


@dataclass(slots=True)
class UsageMemory:
    """A cluster's state between two collections, per process. Losing it loses at most one step of samples. `seq`: the
    number of the last event whose jobs' waiting times are in the samples. `spoken`: the usage that pods reported in
    their logs."""

    accumulator: Accumulator = field(default_factory=Accumulator)
    seq: int | None = None
    # When GPU seconds were last counted.
    holders_at: datetime | None = None
    # Pods whose log cannot be read; the error is logged once.
    unreadable: set[str] = field(default_factory=set)
    spoken: SelfReported = field(default_factory=SelfReported)
    # When the last collection was, and what the devices reported then; None if there were pods or no answer.
    collected_at: datetime | None = None
    at_rest: Sequence[UsageReport] | None = None


@dataclass(slots=True)
class _Changes:
    """Changed columns by table and key, the jobs whose displayed values change (`seen_jobs`), and whether a displayed
    value of a device does (`is_visible`)."""

    pods: defaultdict[int, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    jobs: defaultdict[UUID, dict[str, Any]] = field(default_factory=lambda: defaultdict(dict))
    devices: dict[int, dict[str, Any]] = field(default_factory=dict)
    seen_jobs: set[UUID] = field(default_factory=set)
    is_visible: bool = False

    def write(self, now: datetime) -> None:
        """Write all changes in one short transaction, with one event if any displayed value changes."""
        if not (self.pods or self.jobs or self.devices):
            return
        with transaction.atomic():
            for model, changed in ((Pod, self.pods), (Job, self.jobs), (Device, self.devices)):
                change_rows(model, [Change(key, {}, values) for key, values in changed.items()])
            if self.is_visible or self.seen_jobs:
                names = sorted(str(job_id) for job_id in self.seen_jobs)
                Event.objects.append([Event(kind=SAMPLED, at=now, data={"jobs": names})])


@dataclass(frozen=True, slots=True)
class _Look:
    """The measurements of one second: new progress lines, and usage by device and by pod. `is_measured`: the cluster
    has a source of measurements. `has_answered`: it could be read, or there is none. `is_reachable`: the cluster's
    engine answers."""

    lines: Mapping[str, Progress | None]
    reports: Sequence[UsageReport]
    usages: Mapping[str, PodUsage]
    is_measured: bool
    has_answered: bool
    is_reachable: bool

    def is_idleness_known(self, pod: PodRow) -> bool:
        """Return whether it is known if the pod is idle. False for an unreachable cluster and while its
        measurements cannot be read. Where progress lines are the only source, a pod without them counts as idle."""
        if not (self.is_reachable and self.is_measured):
            return self.is_reachable
        usage = self.usages.get(pod.name)
        has_figure = usage is not None and usage.utilization is not None
        return has_figure or (self.has_answered and not pod.holds_gpus)


def collect(engine: Engine, cluster: Cluster, memory: UsageMemory, now: datetime) -> None:
    """Store progress, utilisation and memory of a cluster's pods and devices, and add them to the samples.

    Writes only changed rows, then one event `telemetry.sampled` with the jobs. Logs are read even if
    measurements fail: self-reported usage is used instead, and other values stay unchanged.
    """
    pods = pods_of(cluster, now - timedelta(seconds=LATE_SECONDS))
    changes = _Changes()
    memory.unreadable &= {pod.name for pod in pods}
    said = {pod.name: _try_log(changes, pod, memory.unreadable) for pod in pods}
    self_reported = _self_reports(memory.spoken, pods, said, now)
    measured = _measure(engine, cluster)
    is_measured = USAGE in engine.capabilities
    reports, usages = completed(measured or (), self_reported)
    look = _Look(said, reports, usages, is_measured, measured is not None, cluster.is_reachable)
    _take_pods(changes, cluster, pods, look, now)
    _take_devices(changes, cluster, look, now)
    _forget_waiting(changes, cluster)
    changes.write(now)
    memory.accumulator.turn(now)
    sample_use(memory.accumulator, cluster, reports, pods, usages)
    memory.seq = sample_queue(memory.accumulator, cluster, memory.seq)
    _count_gpu_seconds(memory, cluster, now)
    memory.collected_at, memory.at_rest = now, None if pods else measured


def is_at_rest(engine: Engine, cluster: Cluster, memory: UsageMemory, now: datetime) -> bool:
    """Return whether `collect` would repeat its last call, less than REST_SECONDS ago: the cluster had no pods then,
    and its devices report the same. No query; meant for a cluster without active jobs."""
    at = memory.collected_at
    if at is None or memory.at_rest is None or not 0 <= (now - at).total_seconds() < REST_SECONDS:
        return False
    return _measure(engine, cluster) == memory.at_rest


def _count_gpu_seconds(memory: UsageMemory, cluster: Cluster, now: datetime) -> None:
    """Add the GPU seconds of each user since the last call that did so, once in STEP_SECONDS. Counts nothing for the
    first call, and after a gap of more than HOLDERS_GAP_SECONDS."""
    before = memory.holders_at
    seconds = (now - before).total_seconds() if before else 0.0
    # A long gap, and a clock that was set back, count for nothing.
    if before is None or not 0 <= seconds <= HOLDERS_GAP_SECONDS:
        memory.holders_at = now
    # Not every second, since that would query all allocations.
    elif seconds >= STEP_SECONDS:
        sample_holders(memory.accumulator, cluster, seconds)
        memory.holders_at = now


def _measure(engine: Engine, cluster: Cluster) -> tuple[UsageReport, ...] | None:
    """Return the engine's measurements; () if it has none, None if they cannot be read now."""
    if USAGE not in engine.capabilities:
        return ()
    try:
        return engine.usage()
    except EngineUnreachable:
        # Not logged here: the loop reports an unreachable cluster, and the cluster check reports a failing
        # Prometheus.
        return None
    except Exception:
        logger.exception("GPU usage of cluster %s cannot be read; trying again every second", cluster.name)
        return None


def _self_reports(
    spoken: SelfReported, pods: Sequence[PodRow], lines: Mapping[str, Progress | None], now: datetime
) -> dict[str, PodUsage]:
    """Return, by pod name, the usage that pods report in progress lines; omits pods that reported none recently."""
    spoken.keep({pod.name for pod in pods if pod.is_live})
    self_reported = ((pod.name, spoken.update(pod.name, lines[pod.name], now)) for pod in pods if pod.is_live)
    return {name: usage for name, usage in self_reported if usage is not None}


def _take_pods(
    changes: _Changes,
    cluster: Cluster,
    pods: Sequence[PodRow],
    look: _Look,
    now: datetime,
) -> None:
    """Add the pods' progress and usage to `changes`, and mark jobs as active. Time without measurements does not
    count as idle."""
    said: dict[UUID, Progress] = {}
    working: set[UUID] = set()
    for pod in pods:
        progress = look.lines[pod.name]
        usage = look.usages.get(pod.name)
        if progress is not None:
            # Pods are ordered by rank: of those that report, the lowest rank sets the job's progress.
            said.setdefault(pod.job_id, progress)
        if progress is not None or (usage is not None and usage.utilization):
            working.add(pod.job_id)
        if pod.is_live and pod.has_idle_limit and not look.is_idleness_known(pod):
            working.add(pod.job_id)
        if pod.is_live and (look.has_answered or usage is not None):
            _take_usage(changes, pod, usage)
    _take_jobs(changes, cluster, pods, said, working, now)


def _try_log(changes: _Changes, pod: PodRow, unreadable: set[str]) -> Progress | None:
    """Return the newest progress in the new lines of one pod's log, None if there is none. A log that cannot be
    read is logged once (`unreadable` holds such pods' names), retried every second, and does not affect other
    pods."""
    try:
        progress = _read_log(changes, pod)
    except Exception:
        if pod.name not in unreadable:
            logger.exception("the log of pod %s cannot be read", pod.name)
        unreadable.add(pod.name)
        return None
    unreadable.discard(pod.name)
    return progress


def _read_log(changes: _Changes, pod: PodRow) -> Progress | None:
    """Read new lines of the pod's log and add the new offset to `changes`. Return the newest progress in them,
    None if there is none."""
    path = log_path(settings.LOG_DIR, str(pod.job_id), pod.attempt, pod.rank)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        # The pod has not printed anything yet.
        return None
    if size <= pod.log_offset:
        return None
    is_behind = size - pod.log_offset > BEHIND_BYTES
    # Only the newest progress is shown, so the beginning of a long log can be skipped.
    page = tail(path, LOOK_BACK_LINES) if is_behind else read_page(path, pod.log_offset, PAGE_LINES)
    if page.next_offset != pod.log_offset:
        changes.pods[pod.id]["log_offset"] = page.next_offset
    return find_progress(page.lines)


def _take_usage(changes: _Changes, pod: PodRow, usage: PodUsage | None) -> None:
    utilization = None if usage is None else rounded(usage.utilization)
    memory_mib = None if usage is None else usage.memory_used_mib
    if (utilization, memory_mib) == (pod.gpu_utilization, pod.gpu_memory_mib):
        return
    pod.gpu_utilization, pod.gpu_memory_mib = utilization, memory_mib
    changes.pods[pod.id] |= {"gpu_utilization": utilization, "gpu_memory_mib": memory_mib}
    changes.seen_jobs.add(pod.job_id)


def _take_jobs(
    changes: _Changes,
    cluster: Cluster,
    pods: Sequence[PodRow],
    said: Mapping[UUID, Progress],
    working: set[UUID],
    now: datetime,
) -> None:
    measured: dict[UUID, list[float]] = {pod.job_id: [] for pod in pods if pod.is_live}
    for pod in pods:
        if pod.is_live and pod.gpu_utilization is not None:
            measured[pod.job_id].append(pod.gpu_utilization)
    reporting = working | said.keys() | {job_id for job_id, values in measured.items() if values}
    for job_id, kind, progress, utilization, active_at in _rows_of(cluster, reporting):
        values: dict[str, Any] = {}
        if job_id in said and (shown := progress_after(progress, said[job_id])) != progress:
            values["progress"] = shown
        if job_id in measured and (mean := _mean(measured[job_id])) != utilization:
            values["gpu_utilization"] = mean
        if values:
            changes.seen_jobs.add(job_id)
        grain = LIMITED_GRAIN_SECONDS if KINDS[kind].has_interactive_limits else BUSY_GRAIN_SECONDS
        if job_id in working and _is_stale(active_at, now, grain):
            values["active_at"] = now
        if values:
            changes.jobs[job_id] |= values


def _rows_of(cluster: Cluster, reporting: Set[UUID]) -> list[tuple[Any, ...]]:
    """Return columns of the cluster's active jobs and of the jobs `reporting` (ids)."""
    rows = _active_rows(cluster.pk)
    others = reporting - {row[0] for row in rows}
    return rows + list(Job.objects.filter(pk__in=others).values_list(*JOB_COLUMNS)) if others else rows


@prepared
def _active_rows(cluster: int) -> Rows[Job]:
    return Job.objects.filter(project__cluster=cluster, state__in=ACTIVE_STATES).values_list(*JOB_COLUMNS)


def _take_devices(
    changes: _Changes,
    cluster: Cluster,
    look: _Look,
    now: datetime,
) -> None:
    """Add changed device usage to `changes`. If the cluster has no source of measurements, the usage of a device
    without self-reports becomes None."""
    readings = {(report.node, report.device_index): report for report in look.reports}
    # Without measurements, only devices with a stored value can change.
    rows = _devices(cluster.pk) if look.reports else _devices_with_use(cluster.pk)
    for key, node, index, utilization, memory_mib, busy_at in rows:
        report = readings.get((node, index))
        if report is None:
            if not look.is_measured and utilization is not None:
                changes.devices[key] = {"utilization": None, "memory_used_mib": None}
                changes.is_visible = True
            continue
        values: dict[str, Any] = {}
        seen = (rounded(report.utilization), report.memory_used_mib)
        if seen != (utilization, memory_mib):
            values = {"utilization": seen[0], "memory_used_mib": seen[1]}
            changes.is_visible = True
        if report.utilization and _is_stale(busy_at, now, BUSY_GRAIN_SECONDS):
            values["busy_at"] = now
        if values:
            changes.devices[key] = values


@prepared
def _devices(cluster: int) -> Rows[Device]:
    return Device.objects.filter(node__cluster=cluster).values_list(*DEVICE_COLUMNS)


@prepared
def _devices_with_use(cluster: int) -> Rows[Device]:
    used = Device.objects.filter(node__cluster=cluster, utilization__isnull=False)
    return used.values_list(*DEVICE_COLUMNS)


def _forget_waiting(changes: _Changes, cluster: Cluster) -> None:
    """Add to `changes` that queued and suspended jobs have no usage."""
    for (job_id,) in _waiting_with_usage(cluster.pk):
        changes.jobs[job_id]["gpu_utilization"] = None
        changes.seen_jobs.add(job_id)


@prepared
def _waiting_with_usage(cluster: int) -> Rows[Job]:
    waiting = Job.objects.filter(project__cluster=cluster, state__in=(QUEUED, SUSPENDED))
    return waiting.filter(gpu_utilization__isnull=False).values_list("pk")


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


def _is_stale(at: datetime | None, now: datetime, grain_seconds: float) -> bool:
    return at is None or (now - at).total_seconds() >= grain_seconds
