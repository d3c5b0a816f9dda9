"""Who has to make room: the gates of reclaim and preemption, and the smallest set that passes them.

Smallest means: fewest jobs; then fewest milli-GPUs taken; then least work lost since the last checkpoint; then newest.
Exact in devices, within a bounded number of steps for gangs of several pods on large clusters; beyond it the best set
found so far, from which no victim can be spared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, comb
from typing import Literal, Protocol

from controlplane.scheduling.fit import Request, pods_that_fit
from controlplane.scheduling.ledger import WHOLE_GPU, NodeRoom, Room
from controlplane.scheduling.order import Waiting
from controlplane.scheduling.standing import Account
from controlplane.scheduling.view import JobView, PodPlacement

MAX_STEPS = 3000
MAX_CHOICES = 500

Kin = tuple[str, int, int]
"""(project, milli-GPUs, priority): a gate judges single candidates of one kin alike."""
Kind = Literal["reclaim", "preempt"]
Bound = tuple[int, int, int, tuple[int, ...]]
Harm = tuple[int, int, int, tuple[int, ...], tuple[str, ...]]


class Candidate:
    """A job that could be stopped. `weight` is 0 for one that this very cycle started: nothing runs yet.

    `work_lost` is milli-GPU-seconds since its last checkpoint, or since it started. `kin` is what gates judge by.
    """

    __slots__ = ("_devices", "account", "job", "kin", "milli_gpus", "placements", "weight", "work_lost")

    def __init__(
        self,
        job: JobView,
        account: Account,
        placements: tuple[PodPlacement, ...],
        milli_gpus: int,
        work_lost: int,
        weight: int = 1,
    ) -> None:
        self.job = job
        self.account = account
        self.placements = placements
        self.milli_gpus = milli_gpus
        self.work_lost = work_lost
        self.weight = weight
        self.kin: Kin = (account.name, milli_gpus, job.priority)
        self._devices: dict[str, tuple[tuple[int, int], ...]] = {}
        for placement in placements:
            known = self._devices.get(placement.node, ())
            self._devices[placement.node] = known + placement.devices

    def on_node(self, name: str) -> tuple[tuple[int, int], ...]:
        """((device index, milli-GPUs), ...) that it holds on one node, over all its pods there."""
        return self._devices.get(name, ())

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes that it stands on, sorted."""
        return sorted(self._devices)


def work_lost(job: JobView, milli_gpus: int, now: int) -> int:
    """Milli-GPU-seconds of work that are gone if the job is stopped at this moment."""
    if job.started_at is None:
        return 0
    return milli_gpus * max(0, now - max(job.started_at, job.last_checkpoint_at or 0))


def harm(victims: Iterable[Candidate]) -> Harm:
    """What a set costs; smaller is better. Newer jobs go first; ids decide between equals."""
    real = [victim for victim in victims if victim.weight]
    return (
        len(real),
        sum(victim.milli_gpus for victim in real),
        sum(victim.work_lost for victim in real),
        tuple(sorted(-victim.job.submit_rank for victim in real)),
        tuple(sorted(victim.job.id for victim in victims)),
    )


class Gate(Protocol):
    """Who may be taken for one job. `accepts` is monotone: what it refuses, it refuses with more added."""

    @property
    def kind(self) -> Kind:
        """What taking these jobs is called."""
        ...

    def may_give(self, candidate: Candidate) -> bool:
        """Whether this job could be a victim by itself."""
        ...

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Whether this set may be taken together."""
        ...


class PreemptGate:
    """Inside one project: preemptible jobs of strictly lower priority."""

    kind: Kind = "preempt"

    def __init__(self, item: Waiting) -> None:
        self._project = item.account
        self._priority = item.job.priority

    def may_give(self, candidate: Candidate) -> bool:
        """Same project, lower priority."""
        return candidate.account is self._project and candidate.job.priority < self._priority

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Any of them: no fairness is involved."""
        return True


class ReclaimGate:
    """Between projects: only from those above what they are owed, one job at a time.

    Two siblings are compared: the first accounts at which the taker's line and the giver's differ. Before each
    job is taken, the giver must still hold more than its entitlement, or more than its quota when the taker
    stays inside its own. So the last job may carry it below, and none is taken after that. Below the sibling,
    every account of the giver's line must hold more than its quota: a project in quota never loses a GPU.
    """

    kind: Kind = "reclaim"

    def __init__(self, item: Waiting) -> None:
        self._account = item.account
        self._request = item.milli_gpus

    def is_open(self) -> bool:
        """Whether the job may reclaim at all: with it, its project is within its fair share."""
        return self._request > 0 and self._account.allocated + self._request <= self._account.fair_share

    def may_give(self, candidate: Candidate) -> bool:
        """Another project, and every account on the way holds more than it must keep."""
        return candidate.account is not self._account and self.accepts((candidate,))

    def accepts(self, victims: Collection[Candidate]) -> bool:
        """Whether the jobs can be taken one after another, in the order that is kindest to the giver."""
        taken: dict[int, tuple[Account, int, int, int]] = {}
        for victim in victims:
            for account, kept in self._kept(victim.account):
                _, least, total, largest = taken.get(id(account), (account, kept, 0, 0))
                total, largest = total + victim.milli_gpus, max(largest, victim.milli_gpus)
                taken[id(account)] = (account, max(least, kept), total, largest)
        return all(
            account.allocated - (total - largest) > kept for account, kept, total, largest in taken.values()
        ) and self._is_balanced(victims)

    def _kept(self, giver: Account) -> Iterator[tuple[Account, int]]:
        """(account, what it must hold more than), from the giver's project up to the sibling."""
        taker, sibling = self._siblings(giver)
        if sibling is not giver:
            yield giver, giver.quota if giver.quota is not None else giver.allocated
        entitled = sibling.entitled if sibling.entitled is not None else sibling.allocated
        is_in_quota = taker.quota is None or taker.allocated + self._request <= taker.quota
        if is_in_quota and sibling.quota is not None:
            entitled = min(entitled, sibling.quota)
        yield sibling, entitled

    def _siblings(self, giver: Account) -> tuple[Account, Account]:
        """The first accounts, from the top, at which the two lines differ."""
        taker_top, giver_top = self._account.parent or self._account, giver.parent or giver
        if taker_top is not giver_top:
            return taker_top, giver_top
        return self._account, giver

    def _is_balanced(self, victims: Collection[Candidate]) -> bool:
        """A taker above its share must not end up relatively richer than a sibling that it took from."""
        taken: dict[int, tuple[Account, Account, int]] = {}
        for victim in victims:
            taker, sibling = self._siblings(victim.account)
            _, _, total = taken.get(id(sibling), (taker, sibling, 0))
            taken[id(sibling)] = (taker, sibling, total + victim.milli_gpus)
        for taker, sibling, total in taken.values():
            mine, its = taker.allocated + self._request, sibling.allocated - total
            is_richer = mine * sibling.fair_share >= its * taker.fair_share
            if mine > taker.fair_share and sibling.fair_share > 0 and is_richer:
                return False
        return True


class _Local:
    """One node and the candidates that stand on it. `bound`: the least harm that one more pod here can do."""

    __slots__ = ("bound", "candidates", "holders", "holds", "node", "pods_before")

    def __init__(self, request: Request, node: NodeRoom, candidates: list[Candidate]) -> None:
        self.node = node
        self.candidates = candidates
        # no node has room for a single pod, or it would not be searched for
        self.pods_before = _pods_on(request, node) if request.pods > 1 else 0
        self.bound = _bound(request, self)
        self.holders: list[list[Candidate]] | None = None
        self.holds: list[int] = []

    def by_device(self) -> tuple[list[list[Candidate]], list[int]]:
        """Per device: who holds a part of it, and how many milli-GPUs they hold together."""
        if self.holders is None:
            node = self.node
            self.holders, self.holds = [[] for _ in node.free], [0] * len(node.free)
            for candidate in self.candidates:
                for index, milli_gpus in candidate.on_node(node.name):
                    position = node.indexes.index(index)
                    self.holders[position].append(candidate)
                    self.holds[position] += milli_gpus
        return self.holders, self.holds


@dataclass(slots=True)
class _Search:
    """The best set so far, and what is left of the step budget."""

    request: Request
    gate: Gate
    locals: Mapping[str, _Local]
    needed: int
    steps: int = MAX_STEPS
    best: frozenset[Candidate] | None = None
    best_harm: Harm | None = None

    def offer(self, victims: frozenset[Candidate]) -> None:
        """Keep the set if it is the least harm so far and may be taken."""
        cost = harm(victims)
        if (self.best_harm is None or cost < self.best_harm) and self.gate.accepts(victims):
            self.best, self.best_harm = victims, cost


def find_victims(
    request: Request, room: Room, gate: Gate, by_node: Mapping[str, Sequence[Candidate]]
) -> frozenset[Candidate] | None:
    """The least harmful set whose going lets the whole gang fit into `room`; None when there is none.

    `by_node`: preemptible running jobs under the name of each node that they touch.
    """
    choices: list[tuple[str, ...]] = [(pool,) for pool in request.pools] or [()]
    found = [_search_in(request, room, gate, by_node, pools) for pools in choices]
    sets = [victims for victims in found if victims is not None]
    return min(sets, key=harm, default=None)


def _search_in(
    request: Request,
    room: Room,
    gate: Gate,
    by_node: Mapping[str, Sequence[Candidate]],
    pools: tuple[str, ...],
) -> frozenset[Candidate] | None:
    missing = request.pods - pods_that_fit(replace(request, pools=pools), room, request.pods)
    if missing <= 0:
        return None  # nothing is missing, so nobody has to go
    by_name: dict[str, _Local] = {}
    verdicts: dict[Kin, bool] = {}
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
        _search_gang(search, ordered, 0, frozenset())
    return None if search.best is None else _spare(search, search.best)


def _givers(here: Sequence[Candidate], gate: Gate, verdicts: dict[Kin, bool]) -> list[Candidate]:
    """Those whom the gate lets go. Candidates of a kin are judged alike, so each kin is judged once."""
    givers = []
    for candidate in here:
        verdict = verdicts.get(candidate.kin)
        if verdict is None:
            verdict = verdicts[candidate.kin] = gate.may_give(candidate)
        if verdict:
            givers.append(candidate)
    return givers


def _could_host(request: Request, node: NodeRoom, candidates: Sequence[Candidate]) -> bool:
    """Whether enough devices could be free for one pod; a quick look that never says no wrongly."""
    devices = request.whole_devices
    if devices == 0:
        return True
    return node.whole + sum(len(item.on_node(node.name)) for item in candidates) >= devices


def _bound(request: Request, local: _Local) -> Bound:
    """No set on this node that makes room for one more pod does less harm than this."""
    name = local.node.name
    missing = (local.pods_before + 1) * request.whole_devices - local.node.whole
    real, gains = [], []
    for candidate in local.candidates:
        if candidate.weight:
            real.append(candidate)
            gains.append(len(candidate.on_node(name)))
        else:
            missing -= len(candidate.on_node(name))
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
    """One more pod needs one node: look at nodes by their bound and stop when none can be better."""
    for local in ordered:
        if search.best_harm is not None and local.bound > search.best_harm[:4]:
            return
        for victims in _options(search.request, local, 1):
            search.offer(victims)


def _search_gang(search: _Search, ordered: Sequence[_Local], at: int, chosen: frozenset[Candidate]) -> None:
    """Branch over nodes: how many more pods each one is to host, and by which of its sets."""
    if search.steps <= 0:
        return
    search.steps -= 1
    missing = search.needed - _gained(search, chosen)
    if missing <= 0:
        search.offer(chosen)
        return
    if at == len(ordered) or not _is_promising(search, ordered, at, chosen, missing):
        return
    local = ordered[at]
    room_for = _pods_after(search.request, local, local.candidates) - local.pods_before
    for more in range(min(missing, room_for), 0, -1):
        for victims in _options(search.request, local, more):
            if search.gate.accepts(chosen | victims):
                _search_gang(search, ordered, at + 1, chosen | victims)
    _search_gang(search, ordered, at + 1, chosen)


def _is_promising(
    search: _Search, ordered: Sequence[_Local], at: int, chosen: frozenset[Candidate], missing: int
) -> bool:
    """Whether the nodes left could complete the set with no more victims than the best one has."""
    left = [
        _pods_after(search.request, local, local.candidates) - local.pods_before for local in ordered[at:]
    ]
    if sum(left) < missing:
        return False
    devices = search.request.whole_devices
    others = [item for local in ordered[at:] for item in local.candidates]
    if search.best_harm is None or devices == 0 or any(item.weight == 0 for item in others):
        return True
    most = max(sum(1 + len(pod.devices) // devices for pod in item.placements) for item in others)
    return sum(item.weight for item in chosen) + ceil(missing / most) <= search.best_harm[0]


def _gained(search: _Search, victims: frozenset[Candidate]) -> int:
    """How many more pods fit once these are gone, over all nodes that they touch."""
    touched = sorted({name for victim in victims for name in victim.nodes})
    locals_ = [search.locals[name] for name in touched if name in search.locals]
    return sum(
        _pods_after(search.request, local, [item for item in local.candidates if item in victims])
        - local.pods_before
        for local in locals_
    )


def _pods_on(request: Request, node: NodeRoom) -> int:
    """How many pods of this kind fit on the node as it is."""
    return _capacity(request, node, node.free, node.milli_cpus, node.memory_mib)


def _pods_after(request: Request, local: _Local, victims: Iterable[Candidate]) -> int:
    """How many pods of this kind fit on the node without these jobs."""
    node, free = local.node, local.node.free.copy()
    milli_cpus, memory_mib = node.milli_cpus, node.memory_mib
    for victim in victims:
        pods = sum(placement.node == node.name for placement in victim.placements)
        milli_cpus += pods * victim.job.milli_cpus
        memory_mib += pods * victim.job.memory_mib
        for index, milli_gpus in victim.on_node(node.name):
            free[node.indexes.index(index)] += milli_gpus
    return _capacity(request, node, free, milli_cpus, memory_mib)


def _capacity(request: Request, node: NodeRoom, free: Sequence[int], milli_cpus: int, memory_mib: int) -> int:
    pods = request.pods
    if request.milli_cpus:
        pods = min(pods, milli_cpus // request.milli_cpus)
    if request.memory_mib:
        pods = min(pods, memory_mib // request.memory_mib)
    if request.is_share:
        shares = [(room, request.share_of(size)) for room, size in zip(free, node.memory_mib_of, strict=True)]
        pods = min(pods, sum(room // share for room, share in shares if share <= WHOLE_GPU))
    elif request.whole_devices:
        pods = min(pods, sum(room == WHOLE_GPU for room in free) // request.whole_devices)
    return max(0, pods)


def _options(request: Request, local: _Local, more: int) -> Iterator[frozenset[Candidate]]:
    """Sets of this node's candidates that make room for so many more pods; no needed set is left out."""
    bases = _share_options(request, local) if request.is_share else _device_options(request, local, more)
    for base in bases:
        complete = _with_host_room(request, local, base, local.pods_before + more)
        if complete is not None:
            yield complete


def _device_options(request: Request, local: _Local, more: int) -> Iterator[frozenset[Candidate]]:
    """To free a device all its holders must go: so choose devices, not jobs."""
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
        devices.sort(key=lambda position: harm(holders[position]))
        yield frozenset(holder for position in devices[:missing] for holder in holders[position])
    else:
        for chosen in combinations(devices, missing):
            yield frozenset(holder for position in chosen for holder in holders[position])


def _share_options(request: Request, local: _Local) -> Iterator[frozenset[Candidate]]:
    """On each device, the fewest holders whose shares are enough."""
    for position, free in enumerate(local.node.free):
        missing = request.share_of(local.node.memory_mib_of[position]) - free
        if missing <= local.by_device()[1][position]:
            yield from _holders_worth(local, position, missing)


def _holders_worth(local: _Local, position: int, missing: int) -> Iterator[frozenset[Candidate]]:
    holders = sorted(set(local.by_device()[0][position]), key=lambda item: harm((item,)))
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
    """The set, grown by whoever uses most of the processors and memory until `pods` pods fit."""
    victims = base
    rest = sorted(
        (item for item in local.candidates if item not in base),
        key=lambda item: (-item.job.milli_cpus, -item.job.memory_mib, harm((item,))),
    )
    while _pods_after(request, local, victims) < pods:
        if not rest:
            return None
        victims = victims | {rest.pop(0)}
    return victims


def _spare(search: _Search, victims: frozenset[Candidate]) -> frozenset[Candidate]:
    """Let every victim go free that is not needed, the most harmed first."""
    kept = victims
    for victim in sorted(victims, key=lambda item: harm((item,)), reverse=True):
        without = kept - {victim}
        if _gained(search, without) >= search.needed and search.gate.accepts(without):
            kept = without
    return kept
