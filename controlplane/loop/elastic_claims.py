"""What running elastic jobs have and could use (their claims, see scheduling/division.py). Growth and balance use the
same claims, so that they rank jobs alike."""

from collections.abc import Collection, Iterable, Mapping

from controlplane.loop.membership import Attended
from controlplane.loop.observe import Observation
from controlplane.scheduling.division import Claim
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.spare import free_gpus, usable_pools
from controlplane.scheduling.view import JobView
from jobs.kinds.registry import KINDS

# What decides on which nodes a job may run: jobs share GPUs with those for which it is the same.
Pool = tuple[object, ...]


def working_views(seen: Observation) -> dict[str, JobView]:
    """Return, by id, the jobs that hold GPUs and are not being stopped."""
    return {job.id: job for job in seen.view.jobs if job.state == "active" and not job.is_stopping}


def claims_by_pool(
    working: Iterable[Attended],
    views: Mapping[str, JobView],
    seen: Observation,
    wanted: Mapping[str, int],
    giving: Collection[str] = (),
) -> dict[Pool, list[Claim]]:
    """Return the claims of all elastic jobs with workers, grouped by the nodes that the jobs may use. `wanted`: how
    many workers to add, by job id (absent: 0). `giving`: ids of the jobs that may give workers to others."""
    found: dict[Pool, list[Claim]] = {}
    for one in working:
        view = views[str(one.job.pk)]
        if one.members:
            claim = _claim(one, view, wanted.get(view.id, 0), may_shrink=view.id in giving)
            found.setdefault(pool_of(seen, view), []).append(claim)
    return found


def _claim(attended: Attended, view: JobView, wanted: int, *, may_shrink: bool) -> Claim:
    has = len(attended.members)
    most = has + wanted
    if attended.operation is not None and attended.operation.joining:
        # A growing job counts with the workers that it will have, because it may want more after that.
        has = attended.operation.to_workers
        most = max(has, attended.job.pods_wanted)
    return Claim(
        view.id,
        has,
        view.min_pods or 1,
        most,
        view.sizes,
        KINDS[attended.job.kind].speeds(attended.job.spec),
        attended.job.progress.get("eta_seconds"),
        shape_of(view),
        view.project,
        view.priority,
        may_shrink,
    )


def usable_gpus(
    claims: Iterable[Claim], views: Mapping[str, JobView], seen: Observation, plan: Plan
) -> list[int]:
    """Return how many free GPUs the jobs of `claims`, all of one pool, could use for new workers: one number for each
    distinct pod size."""
    # Jobs of one pool with equal workers may use the same GPUs.
    by_shape = {claim.shape: views[claim.job] for claim in claims}
    return [free_gpus(seen.view, plan, view) for view in by_shape.values()]


def shape_of(view: JobView) -> tuple[int, ...]:
    """Return what one pod of the job needs: (GPUs rounded up, milli-CPUs, MiB of memory)."""
    gpus = 1 if view.gpu_memory_mib is not None else -(-view.milli_gpus // 1000)
    return gpus, view.milli_cpus, view.memory_mib


def pool_of(seen: Observation, view: JobView) -> Pool:
    """Return a key for the nodes on which a job may run: jobs with equal keys may use the same nodes."""
    return usable_pools(seen.view, view), view.locations, view.extras
