"""Move jobs between states: the guarded UPDATEs shared by actions and the loop.

These write rows and return the event; the caller appends events last in its transaction (see EventManager.append).
"""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.access import Actor, reread
from controlplane.models import Command, Event
from controlplane.scheduling.mentions import told
from jobs import lifecycle
from jobs.command_kinds import FORGET_JOB, JOB, POD, STOP_POD
from jobs.models import Job, Pod

STOP_GRACE_SECONDS = 10
REMIND_AFTER_SECONDS = 30  # a stop without effect is ordered again
# A start of a process that was killed meanwhile, or that was only paused, may be on its way for this long.
LATE_START_SECONDS = 60


def request_transition(
    job: Job, *, next_state: str, reason: str, message: str, details: dict[str, Any], actor: Actor
) -> Event | None:
    """Move a job to `next_state`: at once if it holds no pods, else through `stopping` with a stop command per pod;
    the loop completes the move when they are proven gone. A stopping job changes its target only to a more final one.
    Return the event, or None if nothing changed.
    """
    fields = {"reason": reason, "message": message, "details": details}
    waiting = tuple(
        state for state in lifecycle.states_before(next_state) if state not in lifecycle.ACTIVE_STATES
    )
    if move(job, waiting, next_state, **fields, **ending(job, next_state)):
        return job_event(f"job.{next_state}", job, actor)
    if move(
        job, lifecycle.states_before(lifecycle.STOPPING), lifecycle.STOPPING, next_state=next_state, **fields
    ):
        request_stops(job)
        return job_event("job.stopping", job, actor, {"next_state": next_state})
    if _retarget(job, next_state, fields):
        return job_event("job.stopping", job, actor, {"next_state": next_state})
    return None


def move(job: Job, sources: tuple[str, ...], target: str, **fields: Any) -> bool:
    """Move a job, guarded by its state, and reload it. Return False if its state was not in `sources`. Raises
    IllegalMove for a transition that the table does not allow.
    """
    for source in sources:
        lifecycle.check_move(source, target)
    moved = Job.objects.filter(pk=job.pk, state__in=sources).update(state=target, **fields)
    reread(job)
    return moved == 1


def ending(job: Job, next_state: str) -> dict[str, Any]:
    """Return the further columns that change when a job reaches `next_state`; {} unless it is final."""
    if not lifecycle.is_final(next_state):
        return {}
    now, keep_seconds = timezone.now(), job.spec["ttl_seconds_after_finished"]
    expires_at = now + timedelta(seconds=keep_seconds) if keep_seconds else None
    return {"finished_at": now, "expires_at": expires_at, "queue_position": None, "not_before": None}


def request_stops(job: Job, grace_seconds: int = STOP_GRACE_SECONDS) -> None:
    """Write a stop command for every pod of the job that is not proven gone."""
    pods = Pod.objects.filter(job=job, released_at=None).values_list("name", "node__cluster_id")
    Command.objects.bulk_create(
        Command(
            kind=STOP_POD,
            cluster_id=cluster_id,
            subject_kind=POD,
            subject_id=name,
            payload={"grace_seconds": grace_seconds, "project": job.project.name},
        )
        for name, cluster_id in pods
    )


def remove(job: Job, actor: Actor) -> Event:
    """Delete a finished job with its history, and write commands that remove its files, checkpoints and logs."""
    event = job_event("job.deleted", job, actor)
    # again after a while: a start that was on its way may have made a working directory meanwhile
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
    """Return an unsaved event about a job's current state. An event that is not a change of state, such as an opened
    shell, names the actor and omits the job's reason.
    """
    verb = kind.partition(".")[2]
    is_move = verb == job.state
    about = {"details": kept} if is_move and (kept := told(job.reason, job.details)) else {}
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
    """Change a stopping job's target to a more lasting one only: queue, then suspension, then an end."""
    if lifecycle.is_final(next_state):
        weaker: tuple[str, ...] = (lifecycle.QUEUED, lifecycle.SUSPENDED)
    else:
        weaker = (lifecycle.QUEUED,) if next_state == lifecycle.SUSPENDED else ()
    aiming_elsewhere = Job.objects.filter(pk=job.pk, state=lifecycle.STOPPING, next_state__in=weaker)
    changed = aiming_elsewhere.update(next_state=next_state, **fields)
    reread(job)
    return changed == 1
