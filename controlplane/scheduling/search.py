"""Find the cheapest set of victims that a policy accepts and that makes room for a whole gang.

Exact in devices when one pod is missing, on any cluster, and for gangs on up to MAX_NODES candidate nodes
within MAX_STEPS steps. Beyond that: the best set found so far, from which no victim can be removed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import combinations
from math import ceil, comb

from controlplane.scheduling.capacity import WHOLE_GPU, FreeCapacity, NodeCapacity
from controlplane.scheduling.fit import Request, pods_that_fit
from controlplane.scheduling.host_shortage import missing_on, part_of, pods_after, pods_on
from controlplane.scheduling.victims import Candidate, Cost, VictimClass, VictimPolicy, preemption_cost

MAX_STEPS = 2000
MAX_NODES = 16
MAX_CHOICES = 500
# Pods of a gang beyond which only the greedy set is tried.
MAX_BRANCHED = 64

Bound = tuple[int, int, int, tuple[int, ...]]


class _Local:
    """One node and the candidates that run on it. `bound`: lower bound on the cost of room for one more pod
    here."""

    __slots__ = ("_room_for", "bound", "candidates", "holders", "holds", "node", "pods_before", "request")

    def __init__(self, request: Request, node: NodeCapacity, candidates: list[Candidate]) -> None:
        self.request = request
        self.node = node
        self.candidates = candidates
        self._room_for: int | None = None
        # no node has room for a single pod, or it would not be searched for
        self.pods_before = pods_on(request, node) if request.pods > 1 else 0
        self.bound = _bound(request, self, 1)
        self.holders: list[list[Candidate]] | None = None
        self.holds: list[int] = []

    @property
    def room_for(self) -> int:
        """Return how many more pods fit here without stopping any candidate."""
        if self._room_for is None:
            self._room_for = pods_after(self.request, self.node, self.candidates) - self.pods_before
        return self._room_for

    def by_device(self) -> tuple[list[list[Candidate]], list[int]]:
        """Return per device the candidates that hold a part of it, and the milli-GPUs that they hold
        together."""
        if self.holders is None:
            node = self.node
            self.holders, self.holds = [[] for _ in node.free], [0] * len(node.free)
            for candidate in self.candidates:
                for index, milli_gpus in candidate.on_node(node.name):
                    # Else the device has left its node.
                    if index in node.indexes:
                        position = node.indexes.index(index)
                        self.holders[position].append(candidate)
                        self.holds[position] += milli_gpus
        return self.holders, self.holds


@dataclass(slots=True)
class _Search:
    """The best set so far, and what is left of the step budget."""

    request: Request
    gate: VictimPolicy
    locals: Mapping[str, _Local]
    needed: int
    steps: int = MAX_STEPS
    best: frozenset[Candidate] | None = None
    best_harm: Cost | None = None

    def offer(self, victims: frozenset[Candidate]) -> None:
        """Keep the set if it is the cheapest so far and the policy accepts it."""
        cost = preemption_cost(victims)
        if (self.best_harm is None or cost < self.best_harm) and self.gate.accepts(victims):
            self.best, self.best_harm = victims, cost


def find_victims(
    request: Request, room: FreeCapacity, gate: VictimPolicy, by_node: Mapping[str, Sequence[Candidate]]
) -> frozenset[Candidate] | None:
    """Return the cheapest set of victims without which the whole gang fits into `room`; None if there is
    none.

    `by_node`: preemptible running jobs by the name of each node that they use.
    """
    choices: list[tuple[str, ...]] = [(pool,) for pool in request.pools] or [()]
    found = [_search_in(request, room, gate, by_node, pools) for pools in choices]
    sets = [victims for victims in found if victims is not None]
    return min(sets, key=preemption_cost, default=None)


def _search_in(
    request: Request,
    room: FreeCapacity,
    gate: VictimPolicy,
    by_node: Mapping[str, Sequence[Candidate]],
    pools: tuple[str, ...],
) -> frozenset[Candidate] | None:
    missing = request.pods - pods_that_fit(replace(request, pools=pools), room, request.pods)
    if missing <= 0:
        # Nothing is missing, so no job has to go.
        return None
    if request.pods == 1 and isinstance(by_node, Candidates):
        return _search_indexed(replace(request, pools=pools), room, gate, by_node)
    by_name: dict[str, _Local] = {}
    verdicts: dict[VictimClass, bool] = {}
    for node in room.nodes:
        if node.is_open and (not pools or node.pool in pools):
            candidates = _givers(by_node.get(node.name, ()), gate, verdicts)
            if candidates and _could_host(request, node, candidates):
                by_name[node.name] = _Local(request, node, candidates)
    search = _Search(request, gate, by_name, missing)
    ordered = sorted(by_name.values(), key=lambda local: (local.bound, local.node.order))
    if missing == 1:
        _search_one_pod(search, ordered)
    else:
        _search_gang(search, ordered)
    return None if search.best is None else _spare(search, search.best)


class Candidates(dict[str, list[Candidate]]):
    """Preemptible running jobs by the name of each node that they use, with an index for each request."""

    def __init__(self) -> None:
        super().__init__()
        self._indexes: dict[Request, _NodeIndex] = {}

    def index(self, request: Request, room: FreeCapacity) -> _NodeIndex:
        """Return the nodes sorted by the cost of room for one pod, kept in step with `room`, which must
        always be the same object."""
        if request not in self._indexes:
            self._indexes[request] = _NodeIndex(request, room, self)
        return self._indexes[request]


class _NodeIndex:
    """Nodes sorted by a lower bound on the cost of room for one pod, whatever the policy.

    Only nodes that changed since the last call are examined again: otherwise many equal jobs that reclaim in
    one cycle would each search every node.
    """

    def __init__(self, request: Request, room: FreeCapacity, candidates: Candidates) -> None:
        self._request = request
        self._room = room
        self._candidates = candidates
        self._versions = [0] * len(room.nodes)
        self._heap: list[tuple[Bound, int, int]] = []
        self._seen = 0
        for node in room.nodes:
            self._push(node)
        heapify(self._heap)
        self._seen = len(room.changes)

    def ascending(self) -> Generator[tuple[Bound, NodeCapacity], None, None]:
        """Iterate over the nodes, cheapest first."""
        changed = set(self._room.changes[self._seen :])
        self._seen = len(self._room.changes)
        for order in changed:
            self._versions[order] += 1
            self._push(self._room.nodes[order], is_heap=True)
        taken = []
        try:
            while self._heap:
                entry = heappop(self._heap)
                bound, order, version = entry
                if version == self._versions[order]:
                    taken.append(entry)
                    yield bound, self._room.nodes[order]
        finally:
            for entry in taken:
                heappush(self._heap, entry)

    def _push(self, node: NodeCapacity, *, is_heap: bool = False) -> None:
        candidates = self._candidates.get(node.name)
        pools = self._request.pools
        if not candidates or not node.is_open or (pools and node.pool not in pools):
            return
        if _could_host(self._request, node, candidates):
            bound = _Local(self._request, node, candidates).bound
            entry = (bound, node.order, self._versions[node.order])
            if is_heap:
                heappush(self._heap, entry)
            else:
                self._heap.append(entry)


def _search_indexed(
    request: Request, room: FreeCapacity, gate: VictimPolicy, by_node: Candidates
) -> frozenset[Candidate] | None:
    """Search for one pod, which needs one node: stop at the first whose bound is above the best set."""
    found: dict[str, _Local] = {}
    search = _Search(request, gate, found, 1)
    verdicts: dict[VictimClass, bool] = {}
    with closing(by_node.index(request, room).ascending()) as nodes:
        for bound, node in nodes:
            if search.best_harm is not None and bound > search.best_harm[:4]:
                break
            givers = _givers(by_node[node.name], gate, verdicts)
            if givers and _could_host(request, node, givers):
                local = found[node.name] = _Local(request, node, givers)
                for victims in _options(request, local, 1):
                    search.offer(victims)
    return None if search.best is None else _spare(search, search.best)


def _givers(
    here: Sequence[Candidate], gate: VictimPolicy, verdicts: dict[VictimClass, bool]
) -> list[Candidate]:
    """Return the candidates that the policy accepts. Candidates of a class are judged alike, so each class is
    judged once."""
    givers = []
    for candidate in here:
        verdict = verdicts.get(candidate.victim_class)
        if verdict is None:
            verdict = verdicts[candidate.victim_class] = gate.may_give(candidate)
        if verdict:
            givers.append(candidate)
    return givers


def _could_host(request: Request, node: NodeCapacity, candidates: Sequence[Candidate]) -> bool:
    """Return whether enough devices could be free for one pod; a quick test without false negatives."""
    devices = request.whole_devices
    if devices == 0:
        return True
    if node.is_divided:
        return False
    return node.whole + sum(len(item.on_node(node.name)) for item in candidates) >= devices


def _bound(request: Request, local: _Local, more: int) -> Bound:
    """Return a lower bound on the cost of freeing room for `more` pods on this node."""
    name = local.node.name
    missing = (local.pods_before + more) * request.whole_devices - local.node.whole
    real = local.candidates
    gains = [len(candidate.on_node(name)) for candidate in real]
    if missing <= 0 or not real:
        return (0, 0, 0, ())
    if missing <= max(gains):
        return (
            1,
            min([item.milli_gpus for item in real]),
            min([item.work_lost for item in real]),
            (min([-item.job.submit_rank for item in real]),),
        )
    fewest = 0
    for gain in sorted(gains, reverse=True):
        if missing <= 0:
            break
        fewest, missing = fewest + 1, missing - gain
    return (
        fewest,
        sum(sorted(item.milli_gpus for item in real)[:fewest]),
        sum(sorted(item.work_lost for item in real)[:fewest]),
        tuple(sorted(-item.job.submit_rank for item in real)[:fewest]),
    )


def _search_one_pod(search: _Search, ordered: Sequence[_Local]) -> None:
    """Search for one more pod, which needs one node: visit nodes by their bound and stop when none can be
    better."""
    for local in ordered:
        if search.best_harm is not None and local.bound > search.best_harm[:4]:
            return
        for victims in _options(search.request, local, 1):
            search.offer(victims)


def _search_gang(search: _Search, ordered: Sequence[_Local]) -> None:
    """Search for a gang: first fill the nodes with the lowest bounds one after another; then branch over the
    best nodes."""
    _offer_greedy(search, ordered)
    if search.needed > MAX_BRANCHED:
        return
    nodes = _best_nodes(search, ordered)
    devices = max(1, search.request.whole_devices)
    others = [item for local in nodes for item in local.candidates]
    most = max(
        (sum(1 + len(pod.devices) // devices for pod in item.placements) for item in others), default=1
    )
    is_bounded = search.request.whole_devices > 0
    room_left = [0]
    for local in reversed(nodes):
        room_left.append(room_left[-1] + local.room_for)
    _branch(search, _Branching(nodes, room_left[::-1], most if is_bounded else None), 0, frozenset())


def _offer_greedy(search: _Search, ordered: Sequence[_Local]) -> None:
    gains = _Gains(search, ())
    for local in ordered:
        missing = search.needed - gains.total
        for more in range(min(missing, local.room_for), 0, -1):
            options = [frozenset(option) - gains.victims for option in _options(search.request, local, more)]
            fair = [option for option in options if search.gate.accepts(gains.victims | option)]
            if fair:
                gains.add(min(fair, key=preemption_cost))
                break
        if gains.total >= search.needed:
            search.offer(frozenset(gains.victims))
            return


class _Gains:
    """How many more pods fit once some jobs are stopped, node by node."""

    def __init__(self, search: _Search, victims: Iterable[Candidate]) -> None:
        self._search = search
        self._by_node: dict[str, int] = {}
        self.victims: set[Candidate] = set()
        self.total = 0
        self.add(victims)

    def add(self, victims: Iterable[Candidate]) -> None:
        """Add jobs to the stopped ones."""
        added = set(victims)
        self.victims |= added
        self._count(added)

    def drop(self, victim: Candidate) -> None:
        """Remove one job from the stopped ones."""
        self.victims.remove(victim)
        self._count((victim,))

    def _count(self, changed: Iterable[Candidate]) -> None:
        names = {name for victim in changed for name in victim.nodes if name in self._search.locals}
        for name in names:
            local = self._search.locals[name]
            here = [item for item in local.candidates if item in self.victims]
            gain = pods_after(self._search.request, local.node, here) - local.pods_before
            self.total += gain - self._by_node.get(name, 0)
            self._by_node[name] = gain


def _best_nodes(search: _Search, ordered: Sequence[_Local]) -> list[_Local]:
    """All nodes of a small cluster; of a large one those that look cheapest for one more pod, and for several."""
    if len(ordered) <= MAX_NODES:
        return list(ordered)
    several = min(search.needed, max(local.room_for for local in ordered))
    by_several = sorted(
        (local for local in ordered if local.room_for >= several),
        key=lambda local: (_bound(search.request, local, several), local.node.order),
    )
    kept = {local.node.order for local in (*ordered[: MAX_NODES // 2], *by_several[: MAX_NODES // 2])}
    return [local for local in ordered if local.node.order in kept]


@dataclass(frozen=True, slots=True)
class _Branching:
    """The nodes in question; from each on, how many more pods they could host; most pods that one victim can free."""

    nodes: Sequence[_Local]
    room_left: Sequence[int]
    most: int | None


def _branch(search: _Search, tree: _Branching, at: int, chosen: frozenset[Candidate]) -> None:
    """Branch over nodes: how many more pods each one is to host, and by which of its sets."""
    if search.steps <= 0:
        return
    search.steps -= 1
    missing = search.needed - _gained(search, chosen)
    if missing <= 0:
        search.offer(chosen)
        return
    if at == len(tree.nodes) or tree.room_left[at] < missing:
        return
    fewest = ceil(missing / tree.most) if tree.most else 0
    if search.best_harm and len(chosen) + fewest > search.best_harm[0]:
        return
    local = tree.nodes[at]
    for more in range(min(missing, local.room_for), 0, -1):
        for victims in _options(search.request, local, more):
            if search.gate.accepts(chosen | victims):
                _branch(search, tree, at + 1, chosen | victims)
    _branch(search, tree, at + 1, chosen)


def _gained(search: _Search, victims: frozenset[Candidate]) -> int:
    """Return how many more pods fit once these are stopped, over all nodes that they use."""
    touched = sorted({name for victim in victims for name in victim.nodes})
    locals_ = [search.locals[name] for name in touched if name in search.locals]
    return sum(
        pods_after(search.request, local.node, [item for item in local.candidates if item in victims])
        - local.pods_before
        for local in locals_
    )


def _options(request: Request, local: _Local, more: int) -> Iterator[frozenset[Candidate]]:
    """Yield the sets of this node's candidates worth trying that make room for this many more pods."""
    bases = _share_options(request, local) if request.is_share else _device_options(request, local, more)
    for base in bases:
        complete = _with_host_room(request, local, base, local.pods_before + more)
        if complete is not None:
            yield complete


def _device_options(request: Request, local: _Local, more: int) -> Iterator[frozenset[Candidate]]:
    """Enumerate devices, not jobs: freeing a device takes all its holders."""
    missing = (local.pods_before + more) * request.whole_devices - local.node.whole
    free = local.node.free
    holders, holds = local.by_device()
    devices = [
        position
        for position in range(len(free))
        if free[position] < WHOLE_GPU and free[position] + holds[position] == WHOLE_GPU
    ]
    if missing <= 0:
        yield frozenset()
    elif comb(len(devices), missing) > MAX_CHOICES:
        devices.sort(key=lambda position: preemption_cost(holders[position]))
        yield frozenset(holder for position in devices[:missing] for holder in holders[position])
    else:
        for chosen in combinations(devices, missing):
            yield frozenset(holder for position in chosen for holder in holders[position])


def _share_options(request: Request, local: _Local) -> Iterator[frozenset[Candidate]]:
    """Return for each device the fewest holders whose shares are enough."""
    for position, free in enumerate(local.node.free):
        missing = request.share_of(local.node.modes[position]) - free
        if missing <= local.by_device()[1][position]:
            yield from _holders_worth(local, position, missing)


def _holders_worth(local: _Local, position: int, missing: int) -> Iterator[frozenset[Candidate]]:
    holders = sorted(set(local.by_device()[0][position]), key=lambda item: preemption_cost((item,)))
    index, name = local.node.indexes[position], local.node.name
    worth = {
        holder: sum(milli_gpus for held, milli_gpus in holder.on_node(name) if held == index)
        for holder in holders
    }
    for count in range(len(holders) + 1):
        if comb(len(holders), count) > MAX_CHOICES:
            holders.sort(key=lambda item: -worth[item])
        enough = [
            frozenset(chosen)
            for chosen in _bounded(combinations(holders, count))
            if sum(worth[item] for item in chosen) >= missing
        ]
        if enough:
            yield from enough
            return


def _bounded(choices: Iterator[tuple[Candidate, ...]]) -> Iterator[tuple[Candidate, ...]]:
    for _, chosen in zip(range(MAX_CHOICES), choices, strict=False):
        yield chosen


def _with_host_room(
    request: Request, local: _Local, base: frozenset[Candidate], pods: int
) -> frozenset[Candidate] | None:
    """Return the set, extended until `pods` pods fit in host resources too: by the cheapest sufficient
    candidate, else by the one that gives most of what is missing. None if all candidates together are not
    enough."""
    victims = base
    while pods_after(request, local.node, victims) < pods:
        rest = [item for item in local.candidates if item not in victims]
        if not rest:
            return None
        enough = [item for item in rest if pods_after(request, local.node, victims | {item}) >= pods]
        if enough:
            return victims | {min(enough, key=lambda item: preemption_cost((item,)))}
        missing = missing_on(request, local.node, victims, pods)
        victims |= {
            min(rest, key=lambda item: (-part_of(missing, item, local.node), preemption_cost((item,))))
        }
    return victims


def _spare(search: _Search, victims: frozenset[Candidate]) -> frozenset[Candidate]:
    """Keep every victim that is not needed, the costliest first."""
    gains = _Gains(search, victims)
    for victim in sorted(victims, key=lambda item: preemption_cost((item,)), reverse=True):
        gains.drop(victim)
        if gains.total < search.needed or not search.gate.accepts(gains.victims):
            gains.add((victim,))
    return frozenset(gains.victims)
