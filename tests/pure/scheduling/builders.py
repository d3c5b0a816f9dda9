"""Builds cluster views for scheduler tests; what a test does not name has a default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane.scheduling.plan import Growth, Hold, Plan, Start
from controlplane.scheduling.view import (
    ClusterView,
    DeviceView,
    JobView,
    NodeView,
    PodPlacement,
    ProjectView,
    placements_from_lists,
)

MEMORY_MIB = 32768


def milli(gpus: float) -> int:
    return round(gpus * 1000)


def node(
    name, gpus=8, pool="default", memory_mib=MEMORY_MIB, is_schedulable=True, milli_cpus=64_000, extras=()
):
    devices = tuple(DeviceView(index, memory_mib) for index in range(gpus))
    return NodeView(name, pool, devices, milli_cpus, 512_000, is_schedulable, extras)


def nodes(count=2, gpus=8, **more):
    return tuple(node(f"n{index}", gpus, **more) for index in range(count))


def project(name, quota=0.0, weight=None, **more):
    quota_milli = None if quota is None else milli(quota)
    return ProjectView(name, quota_milli, weight if weight is not None else (quota_milli or 0), **more)


def job(name, project_name, gpus=1.0, rank=None, **more):
    """Return a queued train job. Its rank is the number in its name, unless `rank` is given."""
    digits = "".join(char for char in name if char.isdigit())
    submit_rank = rank if rank is not None else int(digits or 0)
    return JobView(name, project_name, submit_rank, milli_gpus=milli(gpus), **more)


def interactive(name, project_name, gpus=1.0, **more):
    return job(name, project_name, gpus, kind="interactive", is_preemptible=False, **more)


def running(queued: JobView, *places: tuple[str, Sequence[int]], share=None, **more) -> JobView:
    """Return the job as active, with one pod for each ("node", device indexes). `share`: milli-GPUs of each
    device, for parts of one."""
    placements = tuple(
        PodPlacement(rank, name, tuple((index, share or 1000) for index in indexes))
        for rank, (name, indexes) in enumerate(places)
    )
    return replace(queued, state="active", placements=placements, pods=len(places), **more)


# The name of views whose running elastic jobs ask for the workers that they lack.
GROWING = "growing"


def view(the_nodes, projects, jobs=(), **more) -> ClusterView:
    return ClusterView(
        "test", more.pop("now", 1000), tuple(the_nodes), tuple(projects), jobs=tuple(jobs), **more
    )


def apply(before: ClusterView, plan: Plan, *, is_gone=True) -> ClusterView:
    """Return the cluster after the plan: starts run, and victims are stopping or, if `is_gone`, have ended and
    are queued again."""
    starts = {start.job: start for start in plan.starts}
    victims = {preempt.job: preempt for preempt in plan.preempts}
    growth = {one.job: one for one in plan.growth}
    promised = {hold.job: placements_from_lists(hold.details.get("promised", ())) for hold in plan.holds}
    jobs = []
    for item in before.jobs:
        if item.id in starts:
            item = _started(item, starts[item.id], before.now)
        elif item.id in victims and before.name == GROWING and is_gone and (left := _shrunk(item, plan)):
            item = left
        elif item.id in victims:
            taken = victims[item.id]
            by = {
                "was_preempted_by": taken.beneficiary,
                "was_preempted_by_project": taken.beneficiary_project,
            }
            item = replace(item, is_stopping=True, **by)
        elif item.state == "queued":
            item = replace(item, promised=promised[item.id])
        elif item.missing:
            item = _grown(item, growth.get(item.id))
        jobs.append(item if before.name != GROWING else asking(item))
    after = replace(before, jobs=tuple(jobs))
    return gone(after) if is_gone else after


def _shrunk(item: JobView, plan: Plan) -> JobView | None:
    """Return the preempted elastic job without the workers on promised devices. Return None for another job, if
    fewer than its minimum would be left, or if none goes."""
    held = {
        (place.node, index)
        for placements in (*plan.promised.values(), *(one.placements for one in plan.growth))
        for place in placements
        for index, _ in place.devices
    }
    stay = tuple(
        pod for pod in item.placements if not any((pod.node, index) in held for index, _ in pod.devices)
    )
    if item.min_pods is None or len(stay) < item.min_pods or len(stay) == len(item.placements):
        return None
    stay = tuple(replace(pod, rank=rank) for rank, pod in enumerate(stay))
    return asking(replace(item, placements=stay, missing=(), promised=()))


def _grown(item: JobView, growth: Growth | None) -> JobView:
    """Return the running job with the workers that the plan starts for it, or with the placements promised to
    them."""
    if growth is None or growth.is_promised:
        return replace(item, promised=() if growth is None else growth.placements)
    first = len(item.placements)
    more = tuple(replace(one, rank=rank) for rank, one in enumerate(growth.placements, first))
    is_gang = item.missing != (1,) * len(item.missing)
    return replace(
        item,
        placements=item.placements + more,
        promised=(),
        missing=() if is_gang else item.missing[len(more) :],
    )


def asking(item: JobView) -> JobView:
    """Return the job with one request for each worker that it lacks, if it is a running elastic job on whole
    GPUs; else unchanged."""
    is_whole = item.milli_gpus >= 1000 and item.gpu_memory_mib is None
    if item.missing or item.min_pods is None or item.state != "active" or item.is_stopping or not is_whole:
        return item
    return replace(item, missing=(1,) * (item.pods - len(item.placements)))


def _started(item: JobView, start: Start, now: int) -> JobView:
    return replace(
        item, state="active", placements=start.placements, started_at=now, promised=(),
        was_preempted_by=None, was_preempted_by_project=None, waiting_since=None,
    )  # fmt: skip


def gone(before: ClusterView) -> ClusterView:
    """Return the cluster after all stopping jobs have ended: preempted ones are queued again, others are removed."""
    jobs = [
        replace(
            item, state="queued", placements=(), is_stopping=False, started_at=None, missing=(), promised=()
        )
        if item.is_stopping
        else item
        for item in before.jobs
        if not item.is_stopping or item.was_preempted_by is not None
    ]
    return replace(before, jobs=tuple(jobs))


def settle(before: ClusterView, decide, cycles=10) -> ClusterView:
    """Decide and apply until nothing changes; return the cluster. Raises AssertionError after `cycles` cycles."""
    for _ in range(cycles):
        plan = decide(before)
        if not (plan.starts or plan.preempts or plan.growth):
            return before
        before = apply(before, plan)
    raise AssertionError(f"not settled after {cycles} cycles")


def allocated(of: ClusterView) -> Mapping[str, int]:
    """Return the milli-GPUs that jobs which are not stopping hold, by project."""
    held = {item.name: 0 for item in of.projects}
    for item in of.jobs:
        if item.state == "active" and not item.is_stopping:
            held[item.project] += sum(placement.milli_gpus for placement in item.placements)
    return held


def names(decisions) -> list[str]:
    return sorted(decision.job for decision in decisions)


def hold_of(plan: Plan, name: str) -> Hold:
    return next(hold for hold in plan.holds if hold.job == name)
