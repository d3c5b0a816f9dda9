"""Estimate when queued jobs start, as ranges: decide again and again on the view as time goes on. Pure.

Two courses are followed side by side: jobs end earlier than expected, and jobs end later. Future submissions are
unknown, so the late end is stretched. Ranges are wider where run times are learned: those say less than declared ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from controlplane.scheduling.course import STEPS, Course, RunTimes, never
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.feasibility import FeasibilityCheck
from controlplane.scheduling.limits import not_ready
from controlplane.scheduling.view import ClusterView, PodPlacement, placements_from_lists

# Run times of the early and the late course, in thousandths.
EARLY, LATE = 500, 1300
# The waits until the early and the late end of a range, in thousandths of those in the courses.
DECLARED, LEARNED = (1000, 1800), (500, 2250)
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


@dataclass(frozen=True, slots=True)
class LearnedRunTimes:
    """Seconds by job id of jobs without a declared run time, in the early and in the late course, and as
    expected."""

    early: RunTimes
    expected: RunTimes
    late: RunTimes


def prospect(
    view: ClusterView,
    job_id: str,
    is_over: Callable[[], bool] = never,
    learned: LearnedRunTimes | None = None,
) -> Prospect:
    """Return what the next cycles do with a queued job. `is_over`: whether to stop following courses."""
    plan = decide(view)
    start = next((start for start in plan.starts if start.job == job_id), None)
    if start is not None:
        return Prospect(start.placements, True, (), StartRange(view.now, view.now))
    hold = next((hold for hold in plan.holds if hold.job == job_id), None)
    victims = tuple(one.job for one in plan.preempts if one.beneficiary == job_id)
    promised = () if hold is None else placements_from_lists(hold.details.get("promised", ()))
    return Prospect(promised, False, victims, start_range(view, job_id, is_over, learned))


def start_range(
    view: ClusterView,
    job_id: str,
    is_over: Callable[[], bool] = never,
    learned: LearnedRunTimes | None = None,
) -> StartRange | None:
    """Return when a queued job is expected to start; None for a job that never can, as the cluster is, and for one that
    waits for what no course follows: its data or volume, or the cluster's answer."""
    return start_ranges(view, is_over, learned, only={job_id}).get(job_id)


def start_ranges(
    view: ClusterView,
    is_over: Callable[[], bool] = never,
    learned: LearnedRunTimes | None = None,
    only: Collection[str] | None = None,
) -> dict[str, StartRange | None]:
    """Return the range of every queued job, or of `only` some, by id; None as in `start_range`. Once the budget is
    over, the ranges of jobs that no course has started yet are open."""
    queued = [job for job in view.jobs if job.state == "queued" and (only is None or job.id in only)]
    check = FeasibilityCheck(view)
    wanted = {
        job.id
        for job in queued
        if view.is_engine_reachable and not_ready(job) is None and check.refuse(job) is None
    }
    early = Course(view, EARLY, learned.early if learned else None)
    late = Course(view, LATE, learned.late if learned else None)
    _follow(early, late, wanted, is_over)
    stretch = LEARNED if learned is not None and learned.late else DECLARED
    return {
        job.id: _range(view.now, early, late, job.id, stretch) if job.id in wanted else None for job in queued
    }


def _follow(early: Course, late: Course, wanted: Collection[str], is_over: Callable[[], bool]) -> None:
    """Let both courses take the same steps until all jobs have started in both, or the budget is over."""
    for step in range(STEPS):
        for course in (early, late):
            if all(job in course.starts for job in wanted):
                continue
            # The first step is the cluster as it is.
            if step:
                course.go_on()
            course.settle(is_over)
            if is_over():
                return
        if all(job in early.starts and job in late.starts for job in wanted):
            return


def _range(now: int, early: Course, late: Course, job_id: str, stretch: tuple[int, int]) -> StartRange:
    first, last = early.starts.get(job_id), late.starts.get(job_id)
    if first is None or last is None:
        seen = early.view.now if first is None else first.after
        soonest = seen if last is None else min(seen, last.after)
        return StartRange(now + (soonest - now) * stretch[0] // 1000, None)
    earliest = now + (min(first.after, last.by) - now) * stretch[0] // 1000
    latest = now + (max(first.after, last.by) - now) * stretch[1] // 1000
    return StartRange(earliest, max(latest, earliest + LEAST_SECONDS))
