"""Move jobs between states: the only code that writes a job's state, used by actions and the loop.

`send` is a whole transaction. The others write rows and return events, which the caller appends last in its
own transaction (see EventManager.append).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.access import SYSTEM, Actor, reread
from controlplane.fields import LONGEST_MESSAGE
from controlplane.models import Command, Event, Project
from controlplane.models.bulk_insert import insert_rows
from controlplane.models.bulk_update import Change, change_rows
from controlplane.scheduling.mentions import details_to_store
from jobs import lifecycle
from jobs.command_kinds import FORGET_JOB, JOB, POD, STOP_POD
from jobs.models import Job, Pod

STOP_GRACE_SECONDS = 10
# Longer than for other stops: the user wants the checkpoint more than the GPUs at once.
SUSPEND_GRACE_SECONDS = 60
LONGEST_GRACE_SECONDS = 3600
# A stop that had no effect after this time is repeated, because it may not have reached its pod.
REMIND_AFTER_SECONDS = 30
# A start command may still arrive for this long, if its process was killed or paused.
LATE_START_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Target:
    """The state that a job shall reach, and the cause. `grace_seconds`: time from the stop signal, on which
    programs save a checkpoint, to the kill."""

    state: str
    reason: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)
    grace_seconds: int = STOP_GRACE_SECONDS

    def columns(self) -> dict[str, Any]:
        """Return the columns of a job that store the cause; the message is truncated to LONGEST_MESSAGE."""
        return {
            "reason": self.reason,
            "message": self.message[:LONGEST_MESSAGE],
            "details": dict(self.details),
        }


@dataclass(frozen=True, slots=True)
class Move:
    """A job's next state with further columns, written only if its state and the columns `unchanged` are as
    they were read."""

    job: Job
    state: str
    fields: Mapping[str, Any]
    unchanged: tuple[str, ...] = ()


def send(targets: Iterable[tuple[Job, Target]], actor: Actor = SYSTEM) -> list[Event]:
    """Request the transition of each (job, target) in one transaction and append their events. Return the events;
    jobs that did not move have none."""
    with transaction.atomic():
        events = request_transitions(targets, actor)
        Event.objects.append(events)
    return events


def request_transitions(targets: Iterable[tuple[Job, Target]], actor: Actor) -> list[Event]:
    """Request the transition of each (job, target) in key order, the lock order of every writer of several rows.
    Return the events of jobs that moved, for the caller to append."""
    in_order = sorted(targets, key=lambda one: str(one[0].pk))
    events = (request_transition(job, target, actor) for job, target in in_order)
    return [event for event in events if event is not None]


def request_transition(job: Job, target: Target, actor: Actor) -> Event | None:
    """Move a job to its target: at once if it is queued or suspended, else through `stopping` with a stop command
    per pod. The loop completes the move when the pods are proven gone. A stopping job changes its target only to
    a more final one, and a suspended job is not requeued: only a user resumes it. Return the event, None if
    nothing changed."""
    fields, next_state = target.columns(), target.state
    without_pods = (lifecycle.QUEUED, lifecycle.SUSPENDED) if next_state != lifecycle.QUEUED else ()
    waiting = tuple(state for state in lifecycle.states_before(next_state) if state in without_pods)
    if move(job, waiting, next_state, **fields, **ending(job, next_state)):
        return job_event(f"job.{next_state}", job, actor)
    running = lifecycle.states_before(lifecycle.STOPPING)
    if move(job, running, lifecycle.STOPPING, next_state=next_state, **fields):
        request_stops(job, target.grace_seconds)
        return job_event("job.stopping", job, actor, {"next_state": next_state})
    if _retarget(job, next_state, fields):
        shorten_stops(job, target.grace_seconds)
        return job_event("job.stopping", job, actor, {"next_state": next_state})
    return None


def move_together(moves: Sequence[Move]) -> list[Job]:
    """Move many jobs in a fixed number of statements. Return those whose rows were as read; only their objects are
    updated. Raises IllegalMove for a transition that the table does not allow. Needs an open transaction."""
    changes = {}
    for one in moves:
        lifecycle.check_move(one.job.state, one.state)
        guard = {name: getattr(one.job, name) for name in ("state", *one.unchanged)}
        changes[one.job.pk] = Change(one.job.pk, guard, {"state": one.state, **one.fields})
    written = change_rows(Job, list(changes.values()))
    moved = [one.job for one in moves if one.job.pk in written]
    for job in moved:
        changes[job.pk].repeat_in(job)
    return moved


def move(job: Job, sources: tuple[str, ...], target: str, **fields: Any) -> bool:
    """Move a job from one of `sources` to `target` by a conditional UPDATE that also writes `fields`, and reload
    it. Return False if its state was not in `sources`. Raises IllegalMove for a transition that the table does
    not allow."""
    for source in sources:
        lifecycle.check_move(source, target)
    # One statement: of two concurrent writers, the second matches no row.
    moved = Job.objects.filter(pk=job.pk, state__in=sources).update(state=target, **fields)
    reread(job)
    return moved == 1


def ending(job: Job, next_state: str) -> dict[str, Any]:
    """Return the additional columns to write when a job reaches `next_state`; {} unless it is final."""
    if not lifecycle.is_final(next_state):
        return {}
    now, keep_seconds = timezone.now(), job.spec["ttl_seconds_after_finished"]
    expires_at = now + timedelta(seconds=keep_seconds) if keep_seconds else None
    return {"finished_at": now, "expires_at": expires_at, "queue_position": None, "not_before": None}


def request_stops(job: Job, grace_seconds: int = STOP_GRACE_SECONDS) -> None:
    """Queue the stop of every pod of the job that is not proven gone. `grace_seconds`: from SIGTERM to SIGKILL."""
    pods = Pod.objects.filter(job=job, released_at=None)
    stop_pods(job.project, pods.values_list("name", flat=True), grace_seconds)


def shorten_stops(job: Job, grace_seconds: int) -> None:
    """Send the stop command again with `grace_seconds` to the job's pods whose last stop command had a longer
    grace."""
    names = Pod.objects.filter(job=job, released_at=None).values_list("name", flat=True)
    orders = Command.objects.filter(kind=STOP_POD, subject_kind=POD, subject_id__in=names).order_by("pk")
    given = {name: payload["grace_seconds"] for name, payload in orders.values_list("subject_id", "payload")}
    longer = [name for name, seconds in given.items() if seconds > grace_seconds]
    stop_pods(job.project, longer, grace_seconds)


def stop_pods(
    project: Project, names: Iterable[str], grace_seconds: int, not_before: datetime | None = None
) -> None:
    """Queue the stop of each of these pods of the project's cluster. `grace_seconds`: from SIGTERM to SIGKILL;
    `not_before`: the earliest time of the stop, None for now."""
    later = {} if not_before is None else {"not_before": not_before}
    insert_rows(
        Command(
            kind=STOP_POD,
            cluster_id=project.cluster_id,
            subject_kind=POD,
            subject_id=name,
            payload={"grace_seconds": grace_seconds, "project": project.name},
            **later,
        )
        for name in names
    )


def remove(job: Job, actor: Actor) -> Event:
    """Delete a finished job with its history, and queue commands that remove its files, checkpoints and logs.
    Return the event, which the caller appends. Needs an open transaction."""
    event = job_event("job.deleted", job, actor)
    # Run again later: a start that was under way may have created a working directory since.
    for wait in (0, LATE_START_SECONDS) if job.attempt else (0,):
        Command.objects.create(
            kind=FORGET_JOB,
            cluster_id=job.project.cluster_id,
            subject_kind=JOB,
            subject_id=str(job.pk),
            not_before=timezone.now() + timedelta(seconds=wait),
        )
    job.delete()
    return event


def job_event(kind: str, job: Job, actor: Actor, data: dict[str, Any] | None = None) -> Event:
    """Return an unsaved event about a job's current state. `kind`: such as `job.running`; one that does not end with
    the job's state, such as `job.shell_opened`, names the actor and omits the job's reason. `data`: further fields
    of the event."""
    verb = kind.partition(".")[2]
    is_move = verb == job.state
    about = {"details": kept} if is_move and (kept := details_to_store(job.reason, job.details)) else {}
    return Event(
        kind=kind,
        job_id=job.pk,
        project_id=job.project_id,
        actor=actor.name,
        reason=job.reason if is_move else "",
        message=(is_move and job.message) or f"{verb.replace('_', ' ').capitalize()} by {actor.name}.",
        data={"state": job.state, "name": job.name, **about, **(data or {})},
    )


def _retarget(job: Job, next_state: str, fields: dict[str, Any]) -> bool:
    """Change a stopping job's target to `next_state`, and write `fields`, if that is more final, in the order
    queued, suspended, ended. Return whether it changed."""
    if lifecycle.is_final(next_state):
        weaker: tuple[str, ...] = (lifecycle.QUEUED, lifecycle.SUSPENDED)
    else:
        weaker = (lifecycle.QUEUED,) if next_state == lifecycle.SUSPENDED else ()
    aiming_elsewhere = Job.objects.filter(pk=job.pk, state=lifecycle.STOPPING, next_state__in=weaker)
    changed = aiming_elsewhere.update(next_state=next_state, **fields)
    reread(job)
    return changed == 1
