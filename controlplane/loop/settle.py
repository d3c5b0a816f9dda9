"""Move jobs by how their pods stand, and end those that are over a limit. Rules are pure (jobs.kinds.settle)."""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from controlplane.access import SYSTEM
from controlplane.loop.claims import COLLECT_LEASE, WATCH_GAP_SECONDS, is_fresh
from controlplane.models import Cluster, Command, Event
from jobs import lifecycle
from jobs.kinds.registry import KINDS
from jobs.kinds.settle import PodStanding, Step, next_step
from jobs.limits import limit_reached
from jobs.models import Attempt, Job, Pod
from jobs.stopping import ending, job_event, move, order_stops, remove, send_towards

REMIND_AFTER_SECONDS = 30


def settle_jobs(cluster: Cluster, now: datetime) -> None:
    """Move every job of a cluster as far as its pods and limits allow."""
    jobs = _unsettled(cluster)
    standings = _standings(jobs) if jobs else {}
    for job in jobs:
        _settle(job, standings.get((job.pk, job.attempt), []), now)
    _enforce_limits([job for job in jobs if job.state == lifecycle.RUNNING], now)
    _remind(jobs, now)


def remove_expired(cluster: Cluster, now: datetime) -> None:
    """Remove finished jobs whose time to live is over, and deleted ones that ended by themselves."""
    over = Q(expires_at__lte=now) | Q(is_deleted=True)
    expired = Job.objects.filter(over, project__cluster=cluster, state__in=lifecycle.FINAL_STATES)
    finished = list(expired.select_related("project")[:100])
    if finished:
        with transaction.atomic():
            Event.objects.append([remove(job, SYSTEM) for job in finished])


def _unsettled(cluster: Cluster) -> list[Job]:
    """Return the jobs that may have to move: on their way, with a pod of this attempt that has ended, or running
    under a limit of their own or of their project."""
    ended = Pod.objects.filter(job=OuterRef("pk"), attempt__number=OuterRef("attempt"))
    ended = ended.filter(Q(released_at__isnull=False) | Q(state__in=("succeeded", "failed")))
    limits = Q(max_runtime_seconds__gt=0)
    limits |= Q(project__interactive_max_seconds__gt=0) | Q(project__interactive_idle_seconds__gt=0)
    on_their_way = Q(state__in=(lifecycle.STARTING, lifecycle.STOPPING))
    active = Job.objects.filter(project__cluster=cluster, state__in=lifecycle.ACTIVE_STATES)
    return list(active.filter(on_their_way | Exists(ended) | limits).select_related("project", "user"))


def _standings(jobs: list[Job]) -> dict[tuple[Any, int], list[PodStanding]]:
    found: dict[tuple[Any, int], list[PodStanding]] = defaultdict(list)
    rows = (
        Pod.objects.filter(job__in=[job.pk for job in jobs])
        .order_by("rank")
        .values_list(
            "job_id", "attempt__number", "rank", "state", "exit_code", "released_at", "reason", "message"
        )
    )
    for job_id, number, rank, state, exit_code, released_at, reason, message in rows:
        standing = PodStanding(rank, state, exit_code, released_at is not None, reason, message)
        found[job_id, number].append(standing)
    return found


def _settle(job: Job, pods: list[PodStanding], now: datetime) -> None:
    step = next_step(KINDS[job.kind], job.state, job.next_state, job.failures, job.spec["retries"], pods)
    if step is None:
        return
    with transaction.atomic():
        moved = _begin_ending(job, step, now) if step.is_stop else _finish(job, step, now)
        if moved and job.is_deleted and job.is_final:
            Event.objects.append([remove(job, SYSTEM)])
        elif moved:
            Event.objects.append([job_event(f"job.{job.state}", job, SYSTEM, {"exit_code": job.exit_code})])


def _begin_ending(job: Job, step: Step, now: datetime) -> bool:
    """The attempt is decided but pods are left: stop them, then go on to the target."""
    fields = {
        "next_state": step.target,
        "reason": step.reason,
        "message": step.message,
        "exit_code": step.exit_code,
    }
    if not move(
        job, (lifecycle.STARTING, lifecycle.RUNNING), lifecycle.STOPPING, **fields, **_counted(job, step, now)
    ):
        return False
    order_stops(job)
    return True


def _finish(job: Job, step: Step, now: datetime) -> bool:
    fields: dict[str, Any] = {**ending(job, step.target), **_counted(job, step, now)}
    if step.reason:
        fields |= {"reason": step.reason, "message": step.message}
    if step.target == lifecycle.RUNNING:
        fields |= {"started_at": now, "active_at": now}
    else:
        # an attempt that was decided before its last pods were stopped keeps the exit code that decided it
        exit_code = step.exit_code if job.exit_code is None else job.exit_code
        fields |= {"allocated_milli": 0, "next_state": "", "exit_code": exit_code, "gpu_utilization": None}
    if step.target == lifecycle.QUEUED:
        fields |= {"queued_at": now}
    if not move(job, (job.state,), step.target, **fields):
        return False
    _note_attempt(job, step, now)
    return True


def _counted(job: Job, step: Step, now: datetime) -> dict[str, Any]:
    """Count a failure that will be retried, and hold the retry back."""
    if not step.backoff_seconds:
        return {}
    return {"failures": job.failures + 1, "not_before": now + timedelta(seconds=step.backoff_seconds)}


def _note_attempt(job: Job, step: Step, now: datetime) -> None:
    attempt = Attempt.objects.filter(job=job, number=job.attempt)
    if step.target == lifecycle.RUNNING:
        attempt.update(started_at=now)
    else:
        attempt.update(
            ended_at=now,
            outcome=step.outcome,
            reason=job.reason,
            message=job.message,
            exit_code=job.exit_code,
        )


def _remind(jobs: list[Job], now: datetime) -> None:
    """Order the stop again of a job that is still stopping long after its last order: an order can be given up."""
    for job in jobs:
        if job.state != lifecycle.STOPPING:
            continue
        pods = Pod.objects.filter(job=job, released_at=None).values("name")
        orders = Command.objects.filter(kind=Command.STOP_POD, pod_name__in=pods)
        is_open = orders.filter(state__in=[Command.PENDING, Command.CLAIMED]).exists()
        is_recent = orders.filter(finished_at__gt=now - timedelta(seconds=REMIND_AFTER_SECONDS)).exists()
        if not is_open and not is_recent:
            order_stops(job, grace_seconds=0)


def _enforce_limits(jobs: list[Job], now: datetime) -> None:
    # idleness counts only while somebody watches: after an outage the collector first looks again
    is_watched = bool(jobs) and is_fresh(COLLECT_LEASE, WATCH_GAP_SECONDS)
    for job in jobs:
        _enforce_limit(job, now, is_watched=is_watched)


def _enforce_limit(job: Job, now: datetime, *, is_watched: bool) -> None:
    limit = limit_reached(job, now, is_watched=is_watched)
    if limit is None:
        return
    with transaction.atomic():
        event = send_towards(
            job,
            next_state=lifecycle.TIMED_OUT,
            reason=limit.reason,
            message=limit.message,
            details={"limit_seconds": limit.seconds},
            actor=SYSTEM,
        )
        if event is not None:
            Event.objects.append([event])
