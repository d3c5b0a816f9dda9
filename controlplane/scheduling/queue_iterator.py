"""The queue of one phase: the classes of waiting jobs in the order of their turns, and those that were closed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.fit import Request
from controlplane.scheduling.order import JobClass, Key, QueuedProject, TurnInProject, top_name, turn_key

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


class QueueIterator:
    """The classes of waiting jobs in queue order: by department, then project, then job.

    Call `take`, decide on the head of the class, then call `put_back` or `close`. Only the served account is sorted
    again, so that one job costs O(log n). Call `reopen` after a decision by which other accounts lost jobs.
    """

    __slots__ = ("_closed", "_excluded", "_projects", "_queues", "_skipped", "_taken", "_tops", "_versions")

    def __init__(
        self,
        projects: Iterable[QueuedProject],
        excluded: Callable[[JobClass], Cause | None],
        skips: Callable[[QueuedProject], bool] | None = None,
    ) -> None:
        """`excluded`: called with each class that reaches the head of its project; if it returns a cause, the class
        is closed. `skips`: called with each project; it returns True only if `excluded` returns a cause with no
        request for each of its classes. These stay closed until their department (or project) loses jobs."""
        self._excluded = excluded
        self._queues: dict[str, list[tuple[TurnInProject, JobClass]]] = {}
        self._projects: dict[str, list[_Entry]] = {}
        self._tops: list[_Entry] = []
        self._versions: dict[str, int] = {}
        self._taken: JobClass | None = None
        # By cause, then by department (or project without one): many classes have one cause.
        self._closed: dict[Cause, dict[Account, list[JobClass]]] = {}
        # Projects that were skipped, by department (or project without one). In a full cluster these are most, so
        # their classes are not examined.
        self._skipped: dict[Account, list[QueuedProject]] = {}
        served = []
        for project in projects:
            if skips is not None and skips(project):
                self._skipped.setdefault(_top(project.account), []).append(project)
            else:
                self._admit(project)
                served.append(project.account)
        self._update(served)

    def _admit(self, project: QueuedProject) -> None:
        queue = [(one.key, one) for one in project.classes if not one.is_decided]
        heapq.heapify(queue)
        self._queues[project.account.name] = queue

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
        self._closed.setdefault(cause, {}).setdefault(_top(one.account), []).append(one)

    def reopen(self, accounts: Collection[Account], may_fit: Callable[[Cause, JobClass], bool]) -> None:
        """Sort the projects `accounts`, which lost jobs, again, and put closed classes back: all of their departments
        (or projects without one), and all others that were closed by a cause for which `may_fit` returns True.
        `may_fit` is called once per cause, with the cause and one of these other classes."""
        changed, tops = set(accounts), {_top(account) for account in accounts}
        for project in chain.from_iterable(self._skipped.pop(top, ()) for top in tops):
            self._admit(project)
            changed.add(project.account)
        for cause, by_top in list(self._closed.items()):
            opened = [by_top.pop(top) for top in tops if top in by_top]
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
            name = top_name(account)
            tops[name] = _top(account)
            queue = self._queues.get(account.name, [])
            while queue and (cause := self._excluded(queue[0][1])) is not None:
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


def _top(account: Account) -> Account:
    return account.parent or account


def _drop_stale(heap: list[_Entry], versions: Mapping[str, int]) -> None:
    """Remove entries from the top of the heap that were added before their account changed last."""
    while heap and versions[heap[0][2]] != heap[0][3]:
        heapq.heappop(heap)
