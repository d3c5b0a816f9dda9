"""Replay recorded jobs with a changed project: the scheduler decides on the same submissions twice, without the
change and with it.

Both replays start with the jobs that were running at the beginning of the record, and submit the others at their
recorded times. A job ends once it has run for as long as in the record; a stopped job later continues without loss.
Never called in a scheduling cycle.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from controlplane.scheduling.course import SETTLING, never, requeued, started
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import ClusterView, JobView, ProjectView
from controlplane.scheduling.what_if import JobEffect, WhatIf, compared, job_effect, project_effects

# Submissions and ends within this many seconds of each other are decided together, because a decision for
# each would make the replay of a week too slow.
STEP_SECONDS = 60
# Later than any record, in Unix seconds.
NEVER = 1 << 62


class RecordedJob(NamedTuple):
    """A job as it was when queued. `submitted`: Unix seconds, None if it was running when the record begins.
    `run_seconds`: how long it runs from its start, or from the beginning of the record. `waited`: seconds until its
    first start in the record; None if it was running or never started."""

    job: JobView
    submitted: int | None
    run_seconds: int
    waited: int | None = None


def recorded_what_if(
    view: ClusterView,
    until: int,
    jobs: Sequence[RecordedJob],
    project: ProjectView,
    is_over: Callable[[], bool] = never,
) -> WhatIf:
    """Return how waits and preemptions between `view.now` and `until` (Unix seconds) would have differed with the
    settings of `project`.

    `view`: the cluster at the beginning of the record, without jobs. Fair shares and held GPUs are means over that
    time. `preempted` jobs are stopped more often with the change, `spared` ones less often. The replay ends early
    when `is_over()` returns True.
    """
    changed = tuple(project if one.name == project.name else one for one in view.projects)
    before, after = Replay(view, jobs), Replay(replace(view, projects=changed), jobs)
    now = view.now
    while now < until and not is_over():
        due = min(before.next_event(), after.next_event(), until)
        # Rounded to a grid from the beginning of the record, so that both replays decide at the same times.
        now = min(until, max(now, view.now - (view.now - due) // STEP_SECONDS * STEP_SECONDS))
        before.advance(now)
        after.advance(now)
    return _compare(view, before, after, [one for one in jobs if _is_seen(one, now)], now - view.now)


class Replay:
    """One replay. `waits`: seconds until the first start, by job id; `stops`: how often a job was stopped for others,
    by job id; `held`, `shares`: held GPUs and fair shares in milli-GPU-seconds, by project."""

    def __init__(self, view: ClusterView, jobs: Sequence[RecordedJob]) -> None:
        self.waits: dict[str, int] = {}
        self.stops: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        self.shares: Counter[str] = Counter()
        self._view, self._scheduler = view, Scheduler()
        self._submitted = {one.job.id: one.submitted for one in jobs}
        self._left = {one.job.id: one.run_seconds for one in jobs}
        arrivals = [
            (one.submitted, one.job.submit_rank, one.job) for one in jobs if one.submitted is not None
        ]
        # In reverse order, so that the next submission is popped from the end.
        self._arrivals = sorted(arrivals, key=lambda one: one[:2], reverse=True)
        self._active: dict[str, JobView] = {}
        self._queued = {one.job.id: one.job for one in jobs if one.submitted is None}
        self._ends: list[tuple[int, str]] = []
        # Milli-GPUs by project after the last decision.
        self._holding: Counter[str] = Counter()
        self._sharing: dict[str, int] = {}
        self._decide()

    def next_event(self) -> int:
        """Return when the next job is submitted or ends, in Unix seconds; NEVER if no more are."""
        arrival = self._arrivals[-1][0] if self._arrivals else NEVER
        return min(arrival, self._ends[0][0]) if self._ends else arrival

    def advance(self, now: int) -> None:
        """Advance the time to `now` (Unix seconds). If jobs were submitted or ended since, decide."""
        self._count(now - self._view.now)
        self._view = replace(self._view, now=now)
        ended = self._end(now)
        if self._submit(now) or ended:
            self._decide()

    def _end(self, now: int) -> bool:
        ended = False
        while self._ends and self._ends[0][0] <= now:
            end, name = heapq.heappop(self._ends)
            job = self._active.get(name)
            # A job that was stopped in between ends later than this entry, which is then outdated.
            if job is not None and (job.started_at or 0) + self._left[name] == end:
                del self._active[name]
                ended = True
        return ended

    def _submit(self, now: int) -> bool:
        before = len(self._arrivals)
        while self._arrivals and self._arrivals[-1][0] <= now:
            job = self._arrivals.pop()[2]
            self._queued[job.id] = job
        return len(self._arrivals) < before

    def _decide(self) -> None:
        for _ in range(SETTLING):
            jobs = (*self._active.values(), *self._queued.values())
            plan = self._scheduler.decide(replace(self._view, jobs=jobs))
            self._apply(plan)
            if not plan.preempts:
                break
        self._holding = Counter()
        for job in self._active.values():
            self._holding[job.project] += sum(pod.milli_gpus for pod in job.placements)

    def _apply(self, plan: Plan) -> None:
        now = self._view.now
        for taken in plan.preempts:
            self._stop(self._active.pop(taken.job), (taken.beneficiary, taken.beneficiary_project))
        for start in plan.starts:
            job = self._queued.pop(start.job)
            submitted = self._submitted[job.id]
            if submitted is not None:
                self.waits.setdefault(job.id, now - submitted)
            self._active[job.id] = started(job, start.placements, now)
            heapq.heappush(self._ends, (now + self._left[job.id], job.id))
        for name, job in self._queued.items():
            promised = plan.promised.get(name, ())
            if promised != job.promised:
                self._queued[name] = replace(job, promised=promised)
        self._sharing = {one.project: one.fair_share_milli_gpus for one in plan.shares}

    def _stop(self, job: JobView, by: tuple[str, str | None]) -> None:
        ran = self._view.now - (job.started_at or 0)
        self.stops[job.id] += 1
        self._left[job.id] = max(1, self._left[job.id] - ran)
        expected = job.expected_runtime_seconds
        left = None if expected is None else max(1, expected - ran)
        self._queued[job.id] = replace(requeued(job, by, self._view), expected_runtime_seconds=left)

    def _count(self, seconds: int) -> None:
        for counted, now in ((self.held, self._holding), (self.shares, self._sharing)):
            for name, milli in now.items():
                counted[name] += milli * seconds


def _is_seen(one: RecordedJob, now: int) -> bool:
    return one.submitted is None or one.submitted <= now


def _compare(
    view: ClusterView, before: Replay, after: Replay, jobs: Sequence[RecordedJob], seconds: int
) -> WhatIf:
    replays = (before, after)
    shares, held = (
        [{name: total // max(1, seconds) for name, total in one.items()} for one in totals]
        for totals in ([one.shares for one in replays], [one.held for one in replays])
    )
    waits = [
        job_effect(one.job, before.waits.get(one.job.id), after.waits.get(one.job.id))
        for one in jobs
        if one.submitted is not None
    ]
    projects = project_effects(view, shares, (held[0], held[1]), waits)
    stopped = _stopped_more(jobs, after, before), _stopped_more(jobs, before, after)
    return replace(compared(projects, waits, stopped, seconds), recorded_mean_waits=_recorded(jobs, waits))


def _recorded(jobs: Sequence[RecordedJob], waits: Sequence[JobEffect]) -> dict[str, int]:
    """Return the mean recorded wait of each project in seconds, over the jobs of `waits` that start in both replays."""
    started = {one.job for one in waits if None not in (one.wait_seconds.before, one.wait_seconds.after)}
    found: dict[str, list[int]] = {}
    for one in jobs:
        if one.job.id in started and one.waited is not None:
            found.setdefault(one.job.project, []).append(one.waited)
    return {project: sum(seconds) // len(seconds) for project, seconds in found.items()}


def _stopped_more(jobs: Sequence[RecordedJob], one: Replay, other: Replay) -> list[JobEffect]:
    return [
        job_effect(known.job, None, None)
        for known in jobs
        if one.stops[known.job.id] > other.stops[known.job.id]
    ]
