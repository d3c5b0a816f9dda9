"""Verbs on jobs. Each runs in one transaction, writes one event and wakes the loop once; conditional UPDATEs
guard against concurrent changes."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.access import Actor, reread
from controlplane.actions.audit import write_audit, write_audits, write_fields
from controlplane.actions.errors import Conflict, Invalid, invalid
from controlplane.actions.events import announce
from controlplane.fields import FieldError
from controlplane.models import Counter, Event, Project, User
from controlplane.models.bulk_insert import insert_rows
from datasets.actions.artifacts import note_artifacts
from datasets.actions.code import use_trees
from datasets.actions.job_data import use_datasets
from datasets.actions.mounting import bind_volumes, note_uses, volumes_created
from datasets.queries.code import SCHEME
from jobs import lifecycle
from jobs.admission import (
    Refusals,
    artifacts_refused,
    check_room_in_queue,
    code_unknown,
    datasets_unknown,
    images_unknown,
    names_in_use,
    names_twice,
    paths_not_allowed,
    too_large,
    volumes_refused,
)
from jobs.images import fill_ports
from jobs.kinds.registry import KINDS
from jobs.kinds.spec import SpecInvalid, parse_spec, to_edge
from jobs.models import Job
from jobs.transitions import SUSPEND_GRACE_SECONDS, Target, job_event, move, remove, request_transition

# Limit for a whole submission, so that a large batch gives a readable answer.
REFUSALS_LISTED = 100
# Commands can be megabytes long; the audit log keeps this many characters.
LONGEST_COMMAND = 2000
# Pointer prefix of a job that was submitted alone; jobs of a batch have their index.
_ALONE = ""


def check_submission(project: Project, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a submission with defaults filled in. Stores nothing. Raises the errors of `submit_job`."""
    [spec] = _checked(project, [body], _ALONE)
    _check_names(project, [spec], _ALONE)
    return spec


def submit_job(project: Project, body: Mapping[str, Any], *, actor: Actor) -> Job:
    """Store and return a job in the state `queued`. Raises Invalid with every refused field, Conflict if the
    project already has an unfinished job of this name or its queue is full; nothing is stored then."""
    [job] = _submit(project, [body], _ALONE, actor)
    return job


def submit_jobs(project: Project, bodies: Sequence[Mapping[str, Any]], *, actor: Actor) -> list[Job]:
    """Store jobs from these submissions, all or none, and return them in their order. Raises the errors of
    `submit_job`; their pointers begin with the job's index, such as `/jobs/3/gpus`. The number of SQL statements
    does not depend on the number of jobs."""
    return _submit(project, bodies, "/jobs/{}", actor)


def _submit(project: Project, bodies: Sequence[Mapping[str, Any]], where: str, actor: Actor) -> list[Job]:
    specs = _checked(project, bodies, where)
    try:
        with transaction.atomic():
            # In the transaction that creates the jobs: the collection of unused code cannot run in between.
            use_trees(project, [spec["code"]["tree"].removeprefix(SCHEME) for spec in specs if spec["code"]])
            made = bind_volumes(project, specs, actor)
            jobs = _new_jobs(project, specs, actor)
            note_uses(jobs)
            use_datasets(jobs)
            note_artifacts(jobs)
            volumes_created(made, actor)
            _happened("job.submitted", jobs, actor)
    except IntegrityError:
        # The constraint names no job; another process has committed the names, so this check finds them.
        _check_names(project, specs, where)
        raise
    return jobs


def _checked(project: Project, bodies: Sequence[Mapping[str, Any]], where: str) -> list[dict[str, Any]]:
    """Return the specs of the submissions; runs all checks except names in use, which the database enforces.
    `where`: see `_pointed`. Raises Invalid with the refused fields, Conflict if the queue is full."""
    specs: dict[int, dict[str, Any]] = {}
    refusals: Refusals = []
    for place, body in enumerate(bodies):
        try:
            specs[place] = parse_spec(body)
        except SpecInvalid as error:
            refusals += [(place, refused) for refused in error.errors]
    fill_ports(project, specs.values())
    refusals += too_large(project, specs) + images_unknown(project, specs)
    refusals += paths_not_allowed(specs) + names_twice(specs) + code_unknown(project, specs)
    refusals += volumes_refused(project, specs) + artifacts_refused(project, specs)
    refusals += datasets_unknown(project, specs)
    if refusals:
        raise Invalid(*_pointed(refusals, where))
    # Last, because it may count rows: invalid input is refused without that query.
    check_room_in_queue(project, len(specs))
    return list(specs.values())


def _check_names(project: Project, specs: Sequence[Mapping[str, Any]], where: str) -> None:
    refusals = names_in_use(project, dict(enumerate(specs)))
    if refusals:
        errors = _pointed(refusals, where)
        raise Conflict("name_in_use", "; ".join(error.detail for error in errors), *errors)


def _pointed(refusals: Refusals, where: str) -> list[FieldError]:
    """Return the refused fields in job order, the first REFUSALS_LISTED of them, then one entry that counts the
    omitted ones. `where`: the template of each pointer's beginning, such as `/jobs/{}`, which gets the job's index."""
    errors = [
        FieldError(where.format(place) + refused.pointer, refused.code, refused.detail)
        for place, refused in sorted(refusals, key=itemgetter(0))[:REFUSALS_LISTED]
    ]
    omitted = len(refusals) - len(errors)
    if omitted:
        errors.append(FieldError("", "and_more", f"{omitted} more fields are refused; correct these first."))
    return errors


def clone_body(job: Job, name: str) -> dict[str, Any]:
    """Return a submission body with the job's fields and the given `name`. Leaves out nulls and empty lists and
    objects, so the copy gets the defaults of these fields."""
    body = to_edge(job.spec)
    return {key: value for key, value in body.items() if value not in (None, [], {})} | {"name": name}


def stop_job(job: Job, *, actor: Actor) -> Job:
    """Request that a job stops for good. A job without pods stops at once; one with pods enters `stopping` until
    they are gone. Returns the reloaded job; a finished one is unchanged."""
    if job.is_final:
        return job
    return _begin_stop(job, Target(lifecycle.STOPPED, "stopped_by_user", f"Stopped by {actor.name}."), actor)


def suspend_job(job: Job, *, actor: Actor, grace_seconds: int = SUSPEND_GRACE_SECONDS) -> Job:
    """Request that a job releases its GPUs and is held until resumed. Its programs get SIGTERM and
    `grace_seconds` to save a checkpoint. Returns the reloaded job. Raises Conflict for a job that has ended or is
    ending."""
    message = f"Suspended by {actor.name}; resume it to queue it again."
    target = Target(lifecycle.SUSPENDED, "suspended_by_user", message, grace_seconds=grace_seconds)
    _begin_stop(job, target, actor)
    # The job may have ended since the caller read it.
    if lifecycle.SUSPENDED not in (job.state, job.next_state):
        raise Conflict("job_finished", f"The job is {job.state} and cannot be suspended.")
    return job


def resume_job(job: Job, *, actor: Actor) -> Job:
    """Queue a suspended job again with its original queue rank, and return it. Raises Conflict if it is not
    suspended."""
    with transaction.atomic():
        fields = {"reason": "just_submitted", "message": "", "queued_at": timezone.now()}
        if not move(job, (lifecycle.SUSPENDED,), lifecycle.QUEUED, **fields):
            raise Conflict("not_suspended", f"The job is {job.state}; only a suspended job can be resumed.")
        _happened("job.resumed", [job], actor)
    return job


def delete_job(job: Job, *, actor: Actor) -> None:
    """Delete a job and its history. A running job is stopped first and deleted once its pods are gone."""
    message = f"Deleted by {actor.name}."
    with transaction.atomic():
        write_audit(actor, "job.delete", "job", str(job.pk), before={"state": job.state})
        event = None
        if not job.is_final:
            Job.objects.filter(pk=job.pk).update(is_deleted=True)
            event = request_transition(job, Target(lifecycle.STOPPED, "stopped_by_user", message), actor)
        # Final already, had no pods, or ended since it was read.
        if job.is_final:
            event = remove(job, actor)
        announce(event)


def edit_job(job: Job, changes: Mapping[str, Any], *, actor: Actor) -> Job:
    """Write the job's new `changes`: its `priority`, `labels` or both, already validated by the caller. Return
    the job. Also writes an audit row and an event."""
    with transaction.atomic():
        _lock(job)
        before = {name: getattr(job, name) for name in changes}
        write_fields(job, {**changes, "spec": {**job.spec, **changes}})
        write_audit(actor, "job.edit", "job", str(job.pk), before=before, after=dict(changes))
        # The audit entry with the old values is written above, so this needs no second one.
        _happened("job.edited", [job], actor, audit=False)
    return job


def record_shell(job: Job, rank: int, *, actor: Actor) -> None:
    """Write an audit entry and event for a shell that a user opens in a pod. The gateway calls it before it
    forwards the first byte."""
    with transaction.atomic():
        write_audit(actor, "job.shell", "job", str(job.pk), after={"rank": rank})
        Event.objects.append([job_event("job.shell_opened", job, actor, {"rank": rank})])


def record_command(job: Job, rank: int, command: Sequence[str], *, actor: Actor) -> None:
    """Write an audit entry and event for a command that a user runs in a pod. The gateway calls it before the
    command starts. Only the audit log, which admins read, contains the command."""
    with transaction.atomic():
        said = {"rank": rank, "command": " ".join(command)[:LONGEST_COMMAND]}
        write_audit(actor, "job.exec", "job", str(job.pk), after=said)
        Event.objects.append([job_event("job.command_run", job, actor, {"rank": rank})])


def _begin_stop(job: Job, target: Target, actor: Actor) -> Job:
    """Request a transition (see jobs.transitions.request_transition) and write its audit row and event; write
    nothing if the job does not move. Return the job."""
    with transaction.atomic():
        event = request_transition(job, target, actor)
        if event is None:
            return job
        write_audit(actor, event.kind, "job", str(job.pk), after={"state": job.state})
        announce(event)
    return job


def _lock(job: Job) -> None:
    """Read the job and lock its row until this transaction ends."""
    # `spec` is written as a whole: without the lock a concurrent scale or edit would be lost.
    reread(job, lock=True)


def _new_jobs(project: Project, specs: Sequence[dict[str, Any]], actor: Actor) -> list[Job]:
    if actor.user is None:
        raise invalid("/user", "user_required", "A job belongs to a user.")
    # The counter's row lock serialises submissions: ranks are unique, and of two submissions with the same
    # name the second waits and is then refused.
    last = Counter.objects.advance("submission", len(specs))
    ranks = range(last - len(specs) + 1, last + 1)
    jobs = (_new_job(project, actor.user, spec, rank) for spec, rank in zip(specs, ranks, strict=True))
    return insert_rows(jobs)


def _new_job(project: Project, user: User, spec: dict[str, Any], rank: int) -> Job:
    return Job(
        project=project,
        user=user,
        name=spec["name"],
        kind=spec["kind"],
        spec=spec,
        labels=spec["labels"],
        priority=spec["priority"],
        is_preemptible=spec["preemptible"],
        milli_gpus=spec["gpus"],
        gpu_memory_mib=spec["gpu_memory_mib"],
        max_runtime_seconds=spec["max_runtime_seconds"],
        pods_wanted=len(KINDS[spec["kind"]].pods(spec)),
        submit_rank=rank,
    )


def _happened(kind: str, jobs: Sequence[Job], actor: Actor, *, audit: bool = True) -> None:
    if audit:
        write_audits(actor, kind, "job", {str(job.pk): {"state": job.state} for job in jobs})
    announce(*[job_event(kind, job, actor) for job in jobs])
