"""The order of the queue: projects by how far they are below their share, their jobs by priority and first
submission.

Between projects the time of submission does not count, so that projects with equal rights get equal shares. If the
shortest job goes first (`queue_order`), GPUs beyond the quotas go to the job that is expected to need the fewest
GPU-seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.fit import Request
from controlplane.scheduling.view import ClusterView, JobView

Key = tuple[bool, bool, int, int, bool, bool, float, float, float, int, str]
JobKey = tuple[int, int, str]
TurnInProject = tuple[int, int, int, str]
"""Priority, expected seconds (0 in the order of submission), first submission, id."""
# Sorts a job without an expected run time after all others.
LAST = 1 << 40
_Entry = tuple[Key, bool, str, int]
"""(sort key, whether it is a department, name, version): outdated if the account has a newer version."""


class Cause(NamedTuple):
    """Why a class of jobs was closed. Classes with equal causes can be served again at the same time.

    `request`: what found no room; None if a limit or a share forbids the class. `policy`: the signature of the policy
    that found no victims, None if none was tried. `is_bound`: the reservation binds the class, so that only capacity
    outside of it was searched. `has_lower_running`: jobs of lower priority run in its project, which the search for
    victims does not cover.
    """

    request: Request | None = None
    policy: Hashable | None = None
    is_bound: bool = False
    has_lower_running: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job as it is served: with its project's account, its request at minimum size, and the milli-GPUs of
    that request."""

    job: JobView
    account: Account
    request: Request
    milli_gpus: int

    @property
    def is_in_share(self) -> bool:
        """Whether the project stays within its fair share, or its quota, with this job."""
        return self.account.is_in_share_with(self.milli_gpus)

    @property
    def is_elastic(self) -> bool:
        """Whether the job can use more pods than its request has."""
        return self.request.pods < self.job.pods

    @property
    def is_gang(self) -> bool:
        """Whether the job needs several pods, or several devices on one node, at once."""
        return self.request.pods > 1 or self.request.whole_devices > 1

    @property
    def wanted_milli_gpus(self) -> int:
        """The milli-GPUs of all its pods at full size."""
        return self.milli_gpus // self.request.pods * self.job.pods

    def of(self, pods: int) -> Waiting:
        """Return the same job with a request for `pods` pods."""
        if pods == self.request.pods:
            return self
        milli_gpus = self.milli_gpus // self.request.pods * pods
        return Waiting(self.job, self.account, replace(self.request, pods=pods), milli_gpus)


def job_key(job: JobView) -> JobKey:
    """Return the sort key of a job within its project: the highest priority first, then the earliest first
    submission."""
    return (-job.priority, job.submit_rank, job.id)


def rank_at(seconds: float) -> int:
    """Return the rank of a job that is submitted at this time (Unix seconds), for views with `requeue_rank_seconds`."""
    return int(seconds * 1_000_000)


def requeued_rank(job: JobView, view: ClusterView) -> int:
    """Return the rank in the queue that a job has when it is stopped for another one now."""
    if view.requeue_rank_seconds is None:
        return job.submit_rank
    return max(job.submit_rank, rank_at(view.now + view.requeue_rank_seconds))


def requeued_later(view: ClusterView) -> dict[str, bool]:
    """Return the details of a preemption by which the job loses its rank in the queue; {} if it keeps the rank."""
    return {} if view.requeue_rank_seconds is None else {"is_requeued_later": True}


def turn_key(account: Account, milli_gpus: int, seconds: int = 0) -> Key:
    """Return the sort key of an account among its siblings, for the next job that it would start; the smallest is
    served first. `seconds`: the job's expected run time if the shortest goes first, else 0.

    The criteria in order: not above the fair share; within quota with the job; higher priority; has an entitlement;
    smaller ratio of allocation to entitlement with the job, then without; smaller entitlement; older; name. If the
    shortest goes first: within quota; priority; for a job beyond the quota fewer GPU-seconds; then as above.
    """
    with_job = account.allocated + milli_gpus
    entitled = account.entitled
    is_above_share = account.allocated > account.fair_share
    is_over_quota = account.quota is not None and with_job > account.quota
    return (
        is_above_share and not seconds,
        is_over_quota,
        -account.priority,
        seconds * milli_gpus if is_over_quota else 0,
        is_above_share,
        entitled == 0 and with_job > 0,
        _ratio(with_job, entitled),
        _ratio(account.allocated, entitled),
        float("inf") if entitled is None else float(entitled),
        account.rank,
        account.name,
    )


def _ratio(milli_gpus: int, entitled: int | None) -> float:
    if entitled is None:
        return 0.0
    return milli_gpus / entitled if entitled else float(milli_gpus)


class JobClass:
    """Queued jobs of one project that differ only in id and age, the oldest first. A refusal of one applies to all,
    and so do the properties of `jobs[0]`.

    The jobs before the index `at` are decided: they start or have a promise. `seconds`: their expected run time if
    the shortest goes first, else 0.
    """

    __slots__ = ("_head", "_kept", "_passed", "account", "at", "jobs", "milli_gpus", "request", "seconds")

    def __init__(
        self, jobs: list[JobView], account: Account, request: Request, milli_gpus: int, seconds: int = 0
    ) -> None:
        self.jobs = jobs
        self.account = account
        self.request = request
        self.milli_gpus = milli_gpus
        self.seconds = seconds
        self.at = 0
        self._head: Waiting | None = None
        self._passed: list[JobView] = []
        # All its jobs in their order, while `jobs` is another list for the rest of a cycle.
        self._kept: list[JobView] | None = None

    @property
    def head(self) -> Waiting:
        """The oldest undecided job."""
        job = self.jobs[self.at]
        if self._head is None or self._head.job is not job:
            self._head = self.waiting(job)
        return self._head

    @property
    def key(self) -> TurnInProject:
        """The sort key of the head within its project."""
        return self.turn(self.jobs[self.at])

    def turn(self, job: JobView) -> TurnInProject:
        """Return the sort key of a job of the class within its project."""
        return (-job.priority, self.seconds, job.submit_rank, job.id)

    @property
    def is_decided(self) -> bool:
        """Whether all jobs are decided, so that there is no head."""
        return self.at >= len(self.jobs)

    def advance(self) -> None:
        """Mark the head as decided; the next job becomes the head."""
        self.at += 1

    def pass_over(self) -> None:
        """Skip the head until `take_back`, without deciding on it. The next job becomes the head."""
        if self._kept is None:
            self._kept, self.jobs = self.jobs, list(self.jobs)
        self._passed.append(self.jobs.pop(self.at))

    def take_back(self) -> None:
        """Put the skipped jobs back, in front of the other undecided ones."""
        if self._passed:
            self.jobs[self.at : self.at] = self._passed
            self._passed.clear()

    def rewind(self) -> None:
        """Make all jobs undecided again, in their original order."""
        self.at = 0
        self._passed.clear()
        if self._kept is not None:
            self.jobs, self._kept = self._kept, None

    def decided(self) -> Iterator[Waiting]:
        """Yield the decided jobs in queue order: those that start or have a promise."""
        return (self.waiting(job) for job in self.jobs[: self.at])

    def waiting(self, job: JobView) -> Waiting:
        """Return a job of the class with the account, request and size that all its jobs share."""
        return Waiting(job, self.account, self.request, self.milli_gpus)


class QueueIterator:
    """The classes of waiting jobs in queue order: by department, then project, then job.

    Call `take`, decide on the head of the class, then call `put_back` or `close`. Only the served account is sorted
    again, so that one job costs O(log n). Call `reopen` after a decision by which other accounts lost jobs.
    """

    __slots__ = ("_closed", "_excluded", "_projects", "_queues", "_taken", "_tops", "_versions")

    def __init__(
        self, classes: Iterable[JobClass], excluded: Callable[[JobClass], Cause | None] | None = None
    ) -> None:
        """`excluded`: called with each class that reaches the head of its project; if it returns a cause, the class
        is closed."""
        self._excluded = excluded
        self._queues: dict[str, list[tuple[TurnInProject, JobClass]]] = {}
        self._projects: dict[str, list[_Entry]] = {}
        self._tops: list[_Entry] = []
        self._versions: dict[str, int] = {}
        self._taken: JobClass | None = None
        # By cause, then by department (or project without one): many classes have one cause.
        self._closed: dict[Cause, dict[Account, list[JobClass]]] = {}
        accounts: dict[str, Account] = {}
        for one in classes:
            if not one.is_decided:
                self._queues.setdefault(one.account.name, []).append((one.key, one))
                accounts[one.account.name] = one.account
        for queue in self._queues.values():
            heapq.heapify(queue)
        self._update(accounts.values())

    def take(self) -> JobClass | None:
        """Remove and return the class whose head is next; None if none is left."""
        _drop_stale(self._tops, self._versions)
        if not self._tops:
            return None
        _, _, top, _ = self._tops[0]
        _, _, project, _ = self._projects[top][0]
        _, self._taken = heapq.heappop(self._queues[project])
        return self._taken

    def put_back(self) -> None:
        """Put the class that was taken last back, at the place of its next undecided job; a class without one stays
        out."""
        taken = self._taken
        assert taken is not None
        if not taken.is_decided:
            heapq.heappush(self._queues[taken.account.name], (taken.key, taken))
        self._update((taken.account,))

    def close(self, cause: Cause) -> None:
        """Keep the class that was taken last out of the queue until `reopen`. `cause`: why it was not served."""
        assert self._taken is not None
        self._put_away(self._taken, cause)
        self._update((self._taken.account,))

    def _put_away(self, one: JobClass, cause: Cause) -> None:
        top = one.account.parent or one.account
        self._closed.setdefault(cause, {}).setdefault(top, []).append(one)

    def reopen(self, accounts: Collection[Account], may_fit: Callable[[Cause, JobClass], bool]) -> None:
        """Sort the projects `accounts`, which lost jobs, again, and put closed classes back: all of their departments
        (or projects without one), and all others that were closed by a cause for which `may_fit` returns True.
        `may_fit` is called once per cause, with the cause and one of these other classes."""
        changed = set(accounts)
        for cause, by_top in list(self._closed.items()):
            opened = [by_top.pop(top) for top in _tops(accounts) if top in by_top]
            if by_top and may_fit(cause, next(iter(by_top.values()))[0]):
                opened += by_top.values()
                by_top = {}
            if not by_top:
                del self._closed[cause]
            for one in chain.from_iterable(opened):
                heapq.heappush(self._queues[one.account.name], (one.key, one))
                changed.add(one.account)
        self._update(sorted(changed, key=attrgetter("name")))

    def _update(self, accounts: Iterable[Account]) -> None:
        """Sort these projects again after their accounts changed. Classes at their heads for which `excluded` returns a
        cause are closed first."""
        tops: dict[str, Account] = {}
        for account in accounts:
            top = account.parent or account
            name = _top_name(account)
            tops[name] = top
            queue = self._queues.get(account.name, [])
            while queue and self._excluded is not None and (cause := self._excluded(queue[0][1])) is not None:
                self._put_away(heapq.heappop(queue)[1], cause)
            # Entries of a heap cannot be changed in place: an outdated entry stays until it reaches the top and
            # is dropped there.
            version = self._versions[account.name] = self._versions.get(account.name, 0) + 1
            if queue:
                first = queue[0][1]
                key = turn_key(account, first.milli_gpus, first.seconds)
                heapq.heappush(self._projects.setdefault(name, []), (key, False, account.name, version))
        for name, top in tops.items():
            self._update_top(name, top)

    def _update_top(self, name: str, top: Account) -> None:
        projects = self._projects.get(name, [])
        _drop_stale(projects, self._versions)
        version = self._versions[name] = self._versions.get(name, 0) + 1
        if projects:
            best = self._queues[projects[0][2]][0][1]
            # A project without a department is its own top.
            is_own = best.account is top
            key = projects[0][0] if is_own else turn_key(top, best.milli_gpus, best.seconds)
            heapq.heappush(self._tops, (key, best.account.parent is not None, name, version))


def _tops(accounts: Iterable[Account]) -> set[Account]:
    return {account.parent or account for account in accounts}


def _top_name(account: Account) -> str:
    """Return a key for the account's department, or for a project without one. Keys of the two kinds never equal each
    other or a project's name: all share one dictionary of versions."""
    return f"{'department' if account.parent else 'project'} {(account.parent or account).name}"


def _drop_stale(heap: list[_Entry], versions: Mapping[str, int]) -> None:
    """Remove entries from the top of the heap that were added before their account changed last."""
    while heap and versions[heap[0][2]] != heap[0][3]:
        heapq.heappop(heap)


def by_project(classes: Iterable[JobClass]) -> Mapping[str, tuple[int, int]]:
    """Return the milli-GPUs that the undecided jobs of each project request, as (preemptible, non-preemptible)."""
    sums: dict[str, tuple[int, int]] = {}
    for one in classes:
        count = len(one.jobs) - one.at
        # A running job's missing workers are in the demand of that job (accounts.py), so they are not counted again.
        if count and not one.jobs[0].workers_for:
            # Elastic jobs count with all their pods: a share covers what a project could use, not only its
            # minimum.
            wanted, head = one.head.wanted_milli_gpus * count, one.jobs[0]
            preemptible, fixed = sums.get(one.account.name, (0, 0))
            if head.is_preemptible:
                preemptible += wanted
            else:
                fixed += wanted
            sums[one.account.name] = (preemptible, fixed)
    return sums


def in_turn(classes: Iterable[JobClass], skip: int = 0) -> Iterator[tuple[JobClass, JobView]]:
    """Yield all undecided jobs in queue order, without the first `skip`, as if none of them could start.

    No account changes meanwhile, so that a project keeps its place while its next jobs have equal requests;
    `QueueIterator` would sort again for each. Whole projects are skipped without reading their jobs where possible.
    """
    queues: dict[str, list[JobClass]] = {}
    for one in classes:
        if not one.is_decided:
            queues.setdefault(one.account.name, []).append(one)
    tops: dict[str, list[_Project]] = {}
    for queue in queues.values():
        tops.setdefault(_top_name(queue[0].account), []).append(_Project(queue))
    heap: list[tuple[Key, bool, str]] = []
    for name, projects in tops.items():
        heapq.heapify(projects)
        heap.append((*projects[0].top_key, name))
    heapq.heapify(heap)
    while heap:
        _, _, name = heap[0]
        projects = tops[name]
        best = projects[0]
        skip -= best.drop(skip)
        for turn in best.take():
            if skip:
                skip -= 1
            else:
                yield turn
        if best.count:
            heapq.heapreplace(projects, best)
        else:
            heapq.heappop(projects)
        if projects:
            heapq.heapreplace(heap, (*projects[0].top_key, name))
        else:
            heapq.heappop(heap)


class _Project:
    """The undecided jobs of one project. Only the next job of each class is sorted, because of a long queue few jobs
    are read."""

    __slots__ = ("_heads", "_keys", "_top_keys", "account", "count")

    def __init__(self, classes: Sequence[JobClass]) -> None:
        self.account = classes[0].account
        self._heads = [(one.turn(one.jobs[one.at]), one.at, one) for one in classes]
        heapq.heapify(self._heads)
        self.count = sum(len(one.jobs) - one.at for one in classes)
        self._keys: dict[tuple[int, int], Key] = {}
        self._top_keys: dict[tuple[int, int], tuple[Key, bool]] = {}

    def drop(self, most: int) -> int:
        """Remove all jobs, if there are at most `most` and all have equal requests. Return how many were removed."""
        if self.count > most or len({(one.milli_gpus, one.seconds) for _, _, one in self._heads}) > 1:
            return 0
        dropped, self.count = self.count, 0
        self._heads.clear()
        return dropped

    @property
    def _next(self) -> tuple[int, int]:
        """The milli-GPUs and the expected seconds of the project's next job, which decide the project's place."""
        one = self._heads[0][2]
        return one.milli_gpus, one.seconds

    @property
    def key(self) -> Key:
        """The sort key of the project among the projects of its department, for the project's next job."""
        if self._next not in self._keys:
            self._keys[self._next] = turn_key(self.account, *self._next)
        return self._keys[self._next]

    @property
    def top_key(self) -> tuple[Key, bool]:
        """The sort key of the project's department (of the project without one), for the project's next job."""
        if self._next not in self._top_keys:
            top = self.account.parent or self.account
            self._top_keys[self._next] = (turn_key(top, *self._next), self.account.parent is not None)
        return self._top_keys[self._next]

    def __lt__(self, other: _Project) -> bool:
        return self.key < other.key

    def take(self) -> Iterator[tuple[JobClass, JobView]]:
        """Remove and yield the project's next jobs, as long as their requests equal that of the first."""
        place = self._next if self._heads else None
        while self._heads and self._next == place:
            _, at, one = self._heads[0]
            job, at = one.jobs[at], at + 1
            if at < len(one.jobs):
                heapq.heapreplace(self._heads, (one.turn(one.jobs[at]), at, one))
            else:
                heapq.heappop(self._heads)
            self.count -= 1
            yield one, job
