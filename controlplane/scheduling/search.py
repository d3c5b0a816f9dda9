"""Find the cheapest set of running jobs to stop (victims) that a policy accepts and that makes room for a whole gang.

The search is exact, as far as devices are concerned, for one missing pod on clusters of any size, and for gangs on up
to MAX_NODES candidate nodes within MAX_STEPS steps. Beyond that it returns the best set that it found, without
needless victims.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil, comb

from controlplane.scheduling.candidates import (
    Accepted,
    Candidates,
    NodeCandidates,
    could_host,
    lower_bound,
)
from controlplane.scheduling.capacity import WHOLE_GPU, FreeCapacity
from controlplane.scheduling.fit import Request, pods_that_fit
from controlplane.scheduling.host_shortage import missing_on, part_of, pods_after
from controlplane.scheduling.sorted_class import cheapest_first
from controlplane.scheduling.victims import (
    Candidate,
    Cost,
    VictimPolicy,
    magnitude,
    preemption_cost,
)

# Bounds on the time of one search, because the number of victim sets grows exponentially with nodes and jobs.
MAX_STEPS = 2000
MAX_NODES = 16
MAX_CHOICES = 500
# For gangs with more missing pods than this only the greedy set is tried.
MAX_BRANCHED = 64


@dataclass(slots=True)
class _Search:
    """The state of one search. `locals`: the nodes with candidates, by name; `needed`: how many more pods must fit;
    `steps`: how many are left; `best`, `best_harm`: the best set so far and its cost; `offered`, `verdicts`: the sets
    that were offered, and the policy's verdicts, because a search over several nodes finds the same sets repeatedly."""

    request: Request
    policy: VictimPolicy
    locals: Mapping[str, NodeCandidates]
    needed: int
    steps: int = MAX_STEPS
    best: frozenset[Candidate] | None = None
    best_harm: Cost | None = None
    offered: set[frozenset[Candidate]] = field(default_factory=set)
    verdicts: dict[frozenset[Candidate], bool] = field(default_factory=dict)

    def accepts(self, victims: frozenset[Candidate]) -> bool:
        """Return whether the policy accepts the set."""
        verdict = self.verdicts.get(victims)
        if verdict is None:
            verdict = self.verdicts[victims] = self.policy.accepts(victims)
        return verdict

    def offer(self, victims: frozenset[Candidate]) -> None:
        """Keep the set if it is the cheapest so far and the policy accepts it."""
        if victims in self.offered:
            return
        self.offered.add(victims)
        if self.policy.required:
            # No job is stopped only to keep a project inside its quota: the rest must be allowed as it is.
            victims = _without_needless(self, victims)
        cost = preemption_cost(victims)
        is_better = self.best_harm is None or cost < self.best_harm
        if is_better and self.policy.completes(victims) and self.accepts(victims):
            self.best, self.best_harm = victims, cost

    def result(self) -> frozenset[Candidate] | None:
        """Return the best set, without needless victims; None if none was found."""
        # With `required` jobs it has none: see `offer`.
        return self.best if self.best is None or self.policy.required else _without_needless(self, self.best)


def find_victims(
    request: Request,
    room: FreeCapacity,
    policy: VictimPolicy,
    candidates: Candidates,
    among: Collection[int] | None = None,
) -> frozenset[Candidate] | None:
    """Return the cheapest set of jobs after whose end the whole gang fits into `room`; None if there is none,
    or if the gang fits already. `among`: for a single pod, search only the nodes with these numbers
    (`NodeCapacity.order`)."""
    accepted = candidates.accepted(policy, request)
    if not accepted:
        return None
    # A gang must fit within one pool, so each pool is searched separately.
    choices: list[tuple[str, ...]] = [(pool,) for pool in request.pools] or [()]
    inside = [replace(request, pools=pools) for pools in choices]
    found = [_search_in(one, room, policy, candidates, accepted, among) for one in inside]
    sets = [victims for victims in found if victims is not None]
    return min(sets, key=preemption_cost, default=None)


def _search_in(
    request: Request,
    room: FreeCapacity,
    policy: VictimPolicy,
    candidates: Candidates,
    accepted: Accepted,
    among: Collection[int] | None,
) -> frozenset[Candidate] | None:
    missing = request.pods - pods_that_fit(request, room, request.pods)
    if missing <= 0:
        # The gang already fits, so nothing has to be stopped.
        return None
    if request.pods == 1 and among is None and not policy.required:
        return _search_indexed(request, room, policy, candidates, accepted)
    by_name: dict[str, NodeCandidates] = {}
    for node in room.nodes if among is None or request.pods > 1 else [room.nodes[order] for order in among]:
        if node.is_open and request.admits(node):
            here = [one for one in candidates.on_node(node.name) if one.victim_class in accepted]
            # One pod more needs victims on one node.
            if missing == 1 and policy.required and policy.required.isdisjoint(here):
                continue
            if here and could_host(request, node, here):
                by_name[node.name] = NodeCandidates(request, node, here)
    search = _Search(request, policy, by_name, missing)
    ordered = sorted(by_name.values(), key=lambda local: (local.bound, local.node.order))
    if policy.required:
        # The search of a gang does not reach all nodes of a large cluster, so those of required victims come first.
        ordered.sort(key=lambda local: policy.required.isdisjoint(local.candidates))
    if missing == 1:
        _search_one_pod(search, ordered)
    else:
        _search_gang(search, ordered)
    return search.result()


def _search_indexed(
    request: Request,
    room: FreeCapacity,
    policy: VictimPolicy,
    candidates: Candidates,
    accepted: Accepted,
) -> frozenset[Candidate] | None:
    """Search for one pod by the index of nodes: first the cheapest job that is enough alone and loses little work,
    else nodes in ascending order of their bound until it exceeds the best cost. None if nothing makes room."""
    short = request.whole_devices - room.most_whole(request.pools, request.locations)
    large_enough = [same for same in accepted.values() if same.may_free(short)]
    found: dict[str, NodeCandidates] = {}
    search = _Search(request, policy, found, 1)
    single = next((one for one in cheapest_first(large_enough) if _is_enough(request, room, one)), None)
    if single is not None:
        # If so little work is lost, a set of several jobs always costs more than this job.
        if not magnitude(single.work_lost):
            return frozenset((single,))
        # Several jobs together may lose less work than this one.
        search.offer(frozenset((single,)))
    with closing(candidates.index(request, room).ascending(accepted)) as nodes:
        for local in nodes:
            if search.best_harm is not None and local.bound > search.best_harm[:5]:
                break
            found[local.node.name] = local
            for victims in _options(request, local, 1):
                search.offer(victims)
    return search.result()


def _is_enough(request: Request, room: FreeCapacity, victim: Candidate) -> bool:
    """Return whether a pod fits on a node once this job alone is stopped."""
    nodes = (room.node(name) for name in victim.nodes if room.is_open(name))
    return any(
        node.whole + len(victim.on_node(node.name)) >= request.whole_devices
        and request.admits(node)
        and not (request.whole_devices and node.is_divided)
        and pods_after(request, node, (victim,)) > 0
        for node in nodes
    )


def _search_one_pod(search: _Search, ordered: Sequence[NodeCandidates]) -> None:
    """Search for one missing pod: nodes in ascending order of their bound, until no later node can be cheaper."""
    for local in ordered:
        if search.best_harm is not None and local.bound > search.best_harm[:5]:
            return
        for victims in _options(search.request, local, 1):
            search.offer(victims)


def _search_gang(search: _Search, ordered: Sequence[NodeCandidates]) -> None:
    """Search for a gang: fill the nodes with the lowest bounds one after the other, then try all combinations on the
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


def _offer_greedy(search: _Search, ordered: Sequence[NodeCandidates]) -> None:
    gains = _Gains(search, ())
    for local in ordered:
        missing = search.needed - gains.total
        for more in range(min(missing, local.room_for), 0, -1):
            options = [frozenset(option) - gains.victims for option in _options(search.request, local, more)]
            # Tested together with the earlier choice, because a policy that accepts each job may refuse the
            # sum.
            fair = [option for option in options if search.policy.accepts(gains.victims | option)]
            if fair:
                gains.add(min(fair, key=preemption_cost))
                break
        if gains.total >= search.needed:
            search.offer(frozenset(gains.victims))
            return


class _Gains:
    """How many more pods fit once `victims` are stopped, per node and in total."""

    def __init__(self, search: _Search, victims: Iterable[Candidate]) -> None:
        self._search = search
        self._by_node: dict[str, int] = {}
        self.victims: set[Candidate] = set()
        self.total = 0
        self.add(victims)

    def add(self, victims: Iterable[Candidate]) -> None:
        """Add jobs to the victims."""
        added = set(victims)
        self.victims |= added
        self._count(added)

    def drop(self, victim: Candidate) -> None:
        """Remove one job from the victims."""
        self.victims.remove(victim)
        self._count((victim,))

    def _count(self, changed: Iterable[Candidate]) -> None:
        names = {name for victim in changed for name in victim.nodes if name in self._search.locals}
        for name in names:
            gain = self._search.locals[name].gain(self.victims)
            self.total += gain - self._by_node.get(name, 0)
            self._by_node[name] = gain


def _best_nodes(search: _Search, ordered: Sequence[NodeCandidates]) -> list[NodeCandidates]:
    """Return the nodes on which combinations are tried: all of a small cluster, else those with the lowest bounds for
    one more pod and for several."""
    if len(ordered) <= MAX_NODES:
        return list(ordered)
    several = min(search.needed, max(local.room_for for local in ordered))
    by_several = sorted(
        (local for local in ordered if local.room_for >= several),
        key=lambda local: (lower_bound(search.request, local, several), local.node.order),
    )
    kept = {local.node.order for local in (*ordered[: MAX_NODES // 2], *by_several[: MAX_NODES // 2])}
    return [local for local in ordered if local.node.order in kept]


@dataclass(frozen=True, slots=True)
class _Branching:
    """The data of a search over combinations, which do not change. `nodes`: in order; `room_left[i]`: how many more
    pods the nodes from the index i on could host; `most`: the most pods for which one victim can make room, None if
    unbounded."""

    nodes: Sequence[NodeCandidates]
    room_left: Sequence[int]
    most: int | None


def _branch(search: _Search, tree: _Branching, at: int, chosen: frozenset[Candidate]) -> None:
    """Try how many more pods the node at the index `at` is to host, and which victims make room for them, in addition
    to `chosen`."""
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
    lost = magnitude(sum(victim.work_lost for victim in chosen))
    if search.best_harm and (lost, len(chosen) + fewest) > search.best_harm[:2]:
        return
    local = tree.nodes[at]
    for more in range(min(missing, local.room_for), 0, -1):
        for victims in _options(search.request, local, more):
            if search.accepts(chosen | victims):
                _branch(search, tree, at + 1, chosen | victims)
    _branch(search, tree, at + 1, chosen)


def _gained(search: _Search, victims: frozenset[Candidate]) -> int:
    """Return how many more pods fit once these victims are stopped, over all nodes that they use."""
    touched = {name for victim in victims for name in victim.nodes}
    return sum([search.locals[name].gain(victims) for name in touched if name in search.locals])


def _options(request: Request, local: NodeCandidates, more: int) -> Iterator[frozenset[Candidate]]:
    """Yield the sets of candidates on this node that make room for `more` pods and may be part of the cheapest
    solution."""
    bases = _share_options(request, local) if request.is_share else _device_options(request, local, more)
    for base in bases:
        complete = _with_host_room(request, local, base, local.pods_before + more)
        if complete is not None:
            yield complete


def _device_options(request: Request, local: NodeCandidates, more: int) -> Iterator[frozenset[Candidate]]:
    """Yield sets of victims that free whole devices. Devices are enumerated instead of jobs, because to free a device
    all its holders must stop."""
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


def _share_options(request: Request, local: NodeCandidates) -> Iterator[frozenset[Candidate]]:
    """Yield, for each device, sets of jobs whose end frees the share that one pod needs; the empty set if that is
    free already."""
    for position, free in enumerate(local.node.free):
        missing = request.share_of(local.node.modes[position]) - free
        if missing <= local.by_device()[1][position]:
            yield from _holders_worth(local, position, missing)


def _holders_worth(local: NodeCandidates, position: int, missing: int) -> Iterator[frozenset[Candidate]]:
    holders = sorted(set(local.by_device()[0][position]), key=lambda item: preemption_cost((item,)))
    index, name = local.node.indexes[position], local.node.name
    worth = {
        holder: sum(milli_gpus for held, milli_gpus in holder.on_node(name) if held == index)
        for holder in holders
    }
    if missing <= 0:
        yield frozenset()
        return
    for count in range(1, len(holders) + 1):
        if comb(len(holders), count) > MAX_CHOICES:
            holders.sort(key=lambda item: -worth[item])
        enough = [
            frozenset(chosen)
            for chosen in _bounded(combinations(holders, count))
            if sum(worth[item] for item in chosen) >= missing
        ]
        yield from enough


def _bounded(choices: Iterator[tuple[Candidate, ...]]) -> Iterator[tuple[Candidate, ...]]:
    for _, chosen in zip(range(MAX_CHOICES), choices, strict=False):
        yield chosen


def _with_host_room(
    request: Request, local: NodeCandidates, base: frozenset[Candidate], pods: int
) -> frozenset[Candidate] | None:
    """Return `base`, extended until `pods` pods also fit by CPUs, memory and extra resources: by the cheapest
    candidate that is enough, else by the one that frees most of what is missing. None if all candidates together are
    not enough."""
    victims = base
    while local.pods_before + local.gain(victims) < pods:
        rest = [item for item in local.candidates if item not in victims]
        if not rest:
            return None
        enough = [item for item in rest if local.pods_before + local.gain(victims | {item}) >= pods]
        if enough:
            return victims | {min(enough, key=lambda item: preemption_cost((item,)))}
        missing = missing_on(request, local.node, victims, pods)
        victims |= {
            min(rest, key=lambda item: (-part_of(missing, item, local.node), preemption_cost((item,))))
        }
    return victims


def _without_needless(search: _Search, victims: frozenset[Candidate]) -> frozenset[Candidate]:
    """Return the set without needless victims; the most expensive ones are dropped first."""
    gains = _Gains(search, victims)
    for victim in sorted(victims, key=lambda item: preemption_cost((item,)), reverse=True):
        gains.drop(victim)
        if gains.total < search.needed or not search.policy.accepts(gains.victims):
            gains.add((victim,))
    return frozenset(gains.victims)
