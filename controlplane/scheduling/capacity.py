"""Who holds what, per device: the room that is left on a cluster, indexed for placing.

A `Ledger` keeps two rooms. `now` is free this moment; `soon` is free once everything that is stopping has gone. A job
that was promised room takes it from both, so that `now` is never larger than `soon` on any device.
Milli-GPUs, milli-CPUs and MiB throughout.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from controlplane.scheduling.view import (
    ClusterView,
    DeviceView,
    Extras,
    SharingMode,
    JobView,
    Need,
    NodeView,
    PodPlacement,
)

WHOLE_GPU = 1000


@dataclass(slots=True)
class NodeCapacity:
    """What is free on one node. `order` is its place among all nodes by name; a closed node gets nothing new. A divided
    one gives its devices out in single parts, so that no pod has a whole one."""

    order: int
    name: str
    pool: str
    is_open: bool
    indexes: tuple[int, ...]
    modes: tuple[SharingMode, ...]
    free: list[int]
    milli_cpus: int
    memory_mib: int
    is_divided: bool
    extras: dict[str, int]
    whole: int = 0

    def has_host_room(self, need: Need) -> bool:
        """Whether the node has what one pod takes beside devices."""
        return (
            self.milli_cpus >= need.milli_cpus
            and self.memory_mib >= need.memory_mib
            and all(self.extras.get(name, 0) >= amount for name, amount in need.extras)
        )

    def change_host(self, need: Need, pods: int) -> None:
        """Give back, or take where `pods` is below 0, what so many pods have beside devices."""
        self.milli_cpus += pods * need.milli_cpus
        self.memory_mib += pods * need.memory_mib
        for name, amount in need.extras:
            self.extras[name] = self.extras.get(name, 0) + pods * amount

    def copy(self) -> NodeCapacity:
        """The same room, with its own numbers."""
        return NodeCapacity(
            self.order, self.name, self.pool, self.is_open, self.indexes, self.modes,
            self.free.copy(), self.milli_cpus, self.memory_mib, self.is_divided, self.extras.copy(), self.whole,
        )  # fmt: skip


@dataclass(slots=True)
class PoolIndex:
    """The open nodes of one pool, so that the tightest fit is found without looking at every node.

    `by_whole[k]`: the orders of nodes with k whole devices free, ascending. `shared[mode]`: the partly
    used devices of that kind as (free milli-GPUs, node order, device position), ascending.
    """

    by_whole: list[list[int]] = field(default_factory=list)
    shared: dict[SharingMode, list[tuple[int, int, int]]] = field(default_factory=dict)

    def copy(self) -> PoolIndex:
        """The same index, with its own lists."""
        by_whole = [bucket.copy() for bucket in self.by_whole]
        return PoolIndex(by_whole, {mode: devices.copy() for mode, devices in self.shared.items()})


class Amounts(NamedTuple):
    """What is taken of a node beside devices."""

    milli_cpus: int = 0
    memory_mib: int = 0
    extras: Extras = ()


Clamp = tuple[PodPlacement, Amounts]
"""FreeCapacity taken away from `now`: devices, and what goes with them."""


class FreeCapacity:
    """Free capacity of all nodes, kept in step with its index by `take` and `give`."""

    __slots__ = ("nodes", "pools", "positions")

    def __init__(self, nodes: list[NodeCapacity], positions: dict[str, int]) -> None:
        self.nodes = nodes
        self.positions = positions
        self.pools: dict[str, PoolIndex] = {}
        for node in nodes:
            if node.is_open:
                self._index(node)

    def copy(self) -> FreeCapacity:
        """A room of its own with the same numbers; cheaper than indexing again."""
        twin = FreeCapacity.__new__(FreeCapacity)
        twin.nodes = [node.copy() for node in self.nodes]
        twin.positions = self.positions
        twin.pools = {name: index.copy() for name, index in self.pools.items()}
        return twin

    def take(self, placement: PodPlacement, need: Need) -> None:
        """Use the room of one pod. The caller has checked that it is there."""
        self._change(placement, -1, need)

    def give(self, placement: PodPlacement, need: Need) -> None:
        """Give back the room of one pod."""
        self._change(placement, 1, need)

    def free_milli_gpus(self, pools: Sequence[str] = (), but_on: Collection[str] = ()) -> int:
        """Free milli-GPUs on open nodes of these pools (all, when none is named), but on some."""
        return sum(
            sum(node.free)
            for node in self.nodes
            if node.is_open and (not pools or node.pool in pools) and node.name not in but_on
        )

    def clamp(self, placement: PodPlacement, other: FreeCapacity) -> Clamp:
        """Have no more than `other` where this pod is; the answer is what that took away."""
        mine, its = self.node(placement.node), other.node(placement.node)
        lost = tuple((index, self._excess(mine, its, index)) for index, _ in placement.devices)
        more = ((name, amount - its.extras.get(name, 0)) for name, amount in mine.extras.items())
        cost = Amounts(
            max(0, mine.milli_cpus - its.milli_cpus),
            max(0, mine.memory_mib - its.memory_mib),
            tuple((name, amount) for name, amount in more if amount > 0),
        )
        place = PodPlacement(0, mine.name, lost)
        self.take(place, cost)
        return place, cost

    def node(self, name: str) -> NodeCapacity:
        """The room of one node. Raises KeyError for a node that the view lacks."""
        return self.nodes[self.positions[name]]

    @staticmethod
    def _excess(mine: NodeCapacity, its: NodeCapacity, index: int) -> int:
        position = mine.indexes.index(index)
        return max(0, mine.free[position] - its.free[position])

    def _change(self, placement: PodPlacement, sign: int, need: Need) -> None:
        order = self.positions.get(placement.node)
        if order is None:
            return  # the node has left the cluster: nothing to give back, nothing given out
        node = self.nodes[order]
        node.change_host(need, sign)
        whole = node.whole
        for index, milli_gpus in placement.devices:
            if index in node.indexes:  # a device that was taken out of its node holds nothing any more
                self._change_device(node, node.indexes.index(index), sign * milli_gpus)
        if node.is_open and node.whole != whole:
            by_whole = self.pools[node.pool].by_whole
            _remove(by_whole[whole], node.order)
            insort(by_whole[node.whole], node.order)

    def _change_device(self, node: NodeCapacity, position: int, milli_gpus: int) -> None:
        before = node.free[position]
        after = node.free[position] = before + milli_gpus
        node.whole += (after == WHOLE_GPU) - (before == WHOLE_GPU)
        if not node.is_open:
            return
        shared = self.pools[node.pool].shared[node.modes[position]]
        if 0 < before < WHOLE_GPU:
            _remove(shared, (before, node.order, position))
        if 0 < after < WHOLE_GPU:
            insort(shared, (after, node.order, position))

    def _index(self, node: NodeCapacity) -> None:
        index = self.pools.setdefault(node.pool, PoolIndex())
        while len(index.by_whole) <= len(node.free):
            index.by_whole.append([])
        index.by_whole[node.whole].append(node.order)
        for position, free in enumerate(node.free):
            shared = index.shared.setdefault(node.modes[position], [])
            if 0 < free < WHOLE_GPU:
                insort(shared, (free, node.order, position))


class Ledger:
    """The two rooms of a cluster, and the doors through which a job enters and leaves them."""

    __slots__ = ("_kept", "now", "soon")

    def __init__(self, now: FreeCapacity, soon: FreeCapacity) -> None:
        self.now = now
        self.soon = soon
        self._kept: list[Clamp] = []

    def now_without_promises(self) -> FreeCapacity:
        """A copy of `now` with the room that is being kept for promised jobs: only for explaining."""
        room = self.now.copy()
        for kept in self._kept:
            room.give(*kept)
        return room

    def start(self, job: JobView, placements: Iterable[PodPlacement]) -> None:
        """Give the job this free room at once."""
        for placement in placements:
            self.now.take(placement, job)
            self.soon.take(placement, job)

    def cancel(self, job: JobView, placements: Iterable[PodPlacement]) -> None:
        """Undo `start`: nothing ran yet."""
        for placement in placements:
            self.now.give(placement, job)
            self.soon.give(placement, job)

    def stop(self, job: JobView) -> None:
        """The job is told to go: its room is free soon, not now."""
        for placement in job.placements:
            self.soon.give(placement, job)

    def promise(self, job: JobView, placements: Iterable[PodPlacement]) -> None:
        """Keep this room, partly free only soon, for the job and for nobody else."""
        for placement in placements:
            self.soon.take(placement, job)
            self._kept.append(self.now.clamp(placement, self.soon))

    def forget_promises(self, promised: Iterable[tuple[JobView, Iterable[PodPlacement]]]) -> None:
        """Undo `promise` for all of them: they must be all that there are."""
        for kept in self._kept:
            self.now.give(*kept)
        self._kept.clear()
        for job, placements in promised:
            for placement in placements:
                self.soon.give(placement, job)

    def stay(self, job: JobView) -> None:
        """Undo `stop`: the job goes on."""
        for placement in job.placements:
            self.soon.take(placement, job)


def open_ledger(view: ClusterView) -> Ledger:
    """The ledger of a view: what active jobs hold is taken; what stopping jobs hold is free soon."""
    by_name = sorted(view.nodes, key=lambda node: node.name)
    nodes = [_node_room(order, node) for order, node in enumerate(by_name)]
    positions = {node.name: node.order for node in nodes}
    active = [job for job in view.jobs if job.state == "active"]
    for job in active:
        _occupy(nodes, positions, job)
    for node in nodes:
        node.whole = sum(free == WHOLE_GPU for free in node.free)
    now = FreeCapacity(nodes, positions)
    ledger = Ledger(now, now.copy())
    for job in active:
        if job.is_stopping:
            ledger.stop(job)
    return ledger


def open_empty_room(view: ClusterView) -> FreeCapacity:
    """The cluster as it is built: every node open, every device free, nothing running."""
    by_name = sorted(view.nodes, key=lambda node: node.name)
    nodes = [_node_room(order, node) for order, node in enumerate(by_name)]
    for node in nodes:
        node.is_open, node.free = True, [WHOLE_GPU] * len(node.free)
        node.whole = len(node.free)
    return FreeCapacity(nodes, {node.name: node.order for node in nodes})


def _node_room(order: int, node: NodeView) -> NodeCapacity:
    devices: Sequence[DeviceView] = sorted(node.devices, key=lambda device: device.index)
    return NodeCapacity(
        order=order,
        name=node.name,
        pool=node.pool,
        is_open=node.is_schedulable,
        indexes=tuple(device.index for device in devices),
        modes=tuple(device.mode for device in devices),
        free=[WHOLE_GPU - device.held_milli_gpus for device in devices],
        milli_cpus=node.milli_cpus,
        memory_mib=node.memory_mib,
        is_divided=any(device.is_single and device.parts > 1 for device in devices),
        extras=dict(node.extras),
    )


def _occupy(nodes: list[NodeCapacity], positions: dict[str, int], job: JobView) -> None:
    for placement in job.placements:
        order = positions.get(placement.node)
        if order is None:
            continue  # a pod on a node that has left: it holds nothing that could be given out
        node = nodes[order]
        node.change_host(job, -1)
        for index, milli_gpus in placement.devices:
            if index in node.indexes:
                node.free[node.indexes.index(index)] -= milli_gpus


def _remove(ordered: list[Any], item: Any) -> None:
    del ordered[bisect_left(ordered, item)]
