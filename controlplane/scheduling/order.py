"""The order of the queue: projects by how far they are below their share, their jobs by priority and first
submission.

Between projects the time of submission does not count, so that projects with equal rights get equal shares. If the
shortest job goes first (`queue_order`), GPUs beyond the quotas go to the job that is expected to need the fewest
GPU-seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.fit import Request
from controlplane.scheduling.view import ClusterView, JobView

Key = tuple[bool, bool, int, int, bool, bool, float, float, float, int, str]
JobKey = tuple[int, int, str]
TurnInProject = tuple[int, int, int, str]
"""Priority, expected seconds (0 in the order of submission), first submission, id."""
# Sorts a job without an expected run time after all others.
LAST = 1 << 40


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
    the shortest goes first, else 0. `may_be_unready`: their back-off may go on, or their data or volume be missing.
    """

    __slots__ = (
        "_head", "_kept", "_passed", "account", "at", "jobs", "may_be_unready", "milli_gpus", "request", "seconds",
    )  # fmt: skip

    def __init__(
        self, jobs: list[JobView], account: Account, request: Request, milli_gpus: int, seconds: int = 0
    ) -> None:
        self.jobs = jobs
        self.account = account
        self.request = request
        self.milli_gpus = milli_gpus
        self.seconds = seconds
        first = jobs[0]
        self.may_be_unready = (
            first.not_before is not None or first.is_waiting_for_data or first.is_waiting_for_volume
        )
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

    @property
    def is_moved(self) -> bool:
        """Whether `rewind` would change anything."""
        return self.at > 0 or self._kept is not None

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


class QueuedProject:
    """The classes of one project that may be served, and what a phase must know to skip all of them at once. It
    stays valid while no class is added or removed, whichever jobs of the classes are decided.

    `least_milli_gpus`, `highest_priority`: of any class. `requests`: of all classes. `has_own_room`: a class has a
    promise, or may wait for a copy of its data, so that it can be served without free capacity for its request.
    """

    __slots__ = ("account", "classes", "has_own_room", "highest_priority", "least_milli_gpus", "requests")

    def __init__(self, account: Account, classes: Sequence[JobClass]) -> None:
        """`classes`: at least one, all of this account."""
        jobs = [one.jobs[0] for one in classes]
        self.account = account
        self.classes = classes
        self.least_milli_gpus = min([one.milli_gpus for one in classes])
        self.highest_priority = max([job.priority for job in jobs])
        self.requests = frozenset([one.request for one in classes])
        self.has_own_room = any(job.promised or job.fillable for job in jobs)


def queued_projects(classes: Iterable[JobClass]) -> dict[Account, QueuedProject]:
    """Return the projects of these classes, by account."""
    found: dict[Account, list[JobClass]] = {}
    for one in classes:
        found.setdefault(one.account, []).append(one)
    return {account: QueuedProject(account, members) for account, members in found.items()}


def top_name(account: Account) -> str:
    """Return a key for the account's department, or for a project without one. Keys of the two kinds never equal each
    other or a project's name: all share one dictionary of versions."""
    return f"{'department' if account.parent else 'project'} {(account.parent or account).name}"


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
        tops.setdefault(top_name(queue[0].account), []).append(_Project(queue))
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
