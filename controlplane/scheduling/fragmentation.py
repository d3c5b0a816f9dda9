"""Scorer by fragmentation gradient: place a pod where it makes the fewest free GPUs useless for the usual mix
of pods.

Weng et al., "Beware of Fragmentation", USENIX ATC 2023. For a kind of pod, the free capacity of a node is
useless as a whole if such a pod does not fit there; else the devices with less free than the pod requests are
useless. The score of a place is the change of the mean over the mix, in 25 steps: among places within one step,
the node with the least free capacity wins. A pod without GPUs goes to the node with the fewest free ones, where
it takes no processors that pods with GPUs will need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import exp

from controlplane.scheduling.capacity import WHOLE_GPU, FreeCapacity, NodeCapacity
from controlplane.scheduling.fit import Request
from controlplane.scheduling.view import JobView, SharingMode

# The mix consists of the most frequent requests; a mix without the rarest 5 % of pods leaves more GPUs useless (openb).
MOST_KINDS = 200
STEPS = 25
# Bounds the memory of the cache of scored node states.
MOST_STATES = 100_000

_State = tuple[tuple[SharingMode, ...], tuple[int, ...], int, int]
_Scored = tuple[int, int, int, tuple[tuple[int, int], ...]]
"""(minus the score, free milli-GPUs, order of the node, devices): the smallest is the best place."""


def popular(counts: Mapping[Request, int]) -> list[tuple[Request, int]]:
    """Return the mix: the MOST_KINDS most frequent requests, each with its number of pods. `counts`: number of pods by
    request."""
    return sorted(counts.items(), key=lambda pair: (-pair[1], repr(pair[0])))[:MOST_KINDS]


def kind_of(job: JobView) -> Request:
    """Return what one pod of the job requests, without pools and locations: its kind in the mix."""
    return Request(job.milli_gpus, job.gpu_memory_mib, 1, job.milli_cpus, job.memory_mib, (), job.extras)


class Gradient:
    """Chooses the devices of pods by how they change the fragmentation of one FreeCapacity. `mix`: requests with
    their number of pods."""

    def __init__(self, mix: Sequence[tuple[Request, int]]) -> None:
        self.mix = mix
        self._total = max(1, sum(count for _, count in mix))
        self._useless: dict[_State, float] = {}
        self._by_devices: dict[tuple[tuple[SharingMode, ...], tuple[int, ...]], list[int]] = {}
        # Per request and node, the node's version and its best place at that version, because most nodes do not change
        # from one search to the next.
        self._scored: dict[Request, list[tuple[int, _Scored | None]]] = {}

    def twin(self) -> Gradient:
        """Return a Gradient for the same mix without cached scores, for a copy of the capacity."""
        return Gradient(self.mix)

    def place_pod(
        self, request: Request, room: FreeCapacity, parts: Collection[str], avoid: Collection[str]
    ) -> tuple[str, tuple[tuple[int, int], ...]] | None:
        """Return the node and ((device index, milli-GPUs), ...) for one pod; None if it fits nowhere. `parts`: the
        parts of `room` to use; `avoid`: names of nodes not to use."""
        known = self._scored.setdefault(request, [(-1, None)] * len(room.nodes))
        best: _Scored | None = None
        for node in room.nodes:
            version, scored = known[node.order]
            if version != node.version:
                scored = self._score(request, node)
                known[node.order] = (node.version, scored)
            is_allowed = node.is_open and node.part in parts and node.name not in avoid
            if is_allowed and scored is not None and (best is None or scored < best):
                best = scored
        return None if best is None else (room.nodes[best[2]].name, best[3])

    def useless_on(self, node: NodeCapacity) -> float:
        """Return how many free milli-GPUs of a node pods cannot use, as the weighted mean over the pods of the mix."""
        return self._useless_on((node.modes, tuple(node.free), node.milli_cpus, node.memory_mib))

    def _score(self, request: Request, node: NodeCapacity) -> _Scored | None:
        if not node.has_host_capacity(request) or (request.whole_devices and node.is_divided):
            return None
        if not (request.is_share or request.whole_devices):
            return (0, sum(node.free), node.order, ())
        cpus, memory = node.milli_cpus - request.milli_cpus, node.memory_mib - request.memory_mib
        before = self.useless_on(node)
        found: _Scored | None = None
        free_milli_gpus = sum(node.free)
        for devices in _ways(request, node):
            free = node.free.copy()
            for position, milli_gpus in devices:
                free[position] -= milli_gpus
            after = self._useless_on((node.modes, tuple(free), cpus, memory))
            gain = (before - after) / WHOLE_GPU
            score = int(STEPS / (1 + exp(-gain)))
            named = tuple((node.indexes[position], milli_gpus) for position, milli_gpus in devices)
            if found is None or -score < found[0]:
                found = (-score, free_milli_gpus, node.order, named)
        return found

    def _useless_on(self, state: _State) -> float:
        modes, free, cpus, memory = state
        order = sorted(range(len(free)), key=lambda at: (free[at], modes[at]))
        state = (tuple(modes[at] for at in order), tuple(free[at] for at in order), cpus, memory)
        found = self._useless.get(state)
        if found is None:
            if len(self._useless) >= MOST_STATES:
                self._useless.clear()
                self._by_devices.clear()
            found = self._useless[state] = self._examine(state)
        return found

    def _examine(self, state: _State) -> float:
        modes, free, cpus, memory = state
        by_devices = self._by_devices.get((modes, free))
        if by_devices is None:
            by_devices = [_useless_devices(request, modes, free) for request, _ in self.mix]
            self._by_devices[modes, free] = by_devices
        whole = sum(free)
        lost = sum(
            count * (useless if request.milli_cpus <= cpus and request.memory_mib <= memory else whole)
            for (request, count), useless in zip(self.mix, by_devices, strict=True)
        )
        return lost / self._total


def _useless_devices(request: Request, modes: Sequence[SharingMode], free: Sequence[int]) -> int:
    """Return the free milli-GPUs on devices that a pod cannot use: all of them if the pod does not fit or requests no
    GPU."""
    if request.is_share:
        shares = [request.share_of(mode) for mode in modes]
        if not any(left >= share for left, share in zip(free, shares, strict=True)):
            return sum(free)
        return sum(left for left, share in zip(free, shares, strict=True) if left < share)
    needed = request.whole_devices
    whole = free.count(WHOLE_GPU)
    return sum(free) - whole * WHOLE_GPU if needed and whole >= needed else sum(free)


def _ways(request: Request, node: NodeCapacity) -> list[tuple[tuple[int, int], ...]]:
    """Return the ways to place a pod on a node, each as ((device position, milli-GPUs), ...), the fullest devices
    first. Equally free devices count once."""
    if request.is_share:
        ways: dict[tuple[int, SharingMode], tuple[tuple[int, int], ...]] = {}
        for position, (free, mode) in enumerate(zip(node.free, node.modes, strict=True)):
            share = request.share_of(mode)
            if share <= free:
                ways.setdefault((free, mode), ((position, share),))
        return [way for _, way in sorted(ways.items())]
    whole = [position for position, free in enumerate(node.free) if free == WHOLE_GPU]
    needed = request.whole_devices
    return [tuple((position, WHOLE_GPU) for position in whole[:needed])] if len(whole) >= needed else []
