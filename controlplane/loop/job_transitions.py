"""Move jobs by the state of their pods, and stop those over a time limit (rules: jobs.kinds.attempt_outcome)."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Min, Q, QuerySet

from controlplane.access import SYSTEM
from controlplane.engines.base import DISRUPTIONS
from controlplane.fields import LONGEST_MESSAGE
from controlplane.logstore.progress import latest_progress, progress_after
from controlplane.logstore.reader import log_path
from controlplane.loop.claims import COLLECT_LEASE, WATCH_GAP_SECONDS, is_fresh
from controlplane.loop.cluster_context import context_of
from controlplane.loop.membership import newest_generations, ranks_of
from controlplane.models import Cluster, Command, Event
from controlplane.models.prepared import prepared
from controlplane.scheduling.mentions import public
from controlplane.scheduling.reasons import DISRUPTED, words_for
from jobs import lifecycle
from jobs.command_kinds import STOP_POD
from jobs.kinds.attempt_outcome import PodStanding, Step, next_step, waits_for
from jobs.kinds.membership import Worker, deciding
from jobs.kinds.registry import KINDS
from jobs.limits import limit_reached
from jobs.models import Attempt, Job, Pod
from jobs.transitions import (
    LONGEST_GRACE_SECONDS,
    REMIND_AFTER_SECONDS,
    Move,
    Target,
    ending,
    job_event,
    move,
    move_together,
    remove,
    request_stops,
    send,
    stop_pods,
)

# An attempt that ran for this long shows that its nodes suit it: earlier disruptions no longer count.
SETTLED_IN = timedelta(minutes=10)
# Jobs moved in one transaction; kept small, because other writers wait for it.
BATCH = 100


def settle_jobs(cluster: Cluster, now: datetime) -> None:
    """Move every job of a cluster as far as its pods and time limits require, and repeat stops that have had no
    effect."""
    jobs = move_jobs(cluster, now)
    _enforce_limits([job for job in jobs if job.state in lifecycle.RUNNING_STATES], now)
    _retry_stops(jobs, now)


def move_jobs(cluster: Cluster, now: datetime) -> list[Job]:
    """Move every job of a cluster as far as its pods require, store why starting jobs wait, and return the jobs that
    were examined. For an unreachable cluster this is enough: its pods keep their last state, unless an operator
    declares a node dead."""
    jobs = context_of(cluster).unsettled.read(cluster)
    standings = _standings(jobs) if jobs else {}
    memberships = newest_generations([job for job in jobs if KINDS[job.kind].is_elastic])
    moving = []
    for job in jobs:
        pods = standings.get((job.pk, job.attempt), [])
        step = _next_step(job, pods, now, ranks_of(memberships.get(job.pk)))
        if step is not None:
            moving.append((job, step))
        elif job.state == lifecycle.STARTING:
            _show_waiting(job, pods)
    # Separate, so that each transaction locks its rows in key order.
    stops, ends = ([one for one in moving if one[1].is_stop is is_stop] for is_stop in (True, False))
    for steps in (stops, ends):
        for first in range(0, len(steps), BATCH):
            _settle(steps[first : first + BATCH], now)
    return jobs


def remove_expired(cluster: Cluster, now: datetime) -> None:
    """Remove finished jobs whose time to live is over, and deleted jobs that have ended; at most 100 per call."""
    finished = _expired(cluster.pk, now)
    if finished:
        with transaction.atomic():
            Event.objects.append([remove(job, SYSTEM) for job in finished])


@prepared
def _expired(cluster: int, now: datetime) -> QuerySet[Job]:
    over = Q(expires_at__lte=now) | Q(is_deleted=True)
    expired = Job.objects.filter(over, project__cluster=cluster, state__in=lifecycle.FINAL_STATES)
    # The limit bounds the transaction; the rest is removed in the next cycle.
    return expired.select_related("project")[:100]


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
        standing = PodStanding(
            rank, state, exit_code, released_at is not None, reason, message, reason in DISRUPTIONS
        )
        found[job_id, number].append(standing)
    return found


def _next_step(
    job: Job, pods: list[PodStanding], now: datetime, members: tuple[int, ...] = ()
) -> Step | None:
    disruptions = _disruptions(job, now) if any(pod.is_disrupted for pod in pods) else 0
    kind, retries = KINDS[job.kind], job.spec["retries"]
    return next_step(
        kind,
        job.state,
        job.next_state,
        job.failures,
        retries,
        pods,
        disruptions,
        _deciding(job, pods, members),
    )


def _deciding(job: Job, pods: list[PodStanding], members: tuple[int, ...]) -> list[PodStanding]:
    """Return the pods that decide the outcome of an attempt: all, or for an elastic attempt (`members`: their ranks)
    only the present members."""
    if not members:
        return pods
    is_over = ("succeeded", "failed")
    workers = [Worker(pod.rank, pod.state not in is_over, exit_code=pod.exit_code) for pod in pods]
    fewest, _ = KINDS[job.kind].bounds(job.spec) or (1, 1)
    ranks = deciding(workers, members, fewest)
    return [pod for pod in pods if pod.rank in ranks]


def _disruptions(job: Job, now: datetime) -> int:
    """Return how many attempts before the current one were disrupted in a row, or about 10 if more were. An attempt
    that ran for SETTLED_IN ends the count."""
    count = 0
    attempts = Attempt.objects.filter(job=job).order_by("-number")
    columns = ("number", "outcome", "started_at", "ended_at")
    # More than the number of back-off steps makes no difference, so the newest ten are enough.
    for number, outcome, started_at, ended_at in attempts.values_list(*columns)[:10]:
        ran = (ended_at or now) - (started_at or ended_at or now)
        is_earlier = number < job.attempt
        if ran >= SETTLED_IN or (is_earlier and outcome != DISRUPTED):
            break
        count += is_earlier
    return count


def _show_waiting(job: Job, pods: list[PodStanding]) -> None:
    """Show in a starting job what its pods wait for, with an event. `_started_for` restores the reason for the
    start."""
    pod = waits_for(pods)
    if pod is None:
        return
    message = words_for(pod.reason, pod.message)
    if (job.reason, job.message) == (pod.reason, message):
        return
    columns = {"reason": pod.reason, "message": message, "details": {"started": job.reason, **job.details}}
    with transaction.atomic():
        if Job.objects.filter(pk=job.pk, state=lifecycle.STARTING).update(**columns):
            job.reason, job.message = pod.reason, message
            Event.objects.append([job_event("job.starting", job, SYSTEM)])


def _settle(steps: Sequence[tuple[Job, Step]], now: datetime) -> None:
    """Apply the steps in one transaction, each only if the job's state is still as it was read."""
    with transaction.atomic():
        events = []
        finished = _finish([(job, step) for job, step in steps if not step.is_stop], now)
        for job, step in steps:
            moved = _begin_ending(job, step, now) if step.is_stop else job.pk in finished
            if moved and job.is_deleted and job.is_final:
                events.append(remove(job, SYSTEM))
            elif moved:
                events.append(job_event(f"job.{job.state}", job, SYSTEM, {"exit_code": job.exit_code}))
        if events:
            Event.objects.append(events)


def _begin_ending(job: Job, step: Step, now: datetime) -> bool:
    """Stop the remaining pods of an attempt whose outcome is decided; the job moves on when they are gone. Return
    False, with nothing written, if the job's state has changed since it was read."""
    fields = {
        "next_state": step.target,
        "reason": step.reason,
        "message": step.message[:LONGEST_MESSAGE],
        "details": dict(step.details),
        "exit_code": step.exit_code,
    }
    if not move(job, lifecycle.WORKING_STATES, lifecycle.STOPPING, **fields, **_counted(job, step, now)):
        return False
    request_stops(job)
    return True


def _finish(steps: Sequence[tuple[Job, Step]], now: datetime) -> frozenset[Any]:
    """Move jobs whose attempts have ended or begun to run. Return the primary keys of those that moved: their state
    was still as read."""
    unchanged = ("next_state", "attempt", "is_deleted")
    moves = [Move(job, step.target, _finished(job, step, now), unchanged) for job, step in steps]
    moved = frozenset(job.pk for job in move_together(moves))
    _note_attempts([(job, step) for job, step in steps if job.pk in moved], now)
    return moved


def _finished(job: Job, step: Step, now: datetime) -> dict[str, Any]:
    """Return the columns of a job that moves to the step's target. Also updates the attempt, as `_unseen_start`
    does."""
    fields: dict[str, Any] = {**ending(job, step.target), **_counted(job, step, now)}
    if step.reason:
        fields |= {
            "reason": step.reason,
            "message": step.message[:LONGEST_MESSAGE],
            "details": dict(step.details),
        }
    if step.target == lifecycle.RUNNING:
        fields |= {"started_at": now, "active_at": now, **_started_for(job)}
    else:
        # If the outcome was decided before the last pods stopped, the exit code that decided it is kept.
        exit_code = step.exit_code if job.exit_code is None else job.exit_code
        fields |= {"allocated_milli": 0, "next_state": "", "exit_code": exit_code, "gpu_utilization": None}
        fields |= _unseen_start(job)
    if job.state == lifecycle.STOPPING and step.target in (lifecycle.QUEUED, lifecycle.SUSPENDED):
        fields |= _last_checkpoint(job)
    if step.target == lifecycle.QUEUED:
        fields |= {"queued_at": now}
    return fields


def _last_checkpoint(job: Job) -> dict[str, Any]:
    """Return the columns that add the last checkpoint of a stopped attempt to the job's progress; {} if its log has
    none, or is not copied from the cluster yet. Telemetry may not have read the end of the log yet, and adds it
    later."""
    newest = newest_generations([job]) if KINDS[job.kind].is_elastic else {}
    speaker = next(iter(ranks_of(newest.get(job.pk))), 0)
    path = log_path(settings.LOG_DIR, str(job.pk), job.attempt, speaker)
    try:
        found = latest_progress(path)
    # The transition must not fail for want of progress.
    except (OSError, ValueError):
        return {}
    if found is None or found.checkpoint_at is None:
        return {}
    return {"progress": {**job.progress, **progress_after(job.progress, found)}}


def _unseen_start(job: Job) -> dict[str, Any]:
    """Return the column with the start time of an attempt that ended before it was seen running: that of its first
    pod. {} if it was seen running, or if no pod started. Updates the attempt."""
    if job.state in lifecycle.RUNNING_STATES:
        return {}
    pods = Pod.objects.filter(job=job, attempt__number=job.attempt, attempt__started_at=None)
    first = pods.aggregate(first=Min("started_at"))["first"]
    if first is None:
        return {}
    Attempt.objects.filter(job=job, number=job.attempt).update(started_at=first)
    return {"started_at": first}


def _started_for(job: Job) -> dict[str, Any]:
    """Return the columns that restore the reason for the start, which `_show_waiting` replaced; {} if it did not."""
    if "started" not in job.details:
        return {}
    details = {name: value for name, value in job.details.items() if name != "started"}
    reason = job.details["started"]
    return {"reason": reason, "message": public(reason, details)[:LONGEST_MESSAGE], "details": details}


def _counted(job: Job, step: Step, now: datetime) -> dict[str, Any]:
    """Return the columns by which the step counts a failure and delays the next attempt; {} if it does neither."""
    failures = {"failures": job.failures + 1} if step.is_retry else {}
    wait = timedelta(seconds=step.backoff_seconds)
    return failures | ({"not_before": now + wait} if wait else {})


def _note_attempts(moved: Sequence[tuple[Job, Step]], now: datetime) -> None:
    """Write the start or the end, with its outcome, of the current attempts of moved jobs; equal changes share one
    UPDATE."""
    alike: dict[str, tuple[dict[str, Any], list[Any]]] = {}
    for job, step in moved:
        fields: dict[str, Any] = {"started_at": now}
        if step.target != lifecycle.RUNNING:
            fields = {
                "ended_at": now,
                "outcome": step.outcome,
                "reason": job.reason,
                "message": job.message,
                "exit_code": job.exit_code,
            }
        alike.setdefault(repr((job.attempt, fields)), (fields, []))[1].append(job)
    for fields, jobs in alike.values():
        Attempt.objects.filter(job__in=jobs, number=jobs[0].attempt).update(**fields)


def _retry_stops(jobs: list[Job], now: datetime) -> None:
    """Repeat the stops of jobs that are still stopping long after their last stop command, which may have been given
    up."""
    for job in jobs:
        if job.state != lifecycle.STOPPING:
            continue
        pods = list(Pod.objects.filter(job=job, released_at=None).values_list("name", flat=True))
        orders = Command.objects.filter(kind=STOP_POD, subject_id__in=pods)
        is_recent = orders.filter(finished_at__gt=now - timedelta(seconds=REMIND_AFTER_SECONDS)).exists()
        if not is_recent and not orders.unfinished().exists():
            stop_pods(job.project, _without_grace(pods, orders, now), 0)


def _without_grace(pods: Sequence[str], orders: QuerySet[Command], now: datetime) -> list[str]:
    """Return the pods that may be killed without a grace period: those whose last stop with one ran out more than
    REMIND_AFTER_SECONDS ago, and those without such a stop. `orders`: the stop commands."""
    since = now - timedelta(seconds=LONGEST_GRACE_SECONDS + REMIND_AFTER_SECONDS)
    done = orders.filter(state=Command.DONE, finished_at__gt=since, payload__grace_seconds__gt=0)
    last = {order.subject_id: order for order in done.order_by("pk")}
    return [name for name in pods if name not in last or not _is_in_time(last[name], now)]


def _is_in_time(order: Command, now: datetime) -> bool:
    """Return whether a stop that was executed may still take effect: its grace period and REMIND_AFTER_SECONDS have
    not passed."""
    seconds = order.payload["grace_seconds"] + REMIND_AFTER_SECONDS
    return order.finished_at is not None and now < order.finished_at + timedelta(seconds=seconds)


def _enforce_limits(jobs: list[Job], now: datetime) -> None:
    # Idle time counts only while telemetry is collected; after an outage it must be measured anew.
    is_watched = bool(jobs) and is_fresh(COLLECT_LEASE, WATCH_GAP_SECONDS)
    for job in jobs:
        _enforce_limit(job, now, is_watched=is_watched)


def _enforce_limit(job: Job, now: datetime, *, is_watched: bool) -> None:
    limit = limit_reached(job, now, is_watched=is_watched)
    if limit is None:
        return
    details = {"limit_seconds": limit.seconds}
    send([(job, Target(lifecycle.TIMED_OUT, limit.reason, limit.message, details))])
