"""Decide on one cluster in cycle after cycle: the state is kept between cycles, and only changes are applied to it."""

from __future__ import annotations

from dataclasses import fields
from itertools import takewhile
from operator import attrgetter, is_

from controlplane.scheduling.cycle import decide_on
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.explain import Holds
from controlplane.scheduling.feasibility import QueuedJobs
from controlplane.scheduling.growth import lacks_workers, with_missing_workers
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import ClusterView, JobView

Jobs = tuple[JobView, ...]
Difference = tuple[Jobs, Jobs]
"""The jobs of two views that are not in the other one, in their order. A job that changed is another object."""
Changes = list[tuple[JobView | None, JobView | None]]
"""(before, after) of each job that differs."""

# The fraction of all jobs; when more than this differ, building a new state is cheaper.
MOST_CHANGED = 0.5
# The jobs that are compared at once, because slices are compared without a loop in Python.
BLOCK = 256
_all_but_the_checkpoint = attrgetter(
    *(field.name for field in fields(JobView) if field.name != "last_checkpoint_at")
)

_all_but_time_and_jobs = attrgetter(
    *(field.name for field in fields(ClusterView) if field.name not in ("now", "jobs"))
)


class Scheduler:
    """Returns the same plans as `cycle.decide`, at almost no cost for jobs that have not changed.

    Pass unchanged jobs as the same objects, which are compared fastest. A change of nodes, projects or departments
    discards the state. Read the holds of a plan before the next `decide`.
    """

    def __init__(self) -> None:
        self._state: CycleState | None = None
        self._queued: QueuedJobs | None = None
        self._plan = Plan()
        # Whether any job of the last view lacks workers: if none does, only new and changed jobs need be asked.
        self._lacks_workers = False
        # When the first back-off of the last view ends: from then on an unchanged view may get another plan.
        self._due_at: int | None = None

    def decide(self, view: ClusterView) -> Plan:
        """Return the plan for this view. The state of the previous call is reused as far as the view has not
        changed."""
        state, queued = self._state, self._queued
        # Cleared first, so that an exception leaves no half-changed state behind.
        self._state = self._queued = None
        view, difference = self._compare(state, view)
        changes = None if state is None else _changes(state, view, difference)
        if state is None or queued is None or changes is None:
            state = CycleState(view)
            queued = QueuedJobs(view, state.accounts)
        elif not changes and self._holds_until(state, view.now):
            self._state, self._queued, state.view = state, queued, view
            return self._plan
        else:
            self._expire()
            state.rewind(view)
            for before, after in changes:
                _feed(state, queued, before, after)
        self._plan = decide_on(state, queued)
        self._due_at = queued.next_due(view.now)
        self._state, self._queued = state, queued
        return self._plan

    def _compare(self, state: CycleState | None, view: ClusterView) -> tuple[ClusterView, Difference]:
        """Return the view with missing workers as queued jobs, and the jobs (before, after) in which it differs from
        the state's view."""
        if state is not None and not self._lacks_workers:
            difference = _without_identical(state.view.jobs, view.jobs)
            # Only new and changed jobs can lack workers now.
            self._lacks_workers = lacks_workers(difference[1])
            if not self._lacks_workers:
                return view, difference
        self._lacks_workers = lacks_workers(view.jobs)
        view = with_missing_workers(view)
        return view, ((), view.jobs) if state is None else _without_identical(state.view.jobs, view.jobs)

    def _holds_until(self, state: CycleState, now: int) -> bool:
        """Return whether the last plan of an unchanged cluster is still valid at `now`: it started and stopped
        nothing, did not depend on the time, and no back-off has ended since."""
        return (
            not (self._plan.starts or self._plan.preempts)
            and not (state.depends_on_time and now != state.view.now)
            and (self._due_at is None or now < self._due_at)
        )

    def _expire(self) -> None:
        if isinstance(self._plan.holds, Holds):
            self._plan.holds.expire()


def _feed(state: CycleState, queued: QueuedJobs, before: JobView | None, after: JobView | None) -> None:
    if before is not None and after is not None and _is_checkpoint(before, after):
        state.checkpoint(after)
        return
    if before is not None and before.state == "queued":
        queued.remove(before)
    state.change(before, after)
    if after is not None and after.state == "queued":
        queued.add(after)


def _is_checkpoint(before: JobView, after: JobView) -> bool:
    """Return whether only a new checkpoint distinguishes a running job `after` from `before`."""
    return (
        before.state == "active"
        and before.last_checkpoint_at != after.last_checkpoint_at
        and not before.is_stopping
        and _all_but_the_checkpoint(before) == _all_but_the_checkpoint(after)
    )


def _changes(state: CycleState, view: ClusterView, difference: Difference) -> Changes | None:
    """Return the jobs that differ from the state's view, as (before, after) with None for a job that is new or gone.
    None if a new state must be built: the time went back, too many jobs differ, or anything else does."""
    if view.now < state.view.now:
        # If the clock went back, jobs could be within their minimum run time again.
        return None
    if not _is_same_cluster(state.view, view):
        return None
    before, after = difference
    known = state.jobs
    changes: Changes = []
    for job in after:
        old = known.get(job.id)
        # Jobs with different checkpoints differ, so their other fields are not compared.
        if old is not None and old.last_checkpoint_at == job.last_checkpoint_at and old == job:
            # Replace the object, because the next view is compared with these objects by identity.
            known[job.id] = job
        else:
            changes.append((old, job))
    left = {job.id for job in after}
    changes += [(job, None) for job in before if job.id not in left]
    # Building a new state also takes time for every node.
    return changes if len(changes) <= MOST_CHANGED * max(len(view.jobs), len(view.nodes)) else None


def _without_identical(one: Jobs, other: Jobs) -> Difference:
    """Return both sequences without the job objects that are in both."""
    one, other = _without_common_ends(one, other)
    # Sets of identities are compared without a loop in Python: the middle may be as long as the queue.
    ours, theirs = _places(one), _places(other)
    gone, new = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
    return (
        tuple(one[place] for place in sorted(ours[key] for key in gone)),
        tuple(other[place] for place in sorted(theirs[key] for key in new)),
    )


def _places(jobs: Jobs) -> dict[int, int]:
    """Return each job's index, by the identity of its object."""
    return dict(zip(map(id, jobs), range(len(jobs)), strict=True))


def _without_common_ends(one: Jobs, other: Jobs) -> tuple[Jobs, Jobs]:
    """Return both sequences without the equal jobs at their beginning and end: few changes leave only a short middle
    to compare. Identical objects are compared fastest."""
    if one == other:
        return (), ()
    first = _count_at_start(one, other)
    last = _count_at_end(one, other, min(len(one), len(other)) - first)
    return one[first : len(one) - last], other[first : len(other) - last]


def _count_at_start(one: Jobs, other: Jobs) -> int:
    """Return how many jobs at the beginning are equal. In the first block that differs, jobs count only up to the
    first that is not the same object."""
    most = min(len(one), len(other))
    for first in range(0, most, BLOCK):
        mine, theirs = one[first : first + BLOCK], other[first : first + BLOCK]
        if mine != theirs:
            return first + _count_identical(mine, theirs)
    return most


def _count_at_end(one: Jobs, other: Jobs, most: int) -> int:
    """Return how many jobs at the end are equal, up to `most`."""
    for count in range(0, most, BLOCK):
        size = min(BLOCK, most - count)
        mine, theirs = (jobs[len(jobs) - count - size : len(jobs) - count] for jobs in (one, other))
        if mine != theirs:
            return count + _count_identical(mine[::-1], theirs[::-1])
    return most


def _count_identical(one: Jobs, other: Jobs) -> int:
    """Return how many jobs at the beginning are the same objects."""
    return sum(takewhile(bool, map(is_, one, other)))


def _is_same_cluster(one: ClusterView, other: ClusterView) -> bool:
    """Return whether two views differ in nothing but the time and the jobs."""
    same: bool = _all_but_time_and_jobs(one) == _all_but_time_and_jobs(other)
    return same
