"""Shrink elastic jobs in favour of other jobs of the same project: waiting ones, and those that gain more speed by the
GPUs (see scheduling.division).

Only quotas and fair shares decide between projects. No job is shrunk here while a job of another project waits for
GPUs, or while an elastic job of the project changes its size.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from controlplane.engines.base import MEMBERSHIP, Engine
from controlplane.loop.growth import NEEDS_A_PERSON, claim_of, pool_of, shape_of
from controlplane.loop.membership import Attended, ElasticJobs
from controlplane.loop.observe import Observation
from controlplane.loop.shrinking import begin_shrink, cannot_shrink
from controlplane.scheduling import reasons
from controlplane.scheduling.division import Claim, after_moves
from controlplane.scheduling.plan import Hold, Plan
from controlplane.scheduling.spare import free_gpus
from controlplane.scheduling.view import JobView
from jobs.kinds.membership import choose_leavers
from jobs.kinds.registry import KINDS
from jobs.models import Job
from jobs.scaling import candidates_of

CAUSE, WHY = "balance", "Its project's other jobs gain more by them."
# A job is not shrunk for this long after a change of its size.
REST = timedelta(seconds=60)
# How long leaving workers have to acknowledge; then the job keeps them.
LEAVE = timedelta(seconds=30)
# Reasons of waiting jobs that could start if GPUs became free.
LACKS_GPUS = (
    reasons.CLUSTER_FULL,
    reasons.OVER_FAIR_SHARE,
    reasons.GANG_DOES_NOT_FIT,
    reasons.FRAGMENTED,
)


def balance_jobs(elastic: ElasticJobs, engine: Engine, seen: Observation, plan: Plan, now: datetime) -> None:
    """Begin to shrink elastic jobs for others of their project. No effect if the plan starts or preempts jobs. Call it
    only in a cycle in which no job has begun to grow."""
    if MEMBERSHIP not in engine.capabilities or not elastic.latest or plan.starts or plan.preempts:
        return
    views = {job.id: job for job in seen.view.jobs}
    waiting = [views[hold.job] for hold in plan.holds if _could_use(hold, views[hold.job])]
    for project, jobs in _by_project(elastic.latest, views).items():
        # A waiting job of another project could get the freed GPUs, because the scheduler serves the queue in its
        # own order.
        if all(map(_is_calm, jobs)) and all(view.project == project for view in waiting):
            _balance({str(one.job.pk): one for one in jobs}, waiting, seen, plan, now)


def _by_project(jobs: Iterable[Attended], views: Mapping[str, JobView]) -> dict[str, list[Attended]]:
    found: dict[str, list[Attended]] = {}
    for one in jobs:
        view = views.get(str(one.job.pk))
        if view is not None and view.state == "active" and not view.is_stopping:
            found.setdefault(view.project, []).append(one)
    return found


def _balance(
    running: Mapping[str, Attended], waiting: Iterable[JobView], seen: Observation, plan: Plan, now: datetime
) -> None:
    lacking = {hold.job for hold in plan.holds if hold.reason in LACKS_GPUS}
    asking = {view.id: view for view in waiting if view.id in lacking}
    claims = [*_held(running, seen, now), *_asked(asking, seen)]
    sizes = after_moves(claims, free_gpus(seen.view, plan)) if len(claims) > 1 else {}
    for name, attended in running.items():
        count = len(attended.members) - sizes.get(name, len(attended.members))
        if count > 0 and not cannot_shrink(attended, CAUSE):
            leavers = choose_leavers(candidates_of(attended.job, attended.members), count)
            leaving = [rank for rank, _ in leavers]
            begin_shrink(attended, leaving, CAUSE, WHY, now + LEAVE, now)


def _held(running: Mapping[str, Attended], seen: Observation, now: datetime) -> Iterator[Claim]:
    views = {view.id: view for view in seen.view.jobs}
    open_nodes = {node.name for node in seen.view.nodes if node.is_schedulable}
    for name, attended in running.items():
        view, has = views[name], len(attended.members)
        has_rested = attended.generation is not None and attended.generation.created_at < now - REST
        # GPUs on a node that takes no pods are of no use to other jobs.
        is_usable = all(pod.node in open_nodes for pod in view.placements)
        may_give = has_rested and is_usable and view.is_preemptible
        yield claim_of(attended, view, seen, has, max(has, attended.job.pods_wanted), may_give=may_give)


def _asked(asking: Mapping[str, JobView], seen: Observation) -> Iterator[Claim]:
    """Yield a claim for each waiting job, with 0 workers: it asks for its whole gang, or if it is elastic for its
    fewest workers and then more."""
    for job in Job.objects.filter(pk__in=asking).only("kind", "spec"):
        view = asking[str(job.pk)]
        yield Claim(
            view.id,
            0,
            view.min_pods or view.pods,
            view.pods,
            view.sizes,
            KINDS[job.kind].speeds(job.spec),
            shape=shape_of(view),
            pool=pool_of(seen, view),
            priority=view.priority,
            may_give=False,
        )


def _could_use(hold: Hold, view: JobView) -> bool:
    return hold.reason not in NEEDS_A_PERSON and (view.milli_gpus > 0 or view.gpu_memory_mib is not None)


def _is_calm(attended: Attended) -> bool:
    """Return whether the job trains with its present workers: no change of its size is in progress."""
    generation = attended.generation
    return attended.operation is None and generation is not None and generation.switched_at is not None
