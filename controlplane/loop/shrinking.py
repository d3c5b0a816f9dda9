"""Shrink elastic jobs that are preempted, instead of stopping them: only the workers on the GPUs of the job that gets
these leave. For jobs whose programs follow the membership while they run."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from controlplane.access import SYSTEM
from controlplane.engines.base import MEMBERSHIP, Engine
from controlplane.loop.membership import (
    FORCED_CAUSES,
    GIVEN_UP,
    Attended,
    ElasticJobs,
    is_alive,
    lock_working,
)
from controlplane.models import Command, Event
from controlplane.scheduling.plan import Hold, Plan, Preempt
from controlplane.scheduling.sizes import largest_size
from controlplane.scheduling.view import PodPlacement
from jobs.command_kinds import POD, STOP_POD
from jobs.kinds import membership as rules
from jobs.kinds.membership import choose_leavers
from jobs.kinds.registry import KINDS
from jobs.models import Allocation, Job, ScaleOperation
from jobs.scaling import candidates_of, open_operation
from jobs.transitions import job_event

# The time in which workers that leave for a reclaim must acknowledge; then they are stopped, because their GPUs are
# owed to another project.
GRACE_SECONDS = 30
# Causes of operations that no user requested, and for how many seconds one that is being ended delays a
# reclaim.
GROWTH, ENDING_SECONDS = ("growth", "recovery"), 10
# The cause of operations by which a job gives workers to others of its project (loop/balance.py).
BALANCE = "balance"


def shrink_victims(elastic: ElasticJobs, engine: Engine, plan: Plan, now: datetime) -> Plan:
    """Begin to shrink preempted jobs where possible. Return the plan without the preemptions of these; the jobs that
    wait for them get `is_shrinking` in their details."""
    if MEMBERSHIP not in engine.capabilities or not plan.preempts:
        return plan
    attended = elastic.with_members()
    if not attended:
        return plan
    spared = {
        preempt.job
        for preempt in plan.preempts
        if preempt.job in attended and _shrink(attended[preempt.job], preempt, plan, now)
    }
    return replace(
        plan,
        preempts=tuple(item for item in plan.preempts if item.job not in spared),
        holds=tuple(_with_shrinking(hold, spared) for hold in plan.holds),
        growth=tuple(replace(one, stopping=tuple(_marked(one.stopping, spared))) for one in plan.growth),
    )


def _with_shrinking(hold: Hold, spared: Collection[str]) -> Hold:
    """Return the hold with `is_shrinking` for each of its stopping jobs that only shrinks. `spared`: the ids of
    these."""
    stopping = hold.details.get("stopping") or ()
    if not any(one["job"] in spared for one in stopping):
        return hold
    return replace(hold, details={**hold.details, "stopping": _marked(stopping, spared)})


def _marked(stopping: Iterable[Mapping[str, Any]], spared: Collection[str]) -> list[Mapping[str, Any]]:
    return [{**one, "is_shrinking": True} if one["job"] in spared else one for one in stopping]


def _shrink(attended: Attended, preempt: Preempt, plan: Plan, now: datetime) -> bool:
    """Begin to shrink a preempted job, or hasten the operation that frees its GPUs. Return False if the job must be
    stopped instead."""
    operation = attended.operation
    if operation is not None and operation.cause in FORCED_CAUSES:
        # It is already giving up devices; a later cycle checks which are still owed.
        hasten(operation, now + timedelta(seconds=GRACE_SECONDS))
        return True
    if operation is not None and operation.cause in GROWTH and _ends_soon(operation, now):
        # Once this operation has ended, the job can shrink in a later cycle.
        return True
    if operation is not None and operation.cause == BALANCE and _is_ending(operation, now):
        return True
    if cannot_shrink(attended, "reclaim"):
        return False
    holders = _ranks_on(attended.job, _promised(plan, preempt.beneficiary))
    leaving = sorted(holders & set(attended.members))
    if not leaving:
        return bool(holders & _ending_ranks(attended))
    chosen = None if operation is not None else to_allowed_size(attended, leaving)
    if chosen is None:
        return False
    beneficiary = Job.objects.filter(pk=preempt.beneficiary).select_related("project").first()
    whom = "another project" if beneficiary is None else beneficiary.project.name
    until = now + timedelta(seconds=GRACE_SECONDS)
    begin_shrink(attended, chosen, "reclaim", f"Its GPUs are reclaimed for {whom}.", until, now)
    return True


def _ends_soon(operation: ScaleOperation, now: datetime) -> bool:
    """End growth that no user requested: cancel it, or let a switch that has begun complete. Return whether that
    still happens within ENDING_SECONDS."""
    margin = timedelta(seconds=ENDING_SECONDS)
    until = now + margin if operation.generation else now
    return now < hasten(operation, until, message=GIVEN_UP) + margin


def _is_ending(operation: ScaleOperation, now: datetime) -> bool:
    """Limit an operation that shrinks the job for others of its project: its workers must acknowledge within
    ENDING_SECONDS of the first reclaim, and end GRACE_SECONDS later. Return whether there is still time for that."""
    until = hasten(operation, now + timedelta(seconds=ENDING_SECONDS))
    return now < until + timedelta(seconds=GRACE_SECONDS)


def to_allowed_size(attended: Attended, leaving: list[int]) -> list[int] | None:
    """Return the ranks `leaving`, and those that must leave with them so that the rest is an allowed size. None if no
    allowed size is left."""
    job, stay = attended.job, [rank for rank in attended.members if rank not in leaving]
    kind = KINDS[job.kind]
    fewest, _ = kind.bounds(job.spec) or (1, 1)
    size = largest_size(kind.sizes(job.spec), len(stay))
    if size < fewest:
        return None
    more = choose_leavers(candidates_of(job, stay), len(stay) - size) if size < len(stay) else ()
    return sorted([*leaving, *(rank for rank, _ in more)])


def hasten(operation: ScaleOperation, until: datetime, **fields: str) -> datetime:
    """Bring the deadline of an open operation forward to `until`, and set its columns `fields`; nothing is changed if
    its deadline is earlier already. Return its deadline."""
    if operation.deadline is None or operation.deadline > until:
        ScaleOperation.objects.filter(pk=operation.pk, state__in=rules.OPEN_STATES).update(
            deadline=until, **fields
        )
        operation.deadline = until
    return operation.deadline


def cannot_shrink(attended: Attended, cause: str) -> bool:
    """Return whether it is useless to shrink the job: a member has finished the training, or an operation with this
    cause has failed in this attempt."""
    if has_finisher(attended):
        return True
    before = ScaleOperation.objects.filter(job=attended.job, attempt=attended.job.attempt, cause=cause)
    return before.filter(state__in=rules.UNSUCCESSFUL).exists()


def has_finisher(attended: Attended) -> bool:
    """Return whether a member has finished the training: its program has ended with exit code 0."""
    members = (pod for pod in attended.pods if pod.rank in attended.members)
    return any(pod.exit_code == 0 and not is_alive(pod) for pod in members)


def _ending_ranks(attended: Attended) -> set[int]:
    """Return the ranks of the pods that are no members and have ended or were ordered to end: they release their
    devices anyway."""
    others = {pod.name: pod for pod in attended.pods if pod.rank not in attended.members}
    orders = Command.objects.filter(kind=STOP_POD, subject_kind=POD, subject_id__in=others)
    ordered = set(orders.values_list("subject_id", flat=True))
    return {pod.rank for name, pod in others.items() if name in ordered or not is_alive(pod)}


def _promised(plan: Plan, beneficiary: str) -> list[PodPlacement]:
    """Return the placements that the plan reserves for the job with the id `beneficiary`."""
    found = plan.promised.get(beneficiary, ())
    return [*found, *(place for one in plan.growth if one.job == beneficiary for place in one.placements)]


def _ranks_on(job: Job, places: Iterable[PodPlacement]) -> set[int]:
    """Return the ranks of the job's pods that hold a device of these placements."""
    wanted = {(place.node, index) for place in places for index, _ in place.devices}
    held = Allocation.objects.filter(pod__job=job, released_at=None)
    rows = held.values_list("pod__rank", "device__node__name", "device__index")
    return {rank for rank, node, index in rows if (node, index) in wanted}


def begin_shrink(
    attended: Attended, leaving: Collection[int], cause: str, why: str, until: datetime, now: datetime
) -> None:
    """Open an operation by which the workers with the ranks `leaving` leave, with an event; those that have not
    acknowledged by `until` are stopped. `why`: a sentence for users. Does nothing if the job is no longer running or
    has another open operation by now."""
    before, job = len(attended.members), attended.job
    try:
        with transaction.atomic():
            if not lock_working(job):
                return
            open_operation(
                job,
                requested_by=SYSTEM.name,
                from_workers=before,
                to_workers=before - len(leaving),
                cause=cause,
                message=why,
                leaving=list(leaving),
                created_at=now,
                deadline=until,
            )
            event = job_event("job.scaling", job, SYSTEM, {"leaving": list(leaving)})
            event.message = f"From {before} to {before - len(leaving)} workers. {why}"
            Event.objects.append([event])
    except IntegrityError:
        return
