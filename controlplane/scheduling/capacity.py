"""Free capacity per node and device, indexed for placement. Amounts are in milli-GPUs, milli-CPUs and MiB."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from controlplane.scheduling.view import Extras, JobView, Need, PodPlacement, SharingMode

WHOLE_GPU = 1000


@dataclass(slots=True)
class NodeCapacity:
    """The free capacity of one node.

    `order`: its index among all nodes sorted by name. `part`: the name of the PoolIndex that contains it. `is_open`: it
    accepts new pods. `indexes`, `modes` and `free` have one entry per device; `free` is in milli-GPUs. `milli_cpus`,
    `memory_mib`, `extras`: what is free of them. `whole`: how many devices are entirely free. `is_divided`: its devices
    are given out in parts of a GPU only (SharingMode.is_single), so that no pod gets a whole device.
    """

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
    location: str = ""
    part: str = ""
    whole: int = 0
    # Incremented by every change, so that values cached for the node can be recognised as outdated.
    version: int = 0

    def has_host_capacity(self, need: Need) -> bool:
        """Return whether enough CPUs, memory and extra resources are free for one pod that needs `need`."""
        return (
            self.milli_cpus >= need.milli_cpus
            and self.memory_mib >= need.memory_mib
            and all(self.extras.get(name, 0) >= amount for name, amount in need.extras)
        )

    def change_host(self, need: Need, pods: int) -> None:
        """Give back the CPUs, memory and extra resources of `pods` pods; negative `pods` take them."""
        self.version += 1
        self.milli_cpus += pods * need.milli_cpus
        self.memory_mib += pods * need.memory_mib
        for name, amount in need.extras:
            self.extras[name] = self.extras.get(name, 0) + pods * amount

    def copy(self) -> NodeCapacity:
        return NodeCapacity(
            self.order, self.name, self.pool, self.is_open, self.indexes, self.modes,
            self.free.copy(), self.milli_cpus, self.memory_mib, self.is_divided, self.extras.copy(),
            self.location, self.part, self.whole, self.version,
        )  # fmt: skip


@dataclass(slots=True)
class PoolIndex:
    """The open nodes of one pool and location, indexed so that the tightest fit is found without examining every
    node.

    `by_whole[k]`: the orders of the nodes with k whole devices free, ascending. `shared[mode]`: the partly used
    devices of that sharing mode as (free milli-GPUs, node order, device position), ascending.
    """

    pool: str = ""
    location: str = ""
    by_whole: list[list[int]] = field(default_factory=list)
    shared: dict[SharingMode, list[tuple[int, int, int]]] = field(default_factory=dict)

    def copy(self) -> PoolIndex:
        by_whole = [bucket.copy() for bucket in self.by_whole]
        shared = {mode: devices.copy() for mode, devices in self.shared.items()}
        return PoolIndex(self.pool, self.location, by_whole, shared)


class Scorer(Protocol):
    """A strategy that places single pods on one FreeCapacity. It caches scores of the nodes."""

    def twin(self) -> Scorer:
        """Return a scorer with the same parameters and without cached scores, for a copy of the capacity."""
        ...

    def place_pod(
        self, request: Any, room: FreeCapacity, parts: Collection[str], avoid: Collection[str]
    ) -> tuple[str, tuple[tuple[int, int], ...]] | None:
        """Return the node and ((device index, milli-GPUs), ...) for one pod of `request`, a `fit.Request`; None if it
        fits nowhere. `parts`: the parts of `room` to use; `avoid`: names of nodes not to use."""
        ...


class Amounts(NamedTuple):
    """CPUs in milli-CPUs, memory in MiB, and extra resources as (name, amount)."""

    milli_cpus: int = 0
    memory_mib: int = 0
    extras: Extras = ()


class FreeCapacity:
    """The free capacity of all nodes, with an index that follows every change. `positions`: each node's index in
    `nodes`, by name. Read `nodes` again after a change: the node may be another object."""

    __slots__ = ("_borrowed", "_has_locations", "changes", "nodes", "parts", "positions", "scorer")

    def __init__(self, nodes: list[NodeCapacity], positions: dict[str, int]) -> None:
        self.nodes = nodes
        self.positions = positions
        # The orders of the nodes whose objects are shared with another FreeCapacity: they are copied before a
        # change.
        self._borrowed: set[int] = set()
        # One index per pool; in a cluster with several locations, one per pool and location.
        self.parts: dict[str, PoolIndex] = {}
        self._has_locations = any(node.location for node in nodes)
        # Chooses nodes and devices; None selects the tightest fit.
        self.scorer: Scorer | None = None
        # The orders of the nodes that changed, oldest change first: a search that failed looks again at these
        # only.
        self.changes: list[int] = []
        for node in nodes:
            if node.is_open:
                self._index(node)

    def copy(self) -> FreeCapacity:
        """Return an independent copy. That costs less than building the index again."""
        return self._twin([node.copy() for node in self.nodes], set())

    def borrowed(self) -> FreeCapacity:
        """Return a copy that is valid only until this capacity changes: it shares the node objects, and copies those
        that change in it."""
        return self._twin(self.nodes.copy(), set(range(len(self.nodes))))

    def without_index(self) -> FreeCapacity:
        """Return a copy as `borrowed` does, in which no pods can be placed. Changes of it cost less."""
        twin = self.borrowed()
        twin.parts = {}
        return twin

    def _twin(self, nodes: list[NodeCapacity], borrowed: set[int]) -> FreeCapacity:
        twin = FreeCapacity.__new__(FreeCapacity)
        twin.nodes, twin._borrowed = nodes, borrowed
        twin.positions, twin._has_locations = self.positions, self._has_locations
        twin.changes = []
        twin.scorer = None if self.scorer is None else self.scorer.twin()
        twin.parts = {name: index.copy() for name, index in self.parts.items()}
        return twin

    def parts_of(self, pools: Sequence[str] = (), locations: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the names of the parts (pool and location) in these pools and locations, sorted. An empty argument
        means all."""
        if not locations and not pools:
            return tuple(sorted(self.parts))
        if not (locations or self._has_locations) and len(pools) == 1 and pools[0] in self.parts:
            # Without locations the parts are the pools.
            return tuple(pools)
        return tuple(
            name
            for name in sorted(self.parts)
            for index in (self.parts[name],)
            if (not pools or index.pool in pools) and (not locations or index.location in locations)
        )

    def take(self, placement: PodPlacement, need: Need) -> None:
        """Subtract what one pod uses. The caller has checked that this is free."""
        self.change(placement, -1, need)

    def give(self, placement: PodPlacement, need: Need) -> None:
        """Add back what one pod used."""
        self.change(placement, 1, need)

    def free_milli_gpus(
        self, pools: Sequence[str] = (), but_on: Collection[str] = (), locations: Sequence[str] = ()
    ) -> int:
        """Return how many milli-GPUs are free on the open nodes of these pools and locations (empty: all), without
        the nodes `but_on`."""
        return sum(
            sum(node.free)
            for node in self.nodes
            if node.is_open
            and (not pools or node.pool in pools)
            and (not locations or node.location in locations)
            and node.name not in but_on
        )

    def most_whole(self, pools: Sequence[str] = (), locations: Sequence[str] = ()) -> int:
        """Return the largest number of free whole devices on one open node of these pools and locations (empty:
        all)."""
        parts = self.parts_of(pools, locations)
        return max((_last_filled(self.parts[part].by_whole) for part in parts), default=0)

    def touch(self, name: str) -> None:
        """Record that a node has changed, so that searches examine it again. A node that is not in the view is
        ignored."""
        if name in self.positions:
            self.changes.append(self.positions[name])

    def is_open(self, name: str) -> bool:
        """Return whether the node accepts new pods; False if it is not in the view."""
        return name in self.positions and self.node(name).is_open

    def node(self, name: str) -> NodeCapacity:
        """Return the node with this name. Raise KeyError if it is not in the view."""
        return self.nodes[self.positions[name]]

    def set_to_least(self, order: int, one: NodeCapacity, other: NodeCapacity) -> None:
        """Set each free amount of a node (devices, CPUs, memory, extra resources) to the smaller of those of `one`
        and `other`. `order`: the node's index."""
        node = self._own(order)
        node.version += 1
        whole = node.whole
        least = list(map(min, one.free, other.free))
        # Mostly few devices differ, or none: the comparison of the lists takes less time than that of each device.
        if least != node.free:
            for position, free in enumerate(node.free):
                if least[position] != free:
                    self._change_device(node, position, least[position] - free)
        node.milli_cpus = min(one.milli_cpus, other.milli_cpus)
        node.memory_mib = min(one.memory_mib, other.memory_mib)
        for name, amount in one.extras.items():
            node.extras[name] = min(amount, other.extras.get(name, 0))
        self._reindex(node, whole)

    def change(self, placement: PodPlacement, sign: int, need: Need) -> None:
        """Take (`sign` -1) or give back (`sign` 1) what one pod uses. Nodes and devices that have left the cluster
        are ignored."""
        order = self.positions.get(placement.node)
        if order is None:
            # The node has left the cluster, so there is no capacity to change.
            return
        node = self._own(order)
        self.changes.append(order)
        node.change_host(need, sign)
        whole = node.whole
        for index, milli_gpus in placement.devices:
            # The device was removed from its node, so the pod holds none of it any more.
            if index in node.indexes:
                self._change_device(node, node.indexes.index(index), sign * milli_gpus)
        self._reindex(node, whole)

    def _own(self, order: int) -> NodeCapacity:
        """Return the node object to change; a shared one is copied first."""
        if order in self._borrowed:
            self._borrowed.remove(order)
            self.nodes[order] = self.nodes[order].copy()
        return self.nodes[order]

    def _reindex(self, node: NodeCapacity, whole: int) -> None:
        """Move a node that had `whole` free devices before to its place in the index."""
        if node.whole != whole and node.is_open and self.parts:
            by_whole = self.parts[node.part].by_whole
            _remove(by_whole[whole], node.order)
            insort(by_whole[node.whole], node.order)

    def _change_device(self, node: NodeCapacity, position: int, milli_gpus: int) -> None:
        before = node.free[position]
        after = node.free[position] = before + milli_gpus
        node.whole += (after == WHOLE_GPU) - (before == WHOLE_GPU)
        if not node.is_open or not self.parts:
            return
        shared = self.parts[node.part].shared[node.modes[position]]
        # This index contains only partly used devices, because shares are placed on those first.
        if 0 < before < WHOLE_GPU:
            _remove(shared, (before, node.order, position))
        if 0 < after < WHOLE_GPU:
            insort(shared, (after, node.order, position))

    def _index(self, node: NodeCapacity) -> None:
        index = self.parts.get(node.part)
        if index is None:
            index = self.parts[node.part] = PoolIndex(node.pool, node.location)
        while len(index.by_whole) <= len(node.free):
            index.by_whole.append([])
        index.by_whole[node.whole].append(node.order)
        for mode in {*node.modes} - index.shared.keys():
            index.shared[mode] = []
        if node.whole == len(node.free) or not any(node.free):
            return
        for position, free in enumerate(node.free):
            if 0 < free < WHOLE_GPU:
                insort(index.shared[node.modes[position]], (free, node.order, position))


class Capacity:
    """The free capacity of a cluster, at present and after stopping jobs have ended.

    `soon`: free once everything that stops has ended, less promises. `now`: free at present and not promised.
    `_idle`: free at present, with promised capacity counted as free. `now` is always the smaller of `_idle` and
    `soon`, whatever is promised and withdrawn meanwhile.
    """

    __slots__ = ("_idle", "now", "soon")

    def __init__(self, now: FreeCapacity, soon: FreeCapacity, idle: FreeCapacity) -> None:
        self.now = now
        self.soon = soon
        self._idle = idle

    def without_promises(self) -> FreeCapacity:
        """Return a copy of `now` in which promised capacity is free. For explanations only."""
        # Copied because giving promised capacity back in place would offer it to the jobs that are decided
        # next.
        capacity = self.now.copy()
        for node in self._idle.nodes:
            capacity.set_to_least(node.order, node, node)
        return capacity

    def forget_changes(self) -> None:
        """Empty the lists of changed nodes. Positions in them that searches have remembered are invalid then."""
        for capacity in (self.now, self.soon, self._idle):
            capacity.changes.clear()

    def has_host_capacity_now(self, name: str, need: Need, pods: int) -> bool:
        """Return whether a node has the CPUs, memory and extra resources for `pods` pods at present, with promised
        ones counted as free."""
        node = self._idle.node(name).copy()
        # `has_host_capacity` checks for one pod, so the other pods are subtracted first.
        node.change_host(need, 1 - pods)
        return node.has_host_capacity(need)

    def on_idle_devices(self, job: JobView, placements: Sequence[PodPlacement]) -> tuple[PodPlacement, ...]:
        """Return the pods on the same nodes, but on devices that are idle at present where possible; pods
        without whole devices unchanged.

        Devices that stopping jobs hold are used last, so that an elastic victim can keep its workers on them. On a node
        that lacks only CPUs or memory they are used first, because only the workers that leave them free these.
        """
        if job.gpu_memory_mib is not None or job.milli_gpus < WHOLE_GPU:
            # A share is of one device: another may have less memory.
            return tuple(placements)
        pods = Counter(pod.node for pod in placements)
        short = {name for name, count in pods.items() if self._lacks_only_host(name, job, count)}
        used: set[tuple[str, int]] = set()
        found = []
        for pod in placements:
            soon, now = self.soon.node(pod.node), self.now.node(pod.node)
            own = dict(pod.devices)
            # Equal devices stay: others may be kept for a gang.
            free = [
                ((now.free[at] == WHOLE_GPU) == (pod.node in short), index not in own, index)
                for at, index in enumerate(soon.indexes)
                if soon.free[at] == WHOLE_GPU and (pod.node, index) not in used
            ]
            chosen = sorted(index for *_, index in sorted(free)[: len(pod.devices)])
            used |= {(pod.node, index) for index in chosen}
            found.append(replace(pod, devices=tuple((index, WHOLE_GPU) for index in chosen)))
        return tuple(found)

    def _lacks_only_host(self, name: str, job: JobView, pods: int) -> bool:
        """Return whether a node has enough idle devices for these pods, but too few CPUs, memory or extra resources."""
        both = zip(self.now.node(name).free, self.soon.node(name).free, strict=True)
        idle = sum(now == soon == WHOLE_GPU for now, soon in both)
        return idle * WHOLE_GPU >= pods * job.milli_gpus and not self.has_host_capacity_now(name, job, pods)

    def start(self, job: JobView, placements: Iterable[PodPlacement], sign: int = -1) -> None:
        """Take capacity for a job that starts; with `sign` 1, undo that. The caller has checked that it is free at
        present."""
        for placement in placements:
            for capacity in (self.now, self.soon, self._idle):
                capacity.change(placement, sign, job)

    def stop(self, job: JobView, sign: int = 1) -> None:
        """Count what a running job holds as free `soon`; with `sign` -1, undo that."""
        self._change_soon(job, job.placements, sign)

    def promise(self, job: JobView, placements: Iterable[PodPlacement], sign: int = -1) -> None:
        """Promise capacity to a job, of which a part may become free only `soon`; with `sign` 1, undo that."""
        self._change_soon(job, placements, sign)

    def _change_soon(self, job: JobView, placements: Iterable[PodPlacement], sign: int) -> None:
        for placement in placements:
            self.soon.change(placement, sign, job)
            order = self.soon.positions.get(placement.node)
            if order is not None:
                # What is promised from `soon` must not be assigned now either.
                self.now.set_to_least(order, self._idle.nodes[order], self.soon.nodes[order])


def _last_filled(buckets: Sequence[Sequence[int]]) -> int:
    return next((place for place in reversed(range(len(buckets))) if buckets[place]), 0)


def _remove(ordered: list[Any], item: Any) -> None:
    del ordered[bisect_left(ordered, item)]
