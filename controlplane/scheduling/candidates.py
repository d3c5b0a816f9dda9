"""The running jobs that could be stopped (candidates): by node, and by project in classes of equal jobs, which are
sorted by cost."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush, merge

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.capacity import FreeCapacity, NodeCapacity
from controlplane.scheduling.fit import Request, pods_on
from controlplane.scheduling.host_shortage import pods_after
from controlplane.scheduling.victims import Candidate, VictimClass, VictimPolicy, magnitude, work_lost
from controlplane.scheduling.view import JobView

Bound = tuple[int, int, int, int, tuple[int, ...]]
Accepted = dict[VictimClass, "SortedClass"]
"""The classes of candidates that a policy accepts as single victims."""
CostAlone = tuple[int, int, int, int, str]
# A job's id is part of its cost, so candidates are never compared with each other.
_Priced = tuple[CostAlone, Candidate]
_Ordered = tuple[int, int, str, Candidate]
_Entry = tuple[Bound, int, int]
"""(bound, node order, version): outdated if the node has a newer version."""

# Claimants above their share have signatures of their own, so a cycle may have thousands.
MOST_VERDICTS = 64


class NodeCandidates:
    """A node and the candidates that run on it. `bound`: a lower bound on the cost of freeing room for one more pod of
    `request` there; `pods_before`: how many fit now, counted for gangs only; `holders`, `holds`: see `by_device`."""

    __slots__ = (
        "_gains", "_members", "bound", "candidates", "holders", "holds", "node", "pods_before", "request",
    )  # fmt: skip

    def __init__(self, request: Request, node: NodeCapacity, candidates: list[Candidate]) -> None:
        self.request = request
        self.node = node
        self.candidates = candidates
        self._members = frozenset(candidates)
        # Cached because a search over several nodes asks for the same few sets repeatedly.
        self._gains: dict[frozenset[Candidate], int] = {}
        # Victims for a single pod are searched only when no node has room for it: then no pod fits here now.
        self.pods_before = pods_on(request, node) if request.pods > 1 else 0
        self.bound = lower_bound(request, self, 1)
        self.holders: list[list[Candidate]] | None = None
        self.holds: list[int] = []

    @property
    def room_for(self) -> int:
        """How many more pods fit on this node once all its candidates are stopped."""
        return self.gain(self._members)

    def gain(self, victims: Set[Candidate]) -> int:
        """Return how many more pods fit on this node once `victims` are stopped. Victims on other nodes change
        nothing."""
        here = self._members & victims
        gain = self._gains.get(here)
        if gain is None:
            gain = self._gains[here] = pods_after(self.request, self.node, here) - self.pods_before
        return gain

    def by_device(self) -> tuple[list[list[Candidate]], list[int]]:
        """Return two lists with one entry per device: the candidates that hold a part of it, and the milli-GPUs that
        they hold of it together."""
        if self.holders is None:
            node = self.node
            self.holders, self.holds = [[] for _ in node.free], [0] * len(node.free)
            for candidate in self.candidates:
                for index, milli_gpus in candidate.on_node(node.name):
                    # A missing index means that the device was removed from its node.
                    if index in node.indexes:
                        position = node.indexes.index(index)
                        self.holders[position].append(candidate)
                        self.holds[position] += milli_gpus
        return self.holders, self.holds


class Candidates(defaultdict[str, list[Candidate]]):
    """The preemptible running jobs, by the name of each node that they use; also by project, in classes that policies
    treat alike. Nodes are indexed by the cost of freeing room on them, per request."""

    def __init__(self, now: int) -> None:
        super().__init__(list)
        self.by_id: dict[str, Candidate] = {}
        # True once a policy has accepted a candidate in this cycle: from then on the plan depends on the work
        # lost so far, and thus on the time.
        self.depend_on_time = False
        self._now = now
        # When the work lost was last computed; None after a checkpoint changed it.
        self._weighed_at: int | None = now
        self._projects: defaultdict[Account, dict[VictimClass, SortedClass]] = defaultdict(dict)
        self._indexes: dict[Request, NodeIndex] = {}
        # By request and signature of a policy, and by project: the accepted classes, and `Account.changes` of the
        # project's department (or its own) when they were tested.
        self._verdicts: dict[Hashable, dict[Account, tuple[int, Accepted]]] = {}
        # A heap of (start, id) of each candidate that had not run for the minimum run time when it was added.
        self._fresh: list[tuple[int, str]] = []

    def add(self, candidate: Candidate) -> None:
        """Add a job that could be stopped."""
        self.by_id[candidate.job.id] = candidate
        if candidate.is_fresh:
            heappush(self._fresh, (candidate.job.started_at or 0, candidate.job.id))
        for name in candidate.nodes:
            self[name].append(candidate)
        classes = self._projects[candidate.account]
        same = classes.get(candidate.victim_class)
        if same is None:
            same = classes[candidate.victim_class] = SortedClass()
        same.add(candidate)

    def remove(self, candidate: Candidate) -> None:
        """Remove a job that is being stopped or has ended."""
        del self.by_id[candidate.job.id]
        for name in candidate.nodes:
            self[name].remove(candidate)
        classes = self._projects[candidate.account]
        classes[candidate.victim_class].remove(candidate)
        if not classes[candidate.victim_class]:
            del classes[candidate.victim_class]

    def checkpoint(self, job: JobView) -> None:
        """Replace the job of a candidate after a new checkpoint. The work that it would lose is computed before the
        next search."""
        self.by_id[job.id].job = job
        # Checkpoints are frequent, so the work lost is only computed, for all candidates, before the next search.
        self._weighed_at = None

    def of(self, account: Account) -> Iterator[Candidate]:
        """Yield the candidates of one project, in no order."""
        return (one for same in self._projects.get(account, {}).values() for one in same.members)

    def lower_milli_gpus(self, account: Account, priority: int) -> int:
        """Return how many milli-GPUs the project's candidates below this priority hold together."""
        classes = self._projects.get(account, {})
        return sum(named[1] * len(same) for named, same in classes.items() if named[2] < priority)

    def lowest_priorities(self) -> dict[str, int]:
        """Return the lowest priority among each project's candidates, by the project's name; without projects that
        have none."""
        return {
            account.name: min(priority for _, _, priority, *_ in classes)
            for account, classes in self._projects.items()
            if classes
        }

    def accepted(self, policy: VictimPolicy, request: Request | None = None) -> Accepted:
        """Return the classes whose jobs the policy accepts as single victims; one job of each class is tested.
        `request`: that of the job that needs room; with it, results are cached until the next `rewind`."""
        verdicts = {} if request is None else self._verdicts_for(request, policy)
        found: Accepted = {}
        for account, classes in self._projects.items():
            # Of a department's projects each may lose jobs only while the department holds more than it must keep.
            changes = (account.parent or account).changes
            known = verdicts.get(account)
            if known is None or known[0] != changes:
                known = verdicts[account] = (changes, _accepted_of(account, classes, policy))
            if known[1]:
                found.update(known[1])
        if found:
            self.depend_on_time = True
            self._weigh()
        return found

    def _verdicts_for(self, request: Request, policy: VictimPolicy) -> dict[Account, tuple[int, Accepted]]:
        key = (request, policy.signature)
        if len(self._verdicts) >= MOST_VERDICTS and key not in self._verdicts:
            self._verdicts.clear()
        return self._verdicts.setdefault(key, {})

    def has_fresh(self) -> bool:
        """Return whether a candidate has run for less than the minimum run time."""
        return self._oldest_fresh() is not None

    def mature(self, started_by: int) -> Iterator[Candidate]:
        """Remove and yield the candidates that were protected by the minimum run time and started at `started_by`
        (Unix seconds) or before. The caller adds them again, unprotected."""
        while (oldest := self._oldest_fresh()) is not None and (oldest.job.started_at or 0) <= started_by:
            self.remove(oldest)
            yield oldest

    def _oldest_fresh(self) -> Candidate | None:
        while self._fresh:
            candidate = self.by_id.get(self._fresh[0][1])
            is_same = candidate is not None and (candidate.job.started_at or 0) == self._fresh[0][0]
            if candidate is not None and candidate.is_fresh and is_same:
                return candidate
            # The job was stopped, or has restarted since this entry was added.
            heappop(self._fresh)
        return None

    def rewind(self, now: int) -> None:
        """Begin another cycle at `now` (Unix seconds). The work that each job would lose is computed when it is first
        needed."""
        self._now, self.depend_on_time = now, False
        # The cached bounds include the work lost up to the last cycle, and the verdicts depend on its shares.
        self._indexes.clear()
        self._verdicts.clear()

    def _weigh(self) -> None:
        if self._weighed_at == self._now:
            return
        self._weighed_at = self._now
        for candidate in self.by_id.values():
            candidate.work_lost = work_lost(candidate.job, candidate.milli_gpus, self._now)
        for classes in self._projects.values():
            for same in classes.values():
                same.forget_order()

    def index(self, request: Request, room: FreeCapacity) -> NodeIndex:
        """Return the nodes sorted by the cost of freeing room for one pod of `request`. The index follows the changes
        of `room`, which must be the same object in every call."""
        if request not in self._indexes:
            self._indexes[request] = NodeIndex(request, room, self)
        return self._indexes[request]


class SortedClass:
    """The candidates of one class, in ascending order of the cost of stopping one of them. They are sorted when
    `by_cost` is first called. `most_devices`: the most devices that a member has ever held."""

    __slots__ = ("_by_id", "_cheapest", "_sorted", "most_devices")

    def __init__(self) -> None:
        # The most devices that any member holds.
        self.most_devices = 0
        self._by_id: dict[str, Candidate] = {}
        self._sorted: list[_Ordered] | None = None
        self._cheapest: _Priced | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def forget_order(self) -> None:
        """Forget the order, because costs have changed. The next call of `by_cost` sorts again."""
        self._sorted = self._cheapest = None

    @property
    def first(self) -> Candidate:
        """Any member: policies treat all members of a class alike."""
        return next(iter(self._by_id.values()))

    @property
    def members(self) -> Iterable[Candidate]:
        """The members in no order."""
        return self._by_id.values()

    @property
    def cheapest(self) -> _Priced:
        """Return the member that costs least to stop alone, with that cost."""
        if self._cheapest is None:
            self._cheapest = next(self.by_cost())
        return self._cheapest

    def by_cost(self) -> Iterator[_Priced]:
        """Yield (cost of stopping it alone, member) for each member, in ascending order of the cost."""
        if self._sorted is None:
            self._sorted = sorted(map(_in_class, self._by_id.values()))
        return ((_cost_alone(one[-1]), one[-1]) for one in self._sorted)

    def add(self, candidate: Candidate) -> None:
        self._by_id[candidate.job.id] = candidate
        self._cheapest = None
        devices = sum([len(pod.devices) for pod in candidate.placements])
        if devices > self.most_devices:
            self.most_devices = devices
        if self._sorted is not None:
            insort(self._sorted, _in_class(candidate))

    def remove(self, candidate: Candidate) -> None:
        del self._by_id[candidate.job.id]
        self._cheapest = None
        if self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, _in_class(candidate))]


def _in_class(candidate: Candidate) -> _Ordered:
    """Return a key that sorts the members of one class like `_cost_alone`: they all have one size."""
    job = candidate.job
    return candidate.work_lost, -job.submit_rank, job.id, candidate


def _accepted_of(
    account: Account, classes: Mapping[VictimClass, SortedClass], policy: VictimPolicy
) -> Accepted:
    if not classes or not policy.concerns(account):
        return {}
    return {name: same for name, same in classes.items() if policy.may_preempt(same.first)}


def cheapest_first(classes: Sequence[SortedClass]) -> Iterator[Candidate]:
    """Yield the members of these classes, in ascending order of the cost of stopping one of them."""
    first = min([same.cheapest for same in classes], default=None)
    if first is None:
        return
    # Mostly the first is enough, and to begin a merge takes time for each class.
    yield first[1]
    rest = merge(*[same.by_cost() for same in classes])
    next(rest)
    yield from (candidate for _, candidate in rest)


def _cost_alone(candidate: Candidate) -> CostAlone:
    """Return the part of `preemption_cost` in which single jobs differ; smaller is cheaper."""
    lost = candidate.work_lost
    return (magnitude(lost), candidate.milli_gpus, lost, -candidate.job.submit_rank, candidate.job.id)


class NodeIndex:
    """Nodes sorted by a lower bound on the cost of freeing room for one pod of `request`.

    Only nodes that changed since the last call are examined again. Otherwise each of many equal jobs that reclaim in
    one cycle would examine every node.
    """

    def __init__(self, request: Request, room: FreeCapacity, candidates: Candidates) -> None:
        self._request = request
        self._room = room
        self._candidates = candidates
        self._versions = [0] * len(room.nodes)
        # The bounds over all candidates of each node, which are valid for every policy.
        self._all: list[_Entry] = []
        for node in room.nodes:
            self._push(node, self._all.append)
        heapify(self._all)
        self._seen = len(room.changes)
        # The same entries with higher bounds for nodes that were visited: valid while a policy accepts no class
        # beyond these. Their candidates are kept too.
        self._accepted: Set[VictimClass] = frozenset()
        self._heap: list[_Entry] = []
        self._visited: dict[int, NodeCandidates] = {}

    def ascending(self, accepted: Accepted) -> Generator[NodeCandidates, None, None]:
        """Yield the nodes on which room could be freed, with their candidates of these classes, in ascending order of
        the lower bound."""
        self._follow_changes()
        if not self._accepted >= accepted.keys():
            self._heap = self._all.copy()
        self._accepted = accepted.keys()
        heap, taken = self._heap, []
        try:
            while heap:
                entry = heappop(heap)
                bound, order, version = entry
                # An entry of another version is outdated: the node has changed, and its newer entry is in the heap too.
                if version != self._versions[order]:
                    continue
                local = self._visit(order, accepted)
                if local is None:
                    continue
                if local.bound > bound:
                    heappush(heap, (local.bound, order, version))
                    continue
                taken.append(entry)
                yield local
        finally:
            # Put back what was popped, because the search may stop early and the next search of this cycle
            # needs all nodes.
            for entry in taken:
                heappush(heap, entry)

    def _follow_changes(self) -> None:
        changed = set(self._room.changes[self._seen :])
        self._seen = len(self._room.changes)
        for order in changed:
            self._versions[order] += 1
            self._visited.pop(order, None)
            self._push(self._room.nodes[order], self._add)
        if len(self._all) > 2 * len(self._versions):
            self._all = [entry for entry in self._all if entry[2] == self._versions[entry[1]]]
            heapify(self._all)

    def _add(self, entry: _Entry) -> None:
        heappush(self._all, entry)
        heappush(self._heap, entry)

    def _visit(self, order: int, accepted: Accepted) -> NodeCandidates | None:
        """Return the node with its candidates of these classes; None if stopping them cannot make room. `order`: the
        node's index."""
        node = self._room.nodes[order]
        here = [one for one in self._candidates[node.name] if one.victim_class in accepted]
        known = self._visited.get(order)
        if known is not None and known.candidates == here:
            return known
        if not here or not could_host(self._request, node, here):
            return None
        local = self._visited[order] = NodeCandidates(self._request, node, here)
        return local

    def _push(self, node: NodeCapacity, add: Callable[[_Entry], None]) -> None:
        candidates = self._candidates.get(node.name)
        if not candidates or not node.is_open or not self._request.admits(node):
            return
        if could_host(self._request, node, candidates):
            bound = NodeCandidates(self._request, node, candidates).bound
            add((bound, node.order, self._versions[node.order]))


def could_host(request: Request, node: NodeCapacity, candidates: Sequence[Candidate]) -> bool:
    """Return False if one pod cannot fit on this node even with all its candidates stopped. The test is quick: True
    proves nothing."""
    devices = request.whole_devices
    if devices == 0:
        return True
    if node.is_divided:
        return False
    return node.whole + sum(len(item.on_node(node.name)) for item in candidates) >= devices


def lower_bound(request: Request, local: NodeCandidates, more: int) -> Bound:
    """Return a lower bound on the cost of freeing room on this node for `more` pods than fit now. It is compared with
    the first five items of a `Cost`."""
    name = local.node.name
    missing = (local.pods_before + more) * request.whole_devices - local.node.whole
    real = local.candidates
    gains = [len(candidate.on_node(name)) for candidate in real]
    if not real or (missing <= 0 and request.pods > 1):
        return (0, 0, 0, 0, ())
    # Take the minimum of each figure separately, whichever job has it: a lower bound must never be too high,
    # and stopping one job may be enough. A single pod has no room here now, so one job at least is stopped, be it for a
    # share or for host resources.
    if missing <= max(gains):
        lost, newest = min([item.work_lost for item in real]), min([-item.job.submit_rank for item in real])
        return magnitude(lost), 1, min([item.milli_gpus for item in real]), lost, (newest,)
    fewest = 0
    # Count the largest jobs first: no set of victims can have fewer members than this.
    for gain in sorted(gains, reverse=True):
        if missing <= 0:
            break
        fewest, missing = fewest + 1, missing - gain
    lost = sum(sorted(item.work_lost for item in real)[:fewest])
    milli_gpus = sum(sorted(item.milli_gpus for item in real)[:fewest])
    return (
        magnitude(lost),
        fewest,
        milli_gpus,
        lost,
        tuple(sorted(-item.job.submit_rank for item in real)[:fewest]),
    )
