"""Estimate when a queued job starts, as a range: decide again and again on the view as time goes on. Pure.

Two courses are followed: jobs end earlier than expected, and jobs end later. Future submissions are unknown, so the
late end is stretched. Never called in the cycle: a course costs STEPS decisions and more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.feasibility import FeasibilityCheck
from controlplane.scheduling.limits import not_ready
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.runtimes import expected_end
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement, placements_from_lists

# A course goes on in growing steps: a minute after the first, a week after the last.
FIRST_STEP, GROWTH, STEPS = 60.0, 1.25, 42
# Cycles at one moment: victims stop, their successors start, and what is left is given out.
SETTLING = 4
# Run times of the early and the late course, and the stretch of its wait, in thousandths.
EARLY, LATE, STRETCH = 600, 1300, 1500
# The run time of a job of which nothing is known, where no other is known either.
UNKNOWN_SECONDS = 3600
# The least width of a range.
LEAST_SECONDS = 60


@dataclass(frozen=True, slots=True)
class StartRange:
    """When a job is expected to start, in Unix seconds. `latest` None: not within the time that was looked at."""

    earliest: int
    latest: int | None


@dataclass(frozen=True, slots=True)
class Prospect:
    """What happens to a job: where it starts now, whose jobs stop for it first, and when it starts."""

    placements: tuple[PodPlacement, ...]
    starts_now: bool
    victims: tuple[str, ...]
    range: StartRange | None


def never() -> bool:
    """Return False: no budget."""
    return False


def prospect(view: ClusterView, job_id: str, is_over: Callable[[], bool] = never) -> Prospect:
    """Return what the next cycles do with a queued job. `is_over`: whether to stop following courses."""
    plan = decide(view)
    start = next((start for start in plan.starts if start.job == job_id), None)
    if start is not None:
        return Prospect(start.placements, True, (), StartRange(view.now, view.now))
    hold = next((hold for hold in plan.holds if hold.job == job_id), None)
    victims = tuple(one.job for one in plan.preempts if one.beneficiary == job_id)
    promised = () if hold is None else placements_from_lists(hold.details.get("promised", ()))
    return Prospect(promised, False, victims, start_range(view, job_id, is_over))


def start_range(view: ClusterView, job_id: str, is_over: Callable[[], bool] = never) -> StartRange | None:
    """Return when a queued job is expected to start; None for a job that never can, as the cluster is, and for one that
    waits for what no course follows: its data or volume, or the cluster's answer."""
    job = next((job for job in view.jobs if job.id == job_id and job.state == "queued"), None)
    if job is None or not_ready(job) is not None or not view.is_engine_reachable:
        return None
    if FeasibilityCheck(view).refuse(job) is not None:
        return None
    early, is_known = _follow(view, job_id, EARLY, is_over)
    late, is_known = _follow(view, job_id, LATE, is_over) if is_known else (early, False)
    if not is_known:
        return StartRange(early, None)
    earliest = min(early, late)
    latest = view.now + (max(early, late) - view.now) * STRETCH // 1000
    return StartRange(earliest, max(latest, earliest + LEAST_SECONDS))


def _follow(view: ClusterView, job_id: str, factor: int, is_over: Callable[[], bool]) -> tuple[int, bool]:
    """Return (when the job starts in this course, True), or (how far was looked, False)."""
    course = _Course(view, factor)
    before, step = view.now, FIRST_STEP
    for _ in range(STEPS):
        if course.settle(job_id, is_over):
            return (before if factor < 1000 else course.view.now), True
        if is_over():
            break
        before = course.view.now
        course.go_on(before + int(step))
        step *= GROWTH
    return course.view.now, False


class _Course:
    """One course of events, from the view on."""

    def __init__(self, view: ClusterView, factor: int) -> None:
        self.view = view
        self._factor = factor
        known = [job.expected_runtime_seconds for job in view.jobs]
        self._usual = median_low([one for one in known if one is not None] or [UNKNOWN_SECONDS])
        self._ends = {
            job.id: view.now + self._scaled(self._left(job))
            for job in view.jobs
            if job.state == "active" and not job.is_stopping
        }
        self._is_changed = True

    def settle(self, job_id: str, is_over: Callable[[], bool]) -> bool:
        """Decide and apply until nothing stops any more, or time is up; return whether the job has started."""
        if not self._is_changed:
            return False
        for _ in range(SETTLING):
            plan = decide(self.view)
            self._apply(plan)
            if any(start.job == job_id for start in plan.starts):
                return True
            if is_over() or not (plan.preempts or any(job.is_stopping for job in self.view.jobs)):
                break
        self._is_changed = False
        return False

    def go_on(self, now: int) -> None:
        """Let time pass; jobs that end until then are gone."""
        jobs = tuple(job for job in self.view.jobs if self._ends.get(job.id, now + 1) > now)
        was_waiting = any((job.not_before or 0) > self.view.now for job in jobs)
        self._is_changed = was_waiting or len(jobs) < len(self.view.jobs)
        self.view = replace(self.view, now=now, jobs=jobs)

    def _apply(self, plan: Plan) -> None:
        starts = {start.job: start for start in plan.starts}
        victims = {preempt.job: preempt for preempt in plan.preempts}
        promised = {hold.job: hold.details["promised"] for hold in plan.holds if hold.is_promised}
        jobs: list[JobView] = []
        for job in self.view.jobs:
            if job.id in starts:
                self._ends[job.id] = self.view.now + self._scaled(job.expected_runtime_seconds or self._usual)
                job = _started(job, starts[job.id].placements, self.view.now)
            elif job.id in victims:
                self._ends.pop(job.id, None)
                taken = victims[job.id]
                job = _requeued(job, (taken.beneficiary, taken.beneficiary_project))
            elif job.is_stopping:
                if job.was_preempted_by is None:
                    continue
                job = _requeued(job, (job.was_preempted_by, job.was_preempted_by_project))
            elif job.state == "queued":
                job = replace(job, promised=placements_from_lists(promised.get(job.id, ())))
            jobs.append(job)
        self.view = replace(self.view, jobs=tuple(jobs))

    def _left(self, job: JobView) -> int:
        end = expected_end(job, self.view.now)
        if end is not None:
            return end - self.view.now
        ran = self.view.now - (job.started_at or self.view.now)
        return max(ran, self._usual - ran)

    def _scaled(self, seconds: int) -> int:
        return max(1, seconds * self._factor // 1000)


def _started(job: JobView, placements: Sequence[PodPlacement], now: int) -> JobView:
    return replace(
        job, state="active", placements=tuple(placements), started_at=now, promised=(), was_preempted_by=None,
        was_preempted_by_project=None,
    )  # fmt: skip


def _requeued(job: JobView, by: tuple[str, str | None]) -> JobView:
    return replace(
        job, state="queued", placements=(), is_stopping=False, started_at=None, last_checkpoint_at=None,
        was_preempted_by=by[0], was_preempted_by_project=by[1],
    )  # fmt: skip
