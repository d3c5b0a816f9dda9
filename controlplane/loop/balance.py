"""Shrink elastic jobs for other jobs of their project: for queued jobs or, if none is queued, for running jobs that
gain more by the workers.

Workers beyond a job's minimum are lent by its project, so the project's other jobs come first; between projects only
quotas and fair shares decide. No job shrinks while a job of another project is queued or a job of its own project is
being resized. None shrinks for a running job while a job of another project can grow on the same nodes. Later cycles
assign what was released, by the scheduler's starts and by growth (loop/growth.py).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models import F

from controlplane.engines.base import MEMBERSHIP, Engine
from controlplane.loop.elastic_claims import Pool, claims_by_pool, pool_of, usable_gpus, working_views
from controlplane.loop.growth import NOT_FOR_LACK_OF_GPUS, wanted_workers
from controlplane.loop.membership import Attended, ElasticJobs
from controlplane.loop.observe import Observation
from controlplane.loop.shrinking import BALANCE, begin_shrink, has_finisher
from controlplane.scheduling import reasons
from controlplane.scheduling.division import Claim, after_moves
from controlplane.scheduling.fit import pools_for, request_of
from controlplane.scheduling.limits import is_backing_off
from controlplane.scheduling.plan import Hold, Plan
from controlplane.scheduling.scale_down import PendingJob, ShrinkableJob, workers_to_remove
from controlplane.scheduling.spare import room_after, usable_nodes
from controlplane.scheduling.view import JobView
from jobs.kinds import membership as rules
from jobs.kinds.membership import choose_leavers
from jobs.models import ScaleOperation
from jobs.scaling import candidates_by_job, candidates_of

FOR_WAITING, FOR_RUNNING = (
    "A job of its project waits for them.",
    "Its project's other jobs gain more by them.",
)
# A job that has just changed its size gives nothing. To running jobs it gives only after twice as long for each time
# that it has given before in its attempt: what speeds and remaining times are reported can be wrong, and must not
# resize a job again and again.
REST, MOST_DOUBLINGS = timedelta(seconds=60), 12
# How long leaving workers have to acknowledge; then the job keeps them, because no other project is owed
# their GPUs.
LEAVE = timedelta(seconds=30)
# Reasons of waiting jobs that could start if GPUs became free.
LACKS_GPUS = (reasons.CLUSTER_FULL, reasons.OVER_FAIR_SHARE, reasons.GANG_DOES_NOT_FIT, reasons.FRAGMENTED)

# How a job's earlier operations of this cause ended: state and message. After an unsuccessful one it gives no more.
Given = tuple[str, str]


def balance_jobs(elastic: ElasticJobs, engine: Engine, seen: Observation, plan: Plan, now: datetime) -> None:
    """Begin to shrink elastic jobs for others of their project. Writes scale operations.

    Does nothing if the plan starts, preempts or grows jobs, or if jobs of several projects wait. Call it only in a
    cycle in which no job has begun to grow.
    """
    is_settled = not (plan.starts or plan.preempts or plan.growth)
    if MEMBERSHIP not in engine.capabilities or not elastic.latest or not is_settled:
        return
    views, every = working_views(seen), {job.id: job for job in seen.view.jobs}
    working = {name: one for one in elastic.latest if (name := str(one.job.pk)) in views}
    waiting = _waiting(plan, every)
    if len({hold.project for hold in waiting}) > 1:
        return
    if waiting:
        _shrink_for_waiting(working, waiting, every, seen, plan, now)
    elif any(one.job.pods_wanted > len(one.members) for one in working.values()):
        _move(working, views, seen, plan, now)


def _waiting(plan: Plan, every: Mapping[str, JobView]) -> list[Hold]:
    """Return the holds of queued jobs that could use free GPUs; only up to the first one of a second project, because
    explaining a queue of 100,000 takes 0.7 s. `every`: all jobs by id."""
    waiting: list[Hold] = []
    for hold in plan.holds:
        if hold.job in every and _could_use(hold, every[hold.job]):
            waiting.append(hold)
            if hold.project != waiting[0].project:
                break
    return waiting


def _shrink_for_waiting(
    working: Mapping[str, Attended],
    waiting: Sequence[Hold],
    views: Mapping[str, JobView],
    seen: Observation,
    plan: Plan,
    now: datetime,
) -> None:
    """Begin to shrink running jobs so that the jobs of `waiting`, all of one project, can start. Does nothing if a
    job of the project is being resized. `working`: running elastic jobs by id; `views`: all jobs by id."""
    project = views[waiting[0].job].project
    # One without members, such as a program that does not report its membership, has nothing to give.
    ours = {name: one for name, one in working.items() if one.members and views[name].project == project}
    if not all(map(_is_calm, ours.values())):
        return
    lacking = (views[hold.job] for hold in waiting if _lack(hold) in LACKS_GPUS)
    # What leaves for a job in back-off would stand idle, or grow back.
    queues = _queues((view for view in lacking if not is_backing_off(view, seen.view.now)), seen)
    given, usable = _given(ours), _open_nodes(seen)
    giving = {
        name for name, one in ours.items() if _may_shrink(one, views[name], usable, given[name], now - REST)
    }
    if queues and giving:
        pools = claims_by_pool(ours.values(), views, seen, {}, giving).values()
        claims = [claim for pool in pools for claim in pool]
        shrinkable = _shrinkable([claim for claim in claims if claim.may_shrink], ours, views)
        leaving = workers_to_remove(claims, shrinkable, queues, room_after(seen.view, plan))
        for name, ranks in leaving.items():
            begin_shrink(ours[name], ranks, BALANCE, FOR_WAITING, now + LEAVE, now)


def _queues(lacking: Iterable[JobView], seen: Observation) -> list[list[PendingJob]]:
    """Return the queued jobs in the plan's order, as one list for each set of nodes that the jobs may use."""
    projects, found = (
        {project.name: project for project in seen.view.projects},
        dict[Pool, list[PendingJob]](),
    )
    for view in lacking:
        request = request_of(view, pools_for(view, projects[view.project]))
        found.setdefault(pool_of(seen, view), []).append(PendingJob(view, request))
    return list(found.values())


def _shrinkable(
    claims: Iterable[Claim], working: Mapping[str, Attended], views: Mapping[str, JobView]
) -> list[ShrinkableJob]:
    """Return the job of each claim with its workers, in the order in which they would be removed."""
    ours = {claim.job: working[claim.job] for claim in claims}
    candidates = candidates_by_job((one.job, one.members) for one in ours.values())
    found = []
    for claim in claims:
        pods = {pod.rank: pod for pod in views[claim.job].placements}
        members = [one for one in candidates[ours[claim.job].job.pk] if one.rank in pods]
        order = [pods[rank] for rank, _ in choose_leavers(members, len(members))]
        found.append(ShrinkableJob(claim, views[claim.job], tuple(order)))
    return found


def _move(
    working: Mapping[str, Attended],
    views: Mapping[str, JobView],
    seen: Observation,
    plan: Plan,
    now: datetime,
) -> None:
    """Begin to shrink jobs whose workers are worth more to running jobs of the same project. `working`, `views`:
    running elastic jobs by id."""
    wanted = {name: wanted_workers(one, plan, seen, now) for name, one in working.items()}
    if not any(wanted.values()):
        return
    given = _given(working)
    usable = _open_nodes(seen)
    giving = {
        name
        for name, one in working.items()
        if _may_shrink(one, views[name], usable, given[name], now - rest_before_move(given[name]))
    }
    pools = claims_by_pool(working.values(), views, seen, wanted, giving)
    nodes = {pool: usable_nodes(seen.view, views[claims[0].job]) for pool, claims in pools.items()}
    growing = [pool for pool, claims in pools.items() if any(one.most > one.workers for one in claims)]
    for pool, claims in pools.items():
        # Growth of another pool on the same nodes would take what becomes free.
        is_apart = not any(other != pool and nodes[other] & nodes[pool] for other in growing)
        if pool in growing and is_apart and all(_is_calm(working[one.job]) for one in claims):
            # The least that any of these jobs could use: growth, which came before, found no room for more
            # workers of it.
            growing_claims = [one for one in claims if one.most > one.workers]
            free = min(usable_gpus(growing_claims, views, seen, plan))
            _shrink(working, after_moves(claims, free), FOR_RUNNING, now)


def _shrink(working: Mapping[str, Attended], sizes: Mapping[str, int], why: str, now: datetime) -> None:
    for name, size in sizes.items():
        attended = working[name]
        count = len(attended.members) - size
        if count > 0:
            leavers = choose_leavers(candidates_of(attended.job, attended.members), count)
            begin_shrink(attended, [rank for rank, _ in leavers], BALANCE, why, now + LEAVE, now)


def _may_shrink(
    attended: Attended, view: JobView, usable: Collection[str], given: Iterable[Given], rested_since: datetime
) -> bool:
    """Return whether the job may be shrunk for other jobs of its project.

    `usable`: nodes that accept pods; all of the job's pods must be on them, so that others can use what it releases.
    `given`: its earlier operations for others. `rested_since`: its size must not have changed after this time.
    """
    generation = attended.generation
    if generation is None or generation.created_at >= rested_since or not view.is_preemptible:
        return False
    is_usable = all(pod.node in usable for pod in view.placements)
    has_more = len(attended.members) > (view.min_pods or 1)
    # As shrinking.cannot_shrink, for all jobs in one query.
    is_able = not has_finisher(attended) and all(state not in rules.UNSUCCESSFUL for state, _ in given)
    return is_usable and has_more and is_able


def _open_nodes(seen: Observation) -> set[str]:
    return {node.name for node in seen.view.nodes if node.is_schedulable}


def _given(working: Mapping[str, Attended]) -> dict[str, list[Given]]:
    """Return, by job id, (state, message) of each operation that has shrunk the job for others in its current
    attempt; [] without one."""
    found: dict[str, list[Given]] = {name: [] for name in working}
    rows = ScaleOperation.objects.filter(
        job__in=[one.job for one in working.values()], attempt=F("job__attempt"), cause=BALANCE
    )
    for job, state, message in rows.values_list("job", "state", "message"):
        found[str(job)].append((state, message))
    return found


def rest_before_move(given: Iterable[Given]) -> timedelta:
    """Return for how long a job keeps its size before it is shrunk for a running job: REST, doubled with each such
    operation in `given`, MOST_DOUBLINGS times at most."""
    moves = sum(message == FOR_RUNNING for _, message in given)
    return REST * (1 << min(moves, MOST_DOUBLINGS))


def _lack(hold: Hold) -> str:
    """Return the reason code of what the job lacks to start. For a preempted job, whose hold reason is the
    preemption, that is recorded in the details as `blocked_by`."""
    return str(hold.details.get("blocked_by", hold.reason))


def _could_use(hold: Hold, view: JobView) -> bool:
    return hold.reason not in NOT_FOR_LACK_OF_GPUS and (
        view.milli_gpus > 0 or view.gpu_memory_mib is not None
    )


def _is_calm(attended: Attended) -> bool:
    """Return whether all members of the job use its present membership and none of its scale operations is open."""
    generation = attended.generation
    return attended.operation is None and generation is not None and generation.switched_at is not None
