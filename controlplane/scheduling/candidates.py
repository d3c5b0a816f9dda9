"""The running jobs that could be stopped (candidates): by node, and by project in classes of equal jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush

from controlplane.scheduling.accounts import Account, AlikeJobs
from controlplane.scheduling.capacity import FreeCapacity, NodeCapacity
from controlplane.scheduling.fit import Request, pods_on
from controlplane.scheduling.host_shortage import pods_after
from controlplane.scheduling.sorted_class import SortedClass
from controlplane.scheduling.victims import Candidate, VictimClass, VictimPolicy, class_of_group, magnitude
from controlplane.scheduling.view import JobView

Bound = tuple[int, int, int, int, tuple[int, ...]]
Accepted = dict[VictimClass, SortedClass]
"""The classes of candidates that a policy accepts as single victims."""
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


class Candidates:
    """The preemptible running jobs, by project in classes that policies treat alike, and by node. Nodes are indexed by
    the cost of freeing room on them, per request.

    A Candidate is made when it is first examined, and lives until the next `rewind`.
    """

    def __init__(self, now: int) -> None:
        # True once a policy has accepted a candidate in this cycle: from then on the plan depends on the work
        # lost so far, and thus on the time.
        self.depend_on_time = False
        self._now = now
        self._class_of: dict[str, SortedClass] = {}
        self._projects: defaultdict[Account, dict[VictimClass, SortedClass]] = defaultdict(dict)
        # By the name of each node that they use. None until a search examines nodes: most need not.
        self._by_node: defaultdict[str, list[Candidate]] | None = None
        self._indexes: dict[Request, NodeIndex] = {}
        # By request and signature of a policy, and by project: the accepted classes, and `Account.changes` of the
        # project's department (or its own) when they were tested.
        self._verdicts: dict[Hashable, dict[Account, tuple[int, Accepted]]] = {}
        # A heap of (start, id) of each job that had not run for the minimum run time when it was added.
        self._fresh: list[tuple[int, str]] = []

    def add_jobs(self, account: Account, group: AlikeJobs) -> None:
        """Add jobs of one project that could be stopped, before the first search of a cycle."""
        same = self._class(account, class_of_group(group))
        same.add_jobs(group.jobs)
        self._class_of.update(dict.fromkeys([job.id for job in group.jobs], same))
        if group.is_fresh:
            for job in group.jobs:
                heappush(self._fresh, (job.started_at or 0, job.id))

    def add(self, candidate: Candidate) -> None:
        """Add a job that could be stopped."""
        same = self._class(candidate.account, candidate.victim_class)
        same.add(candidate)
        self._class_of[candidate.job.id] = same
        if same.is_fresh:
            heappush(self._fresh, (candidate.job.started_at or 0, candidate.job.id))
        if self._by_node is not None:
            for name in candidate.nodes:
                self._by_node[name].append(candidate)

    def _class(self, account: Account, name: VictimClass) -> SortedClass:
        classes = self._projects[account]
        if name not in classes:
            classes[name] = SortedClass(account, name, self._now)
        return classes[name]

    def remove(self, candidate: Candidate) -> None:
        """Remove a job that is being stopped."""
        self.remove_job(candidate.job.id)
        if self._by_node is not None:
            for name in candidate.nodes:
                self._by_node[name].remove(candidate)

    def remove_job(self, job_id: str) -> None:
        """Remove a job, before the first search of a cycle."""
        same = self._class_of.pop(job_id)
        same.remove(job_id)
        if not same:
            del self._projects[same.account][same.name]

    def checkpoint(self, job: JobView) -> None:
        """Replace a job after a new checkpoint, before the first search of a cycle."""
        self._class_of[job.id].add_jobs((job,))

    def __iter__(self) -> Iterator[Candidate]:
        """Yield all candidates, in no order."""
        return (
            one for classes in self._projects.values() for same in classes.values() for one in same.members
        )

    def on_node(self, name: str) -> list[Candidate]:
        """Return the candidates that run on this node, not to be modified."""
        if self._by_node is None:
            self._by_node = defaultdict(list)
            for candidate in self._by_first_node():
                for used in candidate.nodes:
                    self._by_node[used].append(candidate)
        return self._by_node.get(name, [])

    def _by_first_node(self) -> Iterator[Candidate]:
        # The candidates of a node are read together, so they are made one after the other, near each other in memory.
        jobs = ((same.job(job_id), same) for job_id, same in self._class_of.items())
        found = [(job.placements[0].node if job.placements else "", job.id, same) for job, same in jobs]
        return (same.candidate(job_id) for _, job_id, same in sorted(found))

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
        return found

    def _verdicts_for(self, request: Request, policy: VictimPolicy) -> dict[Account, tuple[int, Accepted]]:
        key = (request, policy.signature)
        if len(self._verdicts) >= MOST_VERDICTS and key not in self._verdicts:
            self._verdicts.clear()
        return self._verdicts.setdefault(key, {})

    def has_fresh(self) -> bool:
        """Return whether a candidate has run for less than the minimum run time."""
        return self._oldest_fresh() is not None

    def mature(self, started_by: int) -> Iterator[JobView]:
        """Remove and yield the jobs that were protected by the minimum run time and started at `started_by` (Unix
        seconds) or before. The caller adds them again, unprotected. Called before the first search of a cycle."""
        while (oldest := self._oldest_fresh()) is not None and (oldest.started_at or 0) <= started_by:
            self.remove_job(oldest.id)
            yield oldest

    def _oldest_fresh(self) -> JobView | None:
        while self._fresh:
            started_at, job_id = self._fresh[0]
            same = self._class_of.get(job_id)
            job = None if same is None else same.job(job_id)
            if same is not None and job is not None and same.is_fresh and (job.started_at or 0) == started_at:
                return job
            # The job was stopped, or has restarted since this entry was added.
            heappop(self._fresh)
        return None

    def rewind(self, now: int) -> None:
        """Begin another cycle at `now` (Unix seconds), without the Candidates and the orders of the last one: the work
        lost has changed."""
        self._now, self.depend_on_time, self._by_node = now, False, None
        # The cached bounds include the work lost up to the last cycle, and the verdicts depend on its shares.
        self._indexes.clear()
        self._verdicts.clear()
        for classes in self._projects.values():
            for same in classes.values():
                same.rewind(now)

    def index(self, request: Request, room: FreeCapacity) -> NodeIndex:
        """Return the nodes sorted by the cost of freeing room for one pod of `request`. The index follows the changes
        of `room`, which must be the same object in every call."""
        if request not in self._indexes:
            self._indexes[request] = NodeIndex(request, room, self)
        return self._indexes[request]


def _accepted_of(
    account: Account, classes: Mapping[VictimClass, SortedClass], policy: VictimPolicy
) -> Accepted:
    if not classes or not policy.concerns(account):
        return {}
    return {name: same for name, same in classes.items() if policy.may_preempt(same.first)}


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
        here = [one for one in self._candidates.on_node(node.name) if one.victim_class in accepted]
        known = self._visited.get(order)
        if known is not None and known.candidates == here:
            return known
        if not here or not could_host(self._request, node, here):
            return None
        local = self._visited[order] = NodeCandidates(self._request, node, here)
        return local

    def _push(self, node: NodeCapacity, add: Callable[[_Entry], None]) -> None:
        candidates = self._candidates.on_node(node.name)
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
