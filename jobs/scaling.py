"""Change the number of workers of an elastic job: at once while it is queued, by a scale operation while it
runs."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from controlplane.access import Actor, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, invalid
from controlplane.actions.events import announce
from controlplane.fields import LONGEST_MESSAGE
from jobs import lifecycle
from jobs.kinds.elastic import sizes_text
from jobs.kinds.membership import OPEN_STATES, PENDING, Candidate, ScalePlan, choose_leavers
from jobs.kinds.registry import KINDS
from jobs.models import Generation, Job, Pod, ScaleOperation
from jobs.room import bounds_of
from jobs.transitions import job_event, move

TIMEOUT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Scaling:
    """A requested number of `workers`, to reach within `timeout_seconds`. `leaving`: ranks to remove."""

    workers: int
    timeout_seconds: int = TIMEOUT_SECONDS
    leaving: tuple[int, ...] = ()


def plan_scaling(job: Job, asked: Scaling) -> ScalePlan:
    """Return what `scale_job` would do now for the request `asked`; raises the errors of `scale_job`. Changes
    nothing."""
    _check_bounds(job, asked)
    if job.state in (lifecycle.QUEUED, lifecycle.SUSPENDED):
        return ScalePlan(job.pods_wanted, asked.workers)
    _refuse_second(job)
    members = _members(job)
    if asked.workers == len(members):
        raise invalid("/workers", "unchanged", f"{job.name} has {len(members)} workers already.")
    if asked.workers > len(members):
        _check_quota(job, len(members), asked)
    leaving = _leavers(job, members, asked)
    return ScalePlan(len(members), asked.workers, leaving)


def scale_job(
    job: Job,
    workers: int,
    *,
    actor: Actor,
    timeout_seconds: int = TIMEOUT_SECONDS,
    leaving: Collection[int] = (),
) -> ScaleOperation:
    """Change the number of workers of an elastic job. A queued or suspended job requests the new number from now on.
    For a running job the loop carries out the returned operation, and rolls it back if it is not done in
    `timeout_seconds`. `leaving`: ranks to remove, by default chosen by `choose_leavers`.

    Raises Invalid for a number that is not allowed or that a running job has already, or wrong ranks in `leaving`;
    Conflict if the job's kind or state, an open operation or a quota forbids it.
    """
    asked = Scaling(workers, timeout_seconds, tuple(leaving))
    try:
        with transaction.atomic():
            # Lock before planning: the loop may have changed the job since it was read.
            reread(job, lock=True)
            plan = plan_scaling(job, asked)
            operation = _begin(job, plan, asked, actor)
            sizes = {"from": plan.from_workers, "to": plan.to_workers}
            about = {**sizes, "operation": str(operation.pk), "state": operation.state}
            write_audit(
                actor, "job.scale", "job", str(job.pk), before={"workers": plan.from_workers}, after=sizes
            )
            announce(job_event("job.scaled", job, actor, about))
    # A concurrent request opened an operation; the database allows one per job.
    except IntegrityError:
        _refuse_second(job)
        raise
    return operation


def _begin(job: Job, plan: ScalePlan, asked: Scaling, actor: Actor) -> ScaleOperation:
    now = timezone.now()
    is_waiting = job.state in (lifecycle.QUEUED, lifecycle.SUSPENDED)
    if is_waiting:
        spec = {**job.spec, "workers": plan.to_workers}
        wanted = len(KINDS[job.kind].pods(spec))
        waiting = Job.objects.filter(pk=job.pk, state=job.state)
        waiting.update(spec=spec, pods_wanted=wanted)
        job.spec, job.pods_wanted = spec, wanted
    fields = {
        "requested_by": actor.name,
        "from_workers": plan.from_workers,
        "to_workers": plan.to_workers,
        "leaving": [rank for rank, _ in plan.leaving],
        "message": plan.message[:LONGEST_MESSAGE],
        "created_at": now,
    }
    if is_waiting:
        done = {"state": lifecycle.SUCCEEDED, "finished_at": now, "attempt": job.attempt}
        return ScaleOperation.objects.create(job=job, **fields, **done)
    return open_operation(job, **fields, deadline=now + timedelta(seconds=asked.timeout_seconds))


def open_operation(job: Job, **fields: Any) -> ScaleOperation:
    """Create a scale operation for the current attempt with these `fields`, and move a running job to `scaling`.
    Call it in a transaction. Raises IntegrityError if the job has an open operation."""
    # Lock the job's row first, as scale_job does: the opposite order can deadlock.
    move(job, (lifecycle.RUNNING,), lifecycle.SCALING)
    return ScaleOperation.objects.create(job=job, state=PENDING, attempt=job.attempt, **fields)


def _check_bounds(job: Job, asked: Scaling) -> None:
    bounds = KINDS[job.kind].bounds(job.spec)
    if bounds is None:
        detail = f"Only an elastic job can go to {asked.workers} workers; this one is {job.kind}."
        raise Conflict("not_elastic", detail)
    if not bounds[0] <= asked.workers <= bounds[1]:
        detail = f"{job.name} has from {bounds[0]} to {bounds[1]} workers."
        raise invalid("/workers", "out_of_bounds", detail)
    sizes = KINDS[job.kind].sizes(job.spec)
    if sizes and asked.workers not in sizes:
        raise invalid("/workers", "size_not_allowed", sizes_text(sizes, asked.workers))
    if job.is_final:
        raise Conflict(
            "job_finished", f"The job is {job.state}; submit it again with the size that you want."
        )
    if job.state == lifecycle.STOPPING:
        raise Conflict("job_stopping", f"The job is stopping and will be {job.next_state}; scale it then.")


def _refuse_second(job: Job) -> None:
    running = ScaleOperation.objects.filter(job=job, state__in=OPEN_STATES, attempt=job.attempt).first()
    if running is not None:
        raise Conflict(
            "scale_running",
            f"Operation {running.pk} of {running.requested_by} takes the job from {running.from_workers} to "
            f"{running.to_workers} workers and is {running.state}; wait for its end.",
        )


def _members(job: Job) -> tuple[int, ...]:
    """Return the ranks of the current generation. Raises Conflict for a program that does not report its
    membership."""
    newest = Generation.objects.filter(attempt__job=job, attempt__number=F("attempt__job__attempt"))
    row = newest.order_by("-number").first()
    if row is None:
        raise Conflict(
            "running_not_scaled",
            f"The job is {job.state} with {job.pods_started} workers, and its program has not joined the elastic "
            "protocol (workloads/common/elastic.py), so it cannot be resized while it runs. Suspend it, scale it and "
            "resume it: it starts again from its last checkpoint.",
        )
    return tuple(int(member["id"]) for member in row.members)


def _check_quota(job: Job, members: int, asked: Scaling) -> None:
    """Raise Conflict if the limit, or the quota of a job that may not exceed it, cannot hold the requested size
    together with open operations of other jobs. `members`: the present number of workers."""
    for bound in bounds_of(job, with_asked=True):
        possible = members + bound.left // job.milli_gpus
        if asked.workers > possible:
            raise Conflict(
                "beyond_quota",
                f"The {bound.name} of {bound.owner} is {bound.milli_gpus / 1000:g} GPUs, of which "
                f"{bound.held / 1000:g} are held or asked for: up to {possible} workers are possible now, not "
                f"{asked.workers}.",
            )


def _leavers(job: Job, members: tuple[int, ...], asked: Scaling) -> tuple[tuple[int, str], ...]:
    count = len(members) - asked.workers
    if asked.leaving:
        _check_named(members, asked.leaving, count)
        return tuple((rank, "named in the request") for rank in asked.leaving)
    return choose_leavers(candidates_of(job, members), count) if count > 0 else ()


def candidates_of(job: Job, ranks: Collection[int]) -> list[Candidate]:
    """Return a Candidate for each of these ranks of the job's current attempt, for `choose_leavers`."""
    return candidates_by_job([(job, ranks)]).get(job.pk, [])


def candidates_by_job(members: Iterable[tuple[Job, Collection[int]]]) -> dict[UUID, list[Candidate]]:
    """Return, by job id, a Candidate for each of these ranks of the jobs' current attempts; one query."""
    ranks = {job.pk: set(of_job) for job, of_job in members}
    pods = Pod.objects.filter(job__in=ranks, attempt__number=F("job__attempt")).order_by("rank")
    rows = [pod for pod in pods.select_related("node__pool") if pod.rank in ranks[pod.job_id]]
    peers = Counter((pod.job_id, pod.node_id) for pod in rows)
    found: dict[UUID, list[Candidate]] = {}
    for pod in rows:
        node, busy_seconds = pod.node, pod.step_seconds or 0.0
        one = Candidate(pod.rank, node.name, node.is_spot, busy_seconds, peers[pod.job_id, pod.node_id])
        found.setdefault(pod.job_id, []).append(one)
    return found


def _check_named(members: tuple[int, ...], named: Collection[int], count: int) -> None:
    unknown = sorted(set(named) - set(members))
    if unknown:
        ranks = ", ".join(map(str, members))
        detail = f"There is no worker {unknown[0]} that could leave; there are {ranks}."
        raise invalid("/leaving", "no_such_worker", detail)
    if len(set(named)) != count:
        detail = f"{len(set(named))} workers are named, and {max(0, count)} are to leave."
        raise invalid("/leaving", "wrong_count", detail)
