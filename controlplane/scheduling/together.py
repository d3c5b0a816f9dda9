"""Place several jobs at once, by trying all combinations within bounds: to place one after the other may miss a
solution."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from controlplane.scheduling.capacity import WHOLE_GPU, FreeCapacity, NodeCapacity
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.fit import Request, place, pods_on
from controlplane.scheduling.limits import must_wait_for_limits
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.view import PodPlacement, SharingMode

# Bounds on the time of one attempt, because the number of ways to place jobs together grows exponentially
# with their number.
MAX_JOBS = 12
MAX_STEPS = 3000
MAX_WAYS = 200


def serve_together(
    state: CycleState, starts: Sequence[Waiting], promised: Sequence[Waiting], beside: Collection[str] = ()
) -> bool:
    """Start all of `starts`, and start or promise all of `promised`. Return whether all were served; if not, nothing
    is changed.

    If not all of `starts` can start, promises are allowed for them too. Jobs whose ids are in `beside` get no
    capacity that is reserved for a gang.
    """
    items = [*starts, *promised]
    if not _have_slots(state.capacity.soon, [item.request for item in items]):
        return False
    # The largest first, because they have the fewest possible places.
    items.sort(key=lambda item: (-item.request.milli_gpus, -item.request.milli_cpus, item.job.submit_rank))
    mark = state.mark()
    # Starting is better than waiting for capacity that is being freed, and waiting is better than stopping one
    # more job.
    for must_start in ({item.job.id for item in starts}, set()):
        if _Search(state, must_start, beside).serve(items, 0):
            _start_more(state, items, promised, beside)
            return True
        state.roll_back(mark)
    return False


def _have_slots(room: FreeCapacity, requests: Sequence[Request]) -> bool:
    """Return False if the pods cannot all fit: for some number of devices, all nodes together have fewer slots than
    there are pods of that size and larger. The test is quick: True proves nothing."""
    for size in {request.whole_devices for request in requests if request.whole_devices}:
        slots = sum(
            len(bucket) * (whole // size)
            for part in room.parts.values()
            for whole, bucket in enumerate(part.by_whole)
        )
        if slots < sum(request.pods for request in requests if request.whole_devices >= size):
            return False
    return True


def _start_more(
    state: CycleState, items: Sequence[Waiting], promised: Sequence[Waiting], beside: Collection[str]
) -> None:
    """Turn promises into starts where that is possible, in queue order, by moving the other jobs. The next cycle
    would do so anyway."""
    for item in promised:
        if item.job.id not in state.promises or must_wait_for_limits(item):
            continue
        must_start = {one.job.id for one in items if one.job.id in state.starts} | {item.job.id}
        mark = state.mark()
        for one in items:
            state.withdraw(one)
        needed = sum(one.milli_gpus for one in items if one.job.id in must_start)
        has_room = state.capacity.now.free_milli_gpus() >= needed and place(item.request, state.capacity.now)
        if not has_room or not _Search(state, must_start, beside).serve(items, 0):
            state.roll_back(mark)


@dataclass(slots=True)
class _Search:
    state: CycleState
    must_start: set[str]
    beside: Collection[str]
    steps: int = MAX_STEPS

    def serve(self, items: Sequence[Waiting], at: int) -> bool:
        """Serve the items from the index `at` on, trying every placement of each while `steps` are left. Return whether
        all were served; if not, nothing is changed."""
        if at == len(items):
            return True
        item, capacity = items[at], self.state.capacity
        ways: list[tuple[FreeCapacity, Callable[[Waiting, tuple[PodPlacement, ...]], None]]] = []
        if not must_wait_for_limits(item):
            ways.append((capacity.now, self.state.start))
        if item.job.id not in self.must_start:
            ways.append((capacity.soon, self.state.promise))
        for room, move in ways:
            for placements in self._gangs(item, room):
                self.steps -= 1
                if self.steps < 0:
                    return False
                mark = self.state.mark()
                move(item, placements)
                if self.serve(items, at + 1):
                    return True
                self.state.roll_back(mark)
        return False

    def _gangs(self, item: Waiting, room: FreeCapacity) -> Iterable[tuple[PodPlacement, ...]]:
        reservation = self.state.reservation
        if reservation is None or item.job.id not in self.beside:
            return _gangs(item.request, room)
        with reservation.kept(room):
            return list(_gangs(item.request, room))


def _gangs(request: Request, room: FreeCapacity) -> Iterator[tuple[PodPlacement, ...]]:
    """Yield the ways to place the whole gang, at most MAX_WAYS in each of its pools; permutations of equal pods count
    once. `room` is unchanged at each yield."""
    choices: list[tuple[str, ...]] = [(pool,) for pool in request.pools]
    for pools in choices or [()]:
        nodes = _nodes_with(request.whole_devices, room, room.parts_of(pools, request.locations))
        nodes.sort(key=lambda node: (node.whole, node.milli_cpus, node.order))
        if request.is_share:
            ways = _rest_of_gang(request, room, [node.order for node in nodes], [])
        else:
            ways = _rest_on_whole(request.pods, _node_fits(request, nodes), (0, 0), ())
        yield from list(islice(ways, MAX_WAYS))


def _nodes_with(devices: int, room: FreeCapacity, parts: Iterable[str]) -> list[NodeCapacity]:
    """Return the open nodes of these parts with at least `devices` free whole devices."""
    return [
        room.nodes[order]
        for part in parts
        for bucket in room.parts[part].by_whole[devices:]
        for order in bucket
    ]


@dataclass(frozen=True, slots=True)
class _NodeFit:
    """A node on which pods fit. `devices`: for each of these pods, its whole devices. `pods_left`: how many pods fit
    on this node and all later ones together."""

    node: str
    devices: Sequence[tuple[tuple[int, int], ...]]
    pods_left: int


def _node_fits(request: Request, nodes: Sequence[NodeCapacity]) -> list[_NodeFit]:
    """Return what fits on each of these nodes. `request`: for whole devices or no GPU."""
    found: list[_NodeFit] = []
    left, count = 0, request.whole_devices
    for node in reversed(nodes):
        is_usable = node.has_host_capacity(request) and not (count and node.is_divided)
        pods = pods_on(request, node) if is_usable else 0
        whole = [index for index, milli in zip(node.indexes, node.free, strict=True) if milli == WHOLE_GPU]
        devices = [
            tuple((index, WHOLE_GPU) for index in whole[pod * count : (pod + 1) * count])
            for pod in range(pods)
        ]
        left += pods
        found.append(_NodeFit(node.name, devices, left))
    return found[::-1]


def _rest_on_whole(
    pods: int, fits: Sequence[_NodeFit], at: tuple[int, int], placed: tuple[PodPlacement, ...]
) -> Iterator[tuple[PodPlacement, ...]]:
    """Yield the ways to place the rest of a gang of whole devices. `at`: (index of the current node, pods that it has
    already); `placed`: the pods so far.

    Free amounts are counted here instead of in the FreeCapacity, so that no capacity is taken and given back for each
    way.
    """
    for spot in range(at[0], len(fits)):
        fit, taken = fits[spot], at[1] if spot == at[0] else 0
        if fit.pods_left - taken < pods - len(placed):
            return
        if taken < len(fit.devices):
            here = (*placed, PodPlacement(len(placed), fit.node, fit.devices[taken]))
            if len(here) == pods:
                yield here
            else:
                yield from _rest_on_whole(pods, fits, (spot, taken + 1), here)


def _rest_of_gang(
    request: Request, room: FreeCapacity, orders: Sequence[int], placed: Sequence[PodPlacement]
) -> Iterator[tuple[PodPlacement, ...]]:
    """Yield the ways to place the rest of a gang, pod by pod, on the nodes with these orders."""
    is_last = len(placed) + 1 == request.pods
    for at, order in enumerate(orders):
        node = room.nodes[order]
        for devices in _devices(request, node):
            placement = PodPlacement(len(placed), node.name, devices)
            if is_last:
                yield (*placed, placement)
                continue
            room.take(placement, request)
            # A list, because the room must be given back before the caller modifies it. Only nodes from this
            # one on are tried, since another order of the same pods is the same gang.
            found = list(islice(_rest_of_gang(request, room, orders[at:], [*placed, placement]), MAX_WAYS))
            room.give(placement, request)
            yield from found


def _devices(request: Request, node: NodeCapacity) -> list[tuple[tuple[int, int], ...]]:
    """Return the ways to place one pod on a node; devices with equal free capacity count once. [] if it does
    not fit."""
    if not node.has_host_capacity(request):
        return []
    if not request.is_share:
        whole = [index for index, milli in zip(node.indexes, node.free, strict=True) if milli == WHOLE_GPU]
        count = request.whole_devices
        if len(whole) < count or (count and node.is_divided):
            return []
        return [tuple((index, WHOLE_GPU) for index in whole[:count])]
    ways: dict[tuple[int, SharingMode], tuple[tuple[int, int], ...]] = {}
    for index, free, mode in zip(node.indexes, node.free, node.modes, strict=True):
        share = request.share_of(mode)
        if share <= free:
            ways.setdefault((free, mode), ((index, share),))
    return [ways[key] for key in sorted(ways)]
