"""Simulate the future of a cluster: jobs end when that is expected, and the scheduler decides in between.

Future submissions are unknown, so that a simulation has none. It takes up to STEPS decisions and therefore never runs
inside a scheduling cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from statistics import median_low
from typing import NamedTuple

from controlplane.scheduling.expected_ends import expected_end
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.order import requeued_rank
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.unknown_starts import copies_due
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement

# A simulation advances in growing steps (the first is a minute long, the last a week): each step costs a
# decision, and distant ends are uncertain anyway.
FIRST_STEP, GROWTH, STEPS = 60.0, 1.25, 42
# Decisions at one moment: victims stop, the jobs that replace them start, and the rest of the capacity is
# assigned.
SETTLING = 4
# The run time assumed for a job when neither it nor any other job of the view declares one: without any the
# job would never end in the simulation.
UNKNOWN_SECONDS = 3600


class Started(NamedTuple):
    """When a job starts in a simulation: later than `after` and not later than `by`, in Unix seconds."""

    after: int
    by: int


RunTimes = Mapping[str, int]
"""Run times in seconds, by job id, that replace the scaled expected ones."""


def never() -> bool:
    """Return False. It is the default `is_over` of simulations: their time is not limited."""
    return False


class Course:
    """A simulated future of a cluster. Expected run times are multiplied by `factor` / 1,000, or replaced by
    `run_times` (seconds by job id).

    `view`: the simulated cluster at the simulated time. `starts`: when each queued job first starts. `preempted`: by
    the id of each job that is stopped in the first `settle`, the id of the job for which it is stopped.
    """

    def __init__(self, view: ClusterView, factor: int = 1000, run_times: RunTimes | None = None) -> None:
        self.view = _with_known_waits(view)
        self.starts: dict[str, Started] = {}
        self.preempted: dict[str, str] = {}
        self._scheduler = Scheduler()
        self._began, self._before, self._step = view.now, view.now, FIRST_STEP
        self._factor, self._run_times = factor, run_times or {}
        known = [job.expected_runtime_seconds for job in view.jobs]
        self._usual = median_low([one for one in known if one is not None] or [UNKNOWN_SECONDS])
        self._ends = {
            job.id: view.now + self._left(job)
            for job in view.jobs
            if job.state == "active" and not job.is_stopping
        }
        # When the data of a job is at which location, by its id.
        self._copied = {job.id: due for job in view.jobs if (due := copies_due(job, view.now))}
        self._is_changed = True

    def settle(self, is_over: Callable[[], bool] = never) -> None:
        """Decide at the simulated time until no job is stopping, SETTLING times at most. Nothing is decided if
        nothing has changed since the last call. Stops after the decision at which `is_over()` returns True."""
        if not self._is_changed:
            return
        for _ in range(SETTLING):
            plan = self._scheduler.decide(self.view)
            self._apply(plan)
            if is_over() or not (plan.preempts or any(job.is_stopping for job in self.view.jobs)):
                break
        self._is_changed = False

    def advance(self) -> None:
        """Advance the simulated time by one step: remove the jobs that end until then, and complete the copies of data
        that are due."""
        self._before = self.view.now
        now = self._before + int(self._step)
        self._step *= GROWTH
        jobs = tuple(job for job in self.view.jobs if self._ends.get(job.id, now + 1) > now)
        was_waiting = any((job.not_before or 0) > self.view.now for job in jobs)
        copied = {job_id: self._copied_until(job_id, now) for job_id in self._copied}
        copied = {job_id: places for job_id, places in copied.items() if places}
        if copied:
            jobs = tuple(
                _with_copies(job, copied[job.id]) if job.id in copied and job.locations else job
                for job in jobs
            )
        self._is_changed = was_waiting or bool(copied) or len(jobs) < len(self.view.jobs)
        self.view = replace(self.view, now=now, jobs=jobs)

    def _copied_until(self, job_id: str, now: int) -> set[str]:
        """Return the locations to which a copy of the job's data is completed in the step that ends at `now`."""
        return {location for due, location in self._copied[job_id] if self._before < due <= now}

    def _apply(self, plan: Plan) -> None:
        starts = {start.job: start for start in plan.starts}
        victims = {preempt.job: preempt for preempt in plan.preempts}
        for job_id in starts:
            self.starts.setdefault(job_id, Started(self._before, self.view.now))
        if self.view.now == self._began:
            self.preempted |= {one.job: one.beneficiary for one in plan.preempts}
        jobs: list[JobView] = []
        for job in self.view.jobs:
            if job.id in starts:
                self._ends[job.id] = self.view.now + self._run_time(job)
                job = started(job, starts[job.id].placements, self.view.now)
            elif job.id in victims:
                self._ends.pop(job.id, None)
                taken = victims[job.id]
                job = requeued(job, (taken.beneficiary, taken.beneficiary_project), self.view)
            elif job.is_stopping:
                if job.was_preempted_by is None:
                    continue
                job = requeued(job, (job.was_preempted_by, job.was_preempted_by_project), self.view)
            elif job.state == "queued" and (job.promised or job.id in plan.promised):
                job = replace(job, promised=plan.promised.get(job.id, ()))
            jobs.append(job)
        self.view = replace(self.view, jobs=tuple(jobs))

    def _run_time(self, job: JobView) -> int:
        learned = self._run_times.get(job.id)
        return learned or self._scaled(job.expected_runtime_seconds or self._usual)

    def _left(self, job: JobView) -> int:
        ran = self.view.now - (self.view.now if job.started_at is None else job.started_at)
        learned = self._run_times.get(job.id)
        if learned is not None:
            # A job that has exceeded its usual run time is expected to exceed it by as much again.
            return max(1, learned - ran, min(ran, ran - learned))
        end = expected_end(job, self.view.now)
        return self._scaled(max(ran, self._usual - ran) if end is None else end - self.view.now)

    def _scaled(self, seconds: int) -> int:
        return max(1, seconds * self._factor // 1000)


def _with_known_waits(view: ClusterView) -> ClusterView:
    """Return the view with jobs that wait for data of which the end is known as jobs that back off until then and may
    start where the first copy ends."""
    due = {job.id: copies_due(job, view.now) for job in view.jobs if job.is_waiting_for_data}
    return replace(view, jobs=tuple(_ready_at(job, due.get(job.id)) for job in view.jobs)) if due else view


def _ready_at(job: JobView, due: list[tuple[int, str]] | None) -> JobView:
    if not due:
        return job
    first, location = min(due)
    # Without a name there is only one location, which all nodes read from.
    at = (location,) if location else ()
    return replace(job, is_waiting_for_data=False, locations=at, not_before=max(first, job.not_before or 0))


def _with_copies(job: JobView, places: Collection[str]) -> JobView:
    """Return the job as it is once its data is at these locations too."""
    fillable = tuple(place for place in job.fillable if place not in places)
    return replace(job, locations=tuple(sorted({*job.locations, *places})), fillable=fillable)


def started(job: JobView, placements: Sequence[PodPlacement], now: int) -> JobView:
    """Return a queued job as it is when it runs on these placements since `now` (Unix seconds)."""
    return replace(
        job, state="active", placements=tuple(placements), started_at=now, promised=(), was_preempted_by=None,
        was_preempted_by_project=None, waiting_since=None,
    )  # fmt: skip


def requeued(job: JobView, by: tuple[str, str | None], view: ClusterView) -> JobView:
    """Return a running job as it is once it was stopped for the job `by` (id, project) and queued again. `view`:
    gives the time and the policies."""
    return replace(
        job, state="queued", placements=(), is_stopping=False, started_at=None, last_checkpoint_at=None,
        was_preempted_by=by[0], was_preempted_by_project=by[1], submit_rank=requeued_rank(job, view),
    )  # fmt: skip
