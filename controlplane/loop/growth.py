"""Add workers to running elastic jobs: those that a user requested, and those that a job lost or did not get
at its start.

Growth without a user's request must not take what queued jobs wait for: it happens only while no queued job
could use the free GPUs. A job that lost workers gets them back even then, within its project's share. Workers
inside the project's quota are placed by the plan instead (scheduling/growth.py): they queue like jobs, and
other jobs are stopped for them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Max, Sum

from controlplane.access import SYSTEM, reread
from controlplane.engines.base import MEMBERSHIP, Engine
from controlplane.loop.elastic_claims import claims_by_pool, usable_gpus, working_views
from controlplane.loop.membership import GIVEN_UP, MOST, Attended, ElasticJobs, lock_working
from controlplane.loop.observe import Observation
from controlplane.loop.record import add_workers
from controlplane.loop.shrinking import BALANCE
from controlplane.models import Cluster, Event
from controlplane.scheduling import reasons
from controlplane.scheduling.division import Claim, in_turn
from controlplane.scheduling.growth import AWAITED
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.sizes import largest_size
from controlplane.scheduling.spare import spare_placements
from controlplane.scheduling.view import JobView, PodPlacement
from datasets.queries.volumes import has_missing_driver
from jobs.kinds import membership as rules
from jobs.kinds.attempt_outcome import BACKOFF_SECONDS
from jobs.models import Attempt, Generation, Job, Pod, ScaleOperation
from jobs.room import bounds_of
from jobs.scaling import open_operation
from jobs.transitions import job_event

# Reasons of held jobs that free GPUs do not resolve.
NOT_FOR_LACK_OF_GPUS = (
    reasons.PROJECT_MISSING,
    reasons.SPEC_IMPOSSIBLE,
    reasons.NO_SUCH_NODE_POOL,
    reasons.OVER_GPU_LIMIT,
    reasons.INTERACTIVE_OVER_QUOTA,
    # A claim that was deleted can be away until a user restores it.
    reasons.WAITING_FOR_VOLUME,
)
# The time within which workers added without a user's request must be ready: else their GPUs would stay idle
# with pods that never get ready.
GROW_SECONDS = 120


def grow_jobs(
    cluster: Cluster, elastic: ElasticJobs, engine: Engine, seen: Observation, plan: Plan, now: datetime
) -> bool:
    """Add workers to elastic jobs where the plan leaves room. Return whether there are new pods to start."""
    if MEMBERSHIP not in engine.capabilities or not any(map(_may_grow, elastic.latest)):
        return False
    views = working_views(seen)
    working = [one for one in elastic.read() if str(one.job.pk) in views]
    if _is_by_gain(working, seen, plan):
        plan = replace(plan, growth=())
    elif _grow_in_quota(cluster, working, plan, now):
        return True
    has_orders, promised = False, {one.job for one in plan.growth}
    # What was freed for a job's workers would be lost if it grew without them now.
    working = [one for one in working if str(one.job.pk) not in promised]
    for attended, wanted in _in_turn(working, views, seen, plan, now):
        view = views[str(attended.job.pk)]
        found = spare_placements(seen.view, plan, view, wanted, _next_rank(attended))
        has = len(attended.members)
        found = found[: max(0, largest_size(view.sizes, has + len(found)) - has)]
        is_asked = attended.operation is not None
        if found and (len(found) == wanted or not is_asked):
            has_orders |= _add(cluster, attended, found, now)
            # The view does not include these pods, so the next job grows in the next cycle.
            break
    return has_orders


def _is_by_gain(working: Iterable[Attended], seen: Observation, plan: Plan) -> bool:
    """Return whether jobs may grow just by what growth gains: no job is queued for GPUs, none is preempted, and no
    missing worker has GPUs promised."""
    has_awaited = any(AWAITED in one.job.details for one in working)
    return not (
        has_awaited or any(one.is_promised for one in plan.growth) or _are_waiting(plan, seen.view.jobs)
    )


def _grow_in_quota(cluster: Cluster, working: Iterable[Attended], plan: Plan, now: datetime) -> bool:
    """Add the workers that the plan places now. Return whether there are new pods to start."""
    by_id = {str(one.job.pk): one for one in working}
    has_orders = False
    for growth in plan.growth:
        attended = by_id.get(growth.job)
        if growth.is_promised or attended is None:
            continue
        # Since the plan's view was read, an operation may have been opened, for example by a user.
        if _still_asks(attended, len(growth.placements)):
            first = _next_rank(attended)
            places = tuple(replace(one, rank=first + one.rank) for one in growth.placements)
            has_orders |= _add(cluster, attended, places, now)
    return has_orders


def _still_asks(attended: Attended, count: int) -> bool:
    """Return whether the job still lacks `count` workers or more; with an open operation, whether that has exactly
    `count` workers to add."""
    if attended.operation is None:
        return count <= missing_workers(attended)
    return count == attended.asked_workers


def _may_grow(attended: Attended) -> bool:
    return attended.operation is not None or attended.job.pods_wanted > len(attended.members)


def _in_turn(
    working: Iterable[Attended], views: Mapping[str, JobView], seen: Observation, plan: Plan, now: datetime
) -> Iterator[tuple[Attended, int]]:
    """Yield the jobs that can grow, each with how many workers to add: first those that a user scaled, then those
    that lost workers, then the others by what growth gains. Jobs beyond the free GPUs are yielded too, because
    earlier ones may fit nowhere."""
    wanting = [(one, count) for one in working if (count := wanted_workers(one, plan, seen, now)) > 0]
    first = [one for one in wanting if _goes_before(one[0])]
    yield from sorted(first, key=lambda one: one[0].operation is None)
    left = {str(one.job.pk): (one, count) for one, count in wanting if not _goes_before(one)}
    counts = {name: count for name, (_, count) in left.items()}
    for claims in claims_by_pool(working, views, seen, counts).values() if left else ():
        # The most that any of them could use; whether its pods fit is decided one by one.
        free = max(usable_gpus(claims, views, seen, plan))
        for claim, to in _by_gain(claims, left, free):
            yield left[claim.job][0], to - claim.workers


def _by_gain(claims: Sequence[Claim], left: Collection[str], free: int) -> Iterator[tuple[Claim, int]]:
    """Yield the claims whose jobs are in `left`, each with its new number of workers, in the order of growth: first
    those that get part of the `free` GPUs, then those that would get it instead. `claims`: all of one pool."""
    while turns := [turn for turn in in_turn(claims, free) if turn[0].job in left]:
        yield from turns
        done = {claim.job for claim, _ in turns}
        claims = [replace(one, most=one.workers) if one.job in done else one for one in claims]


def _goes_before(attended: Attended) -> bool:
    return attended.operation is not None or attended.has_lost


def missing_workers(attended: Attended) -> int:
    """Return how many workers the job lacks of the number with which it was submitted or last scaled; 0 while an
    operation is open and before the attempt's first generation."""
    if attended.operation is not None or attended.generation is None:
        return 0
    return attended.job.pods_wanted - len(attended.members)


def wanted_workers(attended: Attended, plan: Plan, seen: Observation, now: datetime) -> int:
    """Return how many workers to add to the job now: those of its open operation, else those that it lacks. 0 while
    the job backs off or if limits allow no more; while other jobs wait, only workers that it lost."""
    if attended.generation is None:
        return 0
    if attended.operation is not None:
        asked = attended.asked_workers
        return asked if asked <= _allowed(attended.job) else 0
    missing = missing_workers(attended)
    if missing <= 0 or has_to_wait(attended, now):
        return 0
    if _are_waiting(plan, seen.view.jobs):
        missing = min(missing, _owed(attended, seen))
    return min(missing, _allowed(attended.job))


def _are_waiting(plan: Plan, jobs: Iterable[JobView]) -> bool:
    """Return whether a queued job could use free GPUs, or the plan preempts a job."""
    needs = {job.id: job.milli_gpus > 0 or job.gpu_memory_mib is not None for job in jobs}
    waiting = (hold for hold in plan.holds if hold.reason not in NOT_FOR_LACK_OF_GPUS)
    return bool(plan.preempts) or any(needs.get(hold.job, True) for hold in waiting)


def _owed(attended: Attended, seen: Observation) -> int:
    """Return how many lost workers a job gets back before queued jobs: as many as its project's share allows. 0 if it
    has lost none, or if the quotas exceed the cluster's GPUs, because another project could reclaim them at once."""
    job, project = attended.job, attended.job.project
    gpus = sum(len(node.devices) for node in seen.view.nodes if node.is_schedulable)
    quotas = sum(one.quota_milli_gpus or 0 for one in seen.view.projects)
    if not attended.has_lost or quotas > gpus * 1000:
        return 0
    if not job.milli_gpus:
        return MOST
    held = project.jobs.aggregate(held=Sum("allocated_milli", default=0))["held"]
    return int(max(0, max(project.gpu_quota_milli, project.fair_share_milli) - held) // job.milli_gpus)


def has_to_wait(attended: Attended, now: datetime) -> bool:
    """Return whether the job must wait before it grows again: each lost worker and each failed growth of its attempt
    lengthens the wait."""
    attempt = attended.job.attempt
    lost = Generation.objects.filter(
        attempt__job=attended.job, attempt__number=attempt, cause=rules.LOSS
    ).values_list("created_at", flat=True)
    failed = ScaleOperation.objects.filter(
        job=attended.job, attempt=attempt, state__in=rules.UNSUCCESSFUL
    ).exclude(cause__in=("user", BALANCE))
    failed = failed.exclude(message=GIVEN_UP)
    times = [*lost, *(at for at in failed.values_list("finished_at", flat=True) if at is not None)]
    if not times:
        return False
    wait = BACKOFF_SECONDS[min(len(times), len(BACKOFF_SECONDS)) - 1]
    return now < max(times) + timedelta(seconds=wait)


def _allowed(job: Job) -> int:
    """Return how many more pods the limits and quotas allow the job now; 0 if new pods could not mount its volumes."""
    if has_missing_driver(job.project, job.spec):
        return 0
    return min((bound.left // job.milli_gpus for bound in bounds_of(job)), default=MOST)


def _next_rank(attended: Attended) -> int:
    ranks = Pod.objects.filter(job=attended.job, attempt__number=attended.job.attempt)
    return int(ranks.aggregate(highest=Max("rank"))["highest"] or 0) + 1


def _add(cluster: Cluster, attended: Attended, places: tuple[PodPlacement, ...], now: datetime) -> bool:
    """Write the workers of `places` with their start commands and operation, in one transaction. Return False, with
    nothing written, if a device was taken or a limit lowered meanwhile; the next cycle decides again."""
    job = attended.job
    to = len(attended.members) + len(places)
    try:
        with transaction.atomic():
            if not lock_working(job):
                return False
            reread(job.project, lock=True)
            if len(places) > _allowed(job):
                return False
            joining = [place.rank for place in places]
            if attended.operation is not None:
                still = ScaleOperation.objects.filter(pk=attended.operation.pk, state=rules.PENDING)
                if still.update(joining=joining) != 1:
                    return False
            else:
                _begin_operation(attended, joining, to, now)
            attempt = Attempt.objects.get(job=job, number=job.attempt)
            add_workers(cluster, job, attempt, places, to)
            data = {"workers": len(places), "to": to, "nodes": sorted({place.node for place in places})}
            event = job_event("job.scaling", job, SYSTEM, data)
            count = len(places)
            starting = "1 worker starts and warms up" if count == 1 else f"{count} workers start and warm up"
            event.message = f"{starting}, to be {to} in all."
            Event.objects.append([event])
    except IntegrityError:
        # The database refused a second holder of a device, or a second operation; the next cycle decides on the
        # new rows.
        return False
    return True


def _begin_operation(attended: Attended, joining: list[int], to: int, now: datetime) -> None:
    open_operation(
        attended.job,
        requested_by=SYSTEM.name,
        from_workers=len(attended.members),
        to_workers=to,
        cause="recovery" if attended.has_lost else "growth",
        joining=joining,
        created_at=now,
        deadline=now + timedelta(seconds=GROW_SECONDS),
    )
