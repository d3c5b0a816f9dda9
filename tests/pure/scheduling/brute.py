"""Placement that tries every possibility: slow, short, and independent of the scheduler's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from controlplane.scheduling.view import ClusterView, JobView, PodPlacement

WHOLE = 1000


@dataclass(frozen=True)
class Job:
    """A job to place with its fewest pods, in one of `pools` ("" for any)."""

    name: str
    view: JobView
    pools: tuple[str, ...]


@dataclass
class _Node:
    pool: str
    is_open: bool
    memory_mib: dict[int, int]
    free: dict[int, int]
    rest: list[int]
    extras: dict[str, int]


class Later(Protocol):
    """Capacity that must stay free at a later time while jobs are placed now."""

    def change(self, name: str, job: JobView, pod: PodPlacement, sign: int) -> None:
        """Take (-1) or give back (1) the capacity that a pod of the job `name` holds at that time."""

    def is_kept(self) -> bool:
        """Return whether enough capacity is free at that time."""


class Rooms:
    """The free capacity of each node while only the jobs `holders` run. Devices are counted in milli-GPUs."""

    def __init__(self, view: ClusterView, holders: Sequence[JobView]) -> None:
        self.nodes = {
            node.name: _Node(
                node.pool,
                node.is_schedulable,
                {device.index: device.memory_mib for device in node.devices},
                {device.index: WHOLE - device.held_milli_gpus for device in node.devices},
                [node.milli_cpus, node.memory_mib],
                dict(node.extras),
            )
            for node in view.nodes
        }
        for job in holders:
            for pod in job.placements:
                self.change(job, pod, -1)

    def change(self, job: JobView, pod: PodPlacement, sign: int) -> None:
        """Take (-1) or give back (1) the capacity of a pod. Ignores nodes and devices that the view lacks."""
        node = self.nodes.get(pod.node)
        if node is None:
            return
        for index, milli_gpus in pod.devices:
            if index in node.free:
                node.free[index] += sign * milli_gpus
        node.rest[0] += sign * job.milli_cpus
        node.rest[1] += sign * job.memory_mib
        for name, amount in job.extras:
            node.extras[name] = node.extras.get(name, 0) + sign * amount

    def take_all(self, job: JobView, pods: Sequence[PodPlacement]) -> bool:
        """Take the capacity of these pods. Return False if any capacity is negative afterwards."""
        for pod in pods:
            self.change(job, pod, -1)
        return all(
            min((*node.free.values(), *node.rest, *node.extras.values())) >= 0
            for name in {pod.node for pod in pods}
            for node in (self.nodes[name],)
        )

    def share_on(self, job: JobView, name: str, index: int) -> int:
        """Return the milli-GPUs that one share of the job takes on a device of the node `name`."""
        if job.gpu_memory_mib is None:
            return job.milli_gpus
        return -(-job.gpu_memory_mib * WHOLE // self.nodes[name].memory_mib[index])

    def at_most(self, other: Rooms) -> Rooms:
        """Reduce the free capacity of each node to that of `other`, if it is more; return the object."""
        for name, node in self.nodes.items():
            its = other.nodes[name]
            node.free = {index: min(free, its.free[index]) for index, free in node.free.items()}
            node.rest = [min(pair) for pair in zip(node.rest, its.rest, strict=True)]
            node.extras = {need: min(amount, its.extras[need]) for need, amount in node.extras.items()}
        return self


def fit_together(jobs: Sequence[Job], rooms: Rooms, later: Later | None = None) -> bool:
    """Return whether all jobs fit at once, each in one of its pools, with `later` kept. Both capacities are
    unchanged afterwards."""
    by_size = sorted(jobs, key=lambda one: -one.view.milli_gpus)
    return _place(by_size, 0, (rooms, later), 0, "")


def take_together(
    view: ClusterView, placed: Mapping[str, Sequence[PodPlacement]], rooms: Rooms, later: Later | None
) -> bool:
    """Take the capacity of these jobs (ids), now and in `later`, until some of it is not free. Return whether all
    of it was."""
    jobs = {job.id: job for job in view.jobs}
    for name, placements in placed.items():
        for pod in placements if later is not None else ():
            later.change(name, jobs[name], pod, -1)
        if not rooms.take_all(jobs[name], placements):
            return False
    return True


def _place(jobs: Sequence[Job], at: int, trial: tuple[Rooms, Later | None], rank: int, pool: str) -> bool:
    rooms, later = trial
    if at == len(jobs):
        return later is None or later.is_kept()
    job = jobs[at]
    if rank == job.view.fewest_pods:
        return _place(jobs, at + 1, trial, 0, "")
    choices = [pool] if rank and job.pools else (list(job.pools) or [""])
    for choice in choices:
        for pod in _ways(job.view, rooms, choice, is_alike=later is None):
            _change(trial, job, pod, -1)
            is_placed = _place(jobs, at, trial, rank + 1, choice)
            _change(trial, job, pod, 1)
            if is_placed:
                return True
    return False


def _change(trial: tuple[Rooms, Later | None], job: Job, pod: PodPlacement, sign: int) -> None:
    rooms, later = trial
    rooms.change(job.view, pod, sign)
    if later is not None:
        later.change(job.name, job.view, pod, sign)


def _ways(job: JobView, rooms: Rooms, pool: str, *, is_alike: bool) -> Iterator[PodPlacement]:
    """Yield each placement at which one pod of the job fits, in `pool` ("" for any). `is_alike`: only the first
    of devices of a node with the same free capacity."""
    for name, node in rooms.nodes.items():
        if not node.is_open or (pool and node.pool != pool):
            continue
        has_host = job.milli_cpus <= node.rest[0] and job.memory_mib <= node.rest[1]
        if has_host and all(node.extras.get(need, 0) >= amount for need, amount in job.extras):
            yield from _on(job, name, node, is_alike=is_alike)


def _on(job: JobView, name: str, node: _Node, *, is_alike: bool) -> Iterator[PodPlacement]:
    if job.gpu_memory_mib is None and job.milli_gpus % WHOLE == 0:
        free = [index for index, milli in node.free.items() if milli == WHOLE]
        count = job.milli_gpus // WHOLE
        if len(free) >= count:
            yield PodPlacement(0, name, tuple((index, WHOLE) for index in free[:count]))
        return
    seen = set()
    for index, milli in node.free.items():
        share = job.milli_gpus
        if job.gpu_memory_mib is not None:
            share = -(-job.gpu_memory_mib * WHOLE // node.memory_mib[index])
        if milli >= share and (milli not in seen or not is_alike):
            seen.add(milli)
            yield PodPlacement(0, name, ((index, share),))
