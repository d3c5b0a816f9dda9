"""Whose turn it is: projects by how far below their share they are, jobs by priority and first submission.

The order never depends on who submitted first across projects, so equals end alike however they arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.scheduling.fit import Request
from controlplane.scheduling.accounts import Account
from controlplane.scheduling.view import JobView

Key = tuple[bool, bool, int, bool, float, float, float, int, str]
_Project = tuple[Key, str]
_Top = tuple[Key, bool, list[_Project]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued job, its project's account, what it must have, and what that adds to the account.

    An elastic job must have its fewest pods; with any number of pods more, `of` makes it another item.
    """

    job: JobView
    account: Account
    request: Request
    milli_gpus: int

    @property
    def is_in_fair_share(self) -> bool:
        """Whether the project stays within its fair share with this job."""
        return self.account.allocated + self.milli_gpus <= self.account.fair_share

    @property
    def is_elastic(self) -> bool:
        """Whether it could use more pods than it must have."""
        return self.request.pods < self.job.pods

    @property
    def wanted_milli_gpus(self) -> int:
        """What it asks for in all: with all of its pods."""
        return self.milli_gpus // self.request.pods * self.job.pods

    def of(self, pods: int) -> Waiting:
        """The same job when it must have so many pods."""
        if pods == self.request.pods:
            return self
        milli_gpus = self.milli_gpus // self.request.pods * pods
        return Waiting(self.job, self.account, replace(self.request, pods=pods), milli_gpus)


def job_key(job: JobView) -> tuple[int, int, str]:
    """Inside a project: priority, then first submission."""
    return (-job.priority, job.submit_rank, job.id)


def turn_key(account: Account, milli_gpus: int) -> Key:
    """Smaller goes first, among siblings, each with its best waiting job.

    In this order: not over fair share; still inside quota with the job; project priority; not on borrowed
    ground only; smaller share of what it is entitled to, with the job and without; smaller entitlement;
    older; name.
    """
    with_job = account.allocated + milli_gpus
    entitled = account.entitled
    return (
        account.allocated > account.fair_share,
        account.quota is not None and with_job > account.quota,
        -account.priority,
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


class QueueIterator:
    """The waiting line of a cluster: departments and projects re-sorted after every decision.

    Only the account that was served changes place, so serving one job costs a logarithm. After victims were
    chosen, other accounts have changed too: call `resort`.
    """

    __slots__ = ("_queues", "_tops")

    def __init__(self, waiting: Iterable[Waiting]) -> None:
        self._queues: dict[str, list[Waiting]] = {}
        for item in waiting:
            self._queues.setdefault(item.account.name, []).append(item)
        for queue in self._queues.values():
            queue.sort(key=lambda item: job_key(item.job), reverse=True)
        self._tops: list[_Top] = []
        self.resort()

    def resort(self) -> None:
        """Sort everything again, by what the accounts hold now."""
        members: dict[tuple[bool, str], list[_Project]] = {}
        for name, queue in self._queues.items():
            account = queue[-1].account
            top = (account.parent is not None, (account.parent or account).name)
            members.setdefault(top, []).append((self._key(name), name))
        for projects in members.values():
            heapq.heapify(projects)
        self._tops = [self._entry(projects) for projects in members.values()]
        heapq.heapify(self._tops)

    def take(self) -> Waiting | None:
        """The job whose turn it is, removed from the line. Call `served` once it has been decided."""
        if not self._tops:
            return None
        _, _, projects = self._tops[0]
        return self._queues[projects[0][1]].pop()

    def served(self) -> None:
        """The job just taken has been decided: its project and department find their new places."""
        _, _, projects = self._tops[0]
        name = projects[0][1]
        if self._queues[name]:
            heapq.heapreplace(projects, (self._key(name), name))
        else:
            del self._queues[name]
            heapq.heappop(projects)
        if projects:
            heapq.heapreplace(self._tops, self._entry(projects))
        else:
            heapq.heappop(self._tops)

    def _entry(self, projects: list[_Project]) -> _Top:
        best = self._queues[projects[0][1]][-1]
        top = best.account.parent or best.account
        key = turn_key(top, best.milli_gpus)
        return (key, best.account.parent is not None, projects)

    def _key(self, name: str) -> Key:
        best = self._queues[name][-1]
        return turn_key(best.account, best.milli_gpus)


def by_project(waiting: Iterable[Waiting]) -> Mapping[str, tuple[int, int]]:
    """Per project, the (preemptible, non-preemptible) milli-GPUs that its waiting jobs ask for."""
    sums: dict[str, tuple[int, int]] = {}
    for item in waiting:
        preemptible, fixed = sums.get(item.account.name, (0, 0))
        if item.job.is_preemptible:
            preemptible += item.wanted_milli_gpus
        else:
            fixed += item.wanted_milli_gpus
        sums[item.account.name] = (preemptible, fixed)
    return sums
