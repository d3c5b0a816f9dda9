"""Running jobs that policies treat alike, sorted by the cost of stopping one of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from heapq import merge

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.capacity import WHOLE_GPU
from controlplane.scheduling.victims import Candidate, VictimClass, magnitude, work_lost
from controlplane.scheduling.view import JobView

CostAlone = tuple[int, int, int, int, str]
# A job's id is part of its cost, so candidates are never compared with each other.
_Priced = tuple[CostAlone, Candidate]
_Ordered = tuple[int, int, str]


class SortedClass:
    """The candidates of one class, in ascending order of the cost of stopping one of them at `now` (Unix seconds).
    They are sorted when `by_cost` is first called."""

    __slots__ = (
        "_cheapest",
        "_is_searched",
        "_jobs",
        "_made",
        "_most_devices",
        "_now",
        "_sorted",
        "account",
        "name",
    )

    def __init__(self, account: Account, name: VictimClass, now: int) -> None:
        self.account = account
        self.name = name
        self._now = now
        self._jobs: dict[str, JobView] = {}
        # The members that have been examined: in a large cluster few are.
        self._made: dict[str, Candidate] = {}
        # The most devices that any member holds; None until it is needed.
        self._most_devices: int | None = None
        self._sorted: list[_Ordered] | None = None
        # Whether the cheapest was found without sorting: many need no second one.
        self._is_searched = False
        self._cheapest: _Priced | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_fresh(self) -> bool:
        """Whether the members are within their minimum run time."""
        return self.name[4]

    def rewind(self, now: int) -> None:
        """Begin another cycle at `now`."""
        self._now = now
        self._made.clear()
        self._sorted = self._cheapest = None
        self._is_searched = False

    def job(self, job_id: str) -> JobView:
        """Return a member's job. Raise KeyError if it is not a member."""
        return self._jobs[job_id]

    def candidate(self, job_id: str) -> Candidate:
        """Return a member, the same object until the next `rewind`."""
        found = self._made.get(job_id)
        if found is None:
            job = self._jobs[job_id]
            lost = work_lost(job, self.name[1], self._now)
            found = self._made[job_id] = Candidate(job, self.account, job.placements, self.name, lost)
        return found

    @property
    def first(self) -> Candidate:
        """Any member: policies treat all members of a class alike."""
        return self.candidate(next(iter(self._jobs)))

    @property
    def members(self) -> Iterator[Candidate]:
        """The members in no order."""
        return map(self.candidate, self._jobs)

    @property
    def cheapest(self) -> _Priced:
        """Return the member that costs least to stop alone, with that cost."""
        if self._cheapest is None:
            if self._sorted is None and not self._is_searched:
                self._is_searched = True
                *_, job_id = min(self._keys())
                one = self.candidate(job_id)
                self._cheapest = _cost_alone(one), one
            else:
                self._cheapest = next(self.by_cost())
        return self._cheapest

    def by_cost(self) -> Iterator[_Priced]:
        """Yield (cost of stopping it alone, member) for each member, in ascending order of the cost."""
        if self._sorted is None:
            self._sorted = sorted(self._keys())
        members = (self.candidate(job_id) for *_, job_id in self._sorted)
        return ((_cost_alone(one), one) for one in members)

    def may_free(self, devices: int) -> bool:
        """Return whether stopping one member could free so many devices. True may be wrong."""
        if self.name[1] >= devices * WHOLE_GPU:
            return True
        if self._most_devices is None:
            self._most_devices = max(map(_devices, self._jobs.values()), default=0)
        return self._most_devices >= devices

    def add_jobs(self, jobs: Sequence[JobView]) -> None:
        """Add members, or replace them by id, before the first search of a cycle."""
        self._jobs.update({job.id: job for job in jobs})
        self._most_devices = None

    def add(self, candidate: Candidate) -> None:
        """Add a member."""
        job = candidate.job
        self._jobs[job.id], self._made[job.id] = job, candidate
        self._cheapest = None
        if self._most_devices is not None:
            self._most_devices = max(self._most_devices, _devices(job))
        if self._sorted is not None:
            insort(self._sorted, self._in_class(job))

    def remove(self, job_id: str) -> None:
        """Remove a member."""
        self._cheapest = None
        if self._sorted is not None:
            del self._sorted[bisect_left(self._sorted, self._in_class(self._jobs[job_id]))]
        del self._jobs[job_id]
        self._made.pop(job_id, None)

    def _keys(self) -> list[_Ordered]:
        return [self._in_class(job) for job in self._jobs.values()]

    def _in_class(self, job: JobView) -> _Ordered:
        """Return a key that sorts the members of one class like `_cost_alone`: they all have one size."""
        made = self._made.get(job.id)
        lost = work_lost(job, self.name[1], self._now) if made is None else made.work_lost
        return lost, -job.submit_rank, job.id


def _devices(job: JobView) -> int:
    return sum([len(pod.devices) for pod in job.placements])


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
