"""Find devices for more workers of a running elastic job: whole ones that a plan leaves free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.scheduling.capacity import FreeCapacity
from controlplane.scheduling.initial_capacity import open_capacity
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.sizes import MOST_WORKERS
from controlplane.scheduling.view import (
    ClusterView,
    JobView,
    NodeView,
    PodPlacement,
    placements_from_lists,
)


@dataclass(slots=True)
class _Left:
    """What is free on a node while devices are chosen."""

    node: NodeView
    devices: list[int]
    milli_cpus: int
    memory_mib: int
    extras: dict[str, int]
    peers: int = 0  # pods of the growing job

    def take(self, placement: PodPlacement, job: JobView) -> None:
        held = {index for index, _ in placement.devices}
        self.devices = [index for index in self.devices if index not in held]
        self.milli_cpus -= job.milli_cpus
        self.memory_mib -= job.memory_mib
        for name, amount in job.extras:
            self.extras[name] = self.extras.get(name, 0) - amount

    def pods(self, job: JobView) -> int:
        """Return how many pods of the job fit on the node. The job has whole GPUs or none."""
        needs = [(self.milli_cpus, job.milli_cpus), (self.memory_mib, job.memory_mib)]
        needs += [(len(self.devices), job.milli_gpus // 1000)]
        needs += [(self.extras.get(name, 0), amount) for name, amount in job.extras]
        return max(0, min((has // each for has, each in needs if each), default=MOST_WORKERS))


def spare_placements(
    view: ClusterView, plan: Plan, job: JobView, count: int, first_rank: int
) -> tuple[PodPlacement, ...]:
    """Return placements for up to `count` more pods of an active job, with ranks from `first_rank`; () if none fits.

    Nodes of the job's pools and locations are used: those with most of its pods first, then the fullest. Capacity
    that the plan assigns, promises or reserves is not used. () also while the engine is unreachable, and for a job
    with shares of devices, which has a single pod.
    """
    if not view.is_engine_reachable or 0 < job.milli_gpus < 1000 or job.gpu_memory_mib is not None:
        return ()
    left = _left_over(view, plan, job)
    places: list[PodPlacement] = []
    for rank in range(first_rank, first_rank + count):
        fitting = [one for one in left if one.pods(job) > 0]
        if not fitting:
            break
        best = min(fitting, key=lambda one: (-one.peers, len(one.devices), one.node.name))
        devices = tuple((index, 1000) for index in best.devices[: job.milli_gpus // 1000])
        places.append(PodPlacement(rank, best.node.name, devices))
        best.take(places[-1], job)
        best.peers += 1
    return tuple(places)


def free_gpus(view: ClusterView, plan: Plan, job: JobView) -> int:
    """Return how many GPUs the plan leaves free for new pods of the job, each pod on one node."""
    return sum(one.pods(job) for one in _left_over(view, plan, job)) * (job.milli_gpus // 1000)


def room_after(view: ClusterView, plan: Plan) -> FreeCapacity:
    """Return what is free once stopping jobs have ended and the plan's starts, promises and growth have taken their
    capacity."""
    room, by_id = open_capacity(view).soon, {job.id: job for job in view.jobs}
    given = [*plan.promised.items(), *((start.job, start.placements) for start in plan.starts)]
    given += [(one.job, one.placements) for one in plan.growth]
    for name, placements in given:
        for placement in placements:
            room.take(placement, by_id[name])
    return room


def _left_over(view: ClusterView, plan: Plan, job: JobView) -> list[_Left]:
    left, usable = _after(view, plan), usable_nodes(view, job)
    for placement in job.placements:
        if placement.node in left:
            left[placement.node].peers += 1
    return [one for name, one in left.items() if name in usable]


def usable_nodes(view: ClusterView, job: JobView) -> frozenset[str]:
    """Return the names of the nodes in the job's pools and locations that accept pods."""
    pools = usable_pools(view, job)
    return frozenset(
        node.name
        for node in view.nodes
        if node.is_schedulable
        and (not pools or node.pool in pools)
        and (not job.locations or node.location in job.locations)
    )


def _after(view: ClusterView, plan: Plan) -> dict[str, _Left]:
    left = {node.name: _of(node) for node in view.nodes}
    by_id = {job.id: job for job in view.jobs}
    for job, placement in _taken(view, plan, by_id):
        if placement.node in left:
            left[placement.node].take(placement, job)
    return left


def _of(node: NodeView) -> _Left:
    free = [device.index for device in node.devices if not device.held_milli_gpus and not device.is_single]
    return _Left(node, free, node.milli_cpus, node.memory_mib, dict(node.extras))


def _taken(
    view: ClusterView, plan: Plan, by_id: dict[str, JobView]
) -> Iterable[tuple[JobView, PodPlacement]]:
    for job in view.jobs:
        for placement in job.placements:
            yield job, placement
    for start in plan.starts:
        for placement in start.placements:
            yield by_id[start.job], placement
    for growth in plan.growth:
        for placement in growth.placements:
            yield by_id[growth.job], placement
    for hold in plan.holds:
        for key in ("promised", "reserved"):
            for placement in placements_from_lists(hold.details.get(key, ())):
                yield by_id[hold.job], placement


def usable_pools(view: ClusterView, job: JobView) -> frozenset[str]:
    """Return the pools that the job may use; empty for all."""
    if job.node_pool is not None:
        return frozenset({job.node_pool})
    project = next((project for project in view.projects if project.name == job.project), None)
    return frozenset(dict(project.node_pools).get(job.kind, ()) if project else ())
