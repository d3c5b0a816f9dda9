"""Estimate when queued jobs start, as ranges of time, by simulating the cluster.

Two simulations run side by side: in one jobs end earlier than expected, in the other later. Future submissions are
unknown, so that the late end of a range is stretched. Ranges are wider for learned run times, which are less certain
than declared ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from controlplane.scheduling.course import STEPS, Course, RunTimes, never
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.plan import Hold
from controlplane.scheduling.unknown_starts import UnknownStarts, data_due
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement, placements_from_lists

# Factors on run times in the early and the late simulation, in thousandths.
EARLY, LATE = 500, 1300
# Factors on the simulated waits that give the early and the late end of a range, in thousandths.
DECLARED, LEARNED = (1000, 1800), (500, 2250)
# The minimum width of a range, because simulations advance in steps of at least a minute.
LEAST_SECONDS = 60


@dataclass(frozen=True, slots=True)
class StartRange:
    """When a job is expected to start: from `earliest` to `latest`, in Unix seconds. `latest` None: perhaps not
    within the simulated time."""

    earliest: int
    latest: int | None


@dataclass(frozen=True, slots=True)
class Prospect:
    """What is expected for a queued job. `placements`: where the next cycle starts it (`starts_now`), else where it
    has a promise, else (). `victims`: the ids of the jobs that are stopped for it first. `range`: when it starts;
    None if that cannot be estimated. `hold`: why the next cycle does not start it, None if it does."""

    placements: tuple[PodPlacement, ...]
    starts_now: bool
    victims: tuple[str, ...]
    range: StartRange | None
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class LearnedRunTimes:
    """Learned run times in seconds, by job id, for jobs that declare none: low ones for the early simulation, high
    ones for the late one, and the expected ones."""

    early: RunTimes
    expected: RunTimes
    late: RunTimes


def prospect(
    view: ClusterView,
    job_id: str,
    is_over: Callable[[], bool] = never,
    learned: LearnedRunTimes | None = None,
) -> Prospect:
    """Return what the next cycles do with a queued job. `is_over`: returns True when the time allowed for simulating
    is used up; `learned`: None for the run times in the view."""
    plan = decide(view)
    start = next((start for start in plan.starts if start.job == job_id), None)
    if start is not None:
        return Prospect(start.placements, True, (), StartRange(view.now, view.now))
    hold = next((hold for hold in plan.holds if hold.job == job_id), None)
    victims = tuple(one.job for one in plan.preempts if one.beneficiary == job_id)
    promised = () if hold is None else placements_from_lists(hold.details.get("promised", ()))
    return Prospect(promised, False, victims, start_range(view, job_id, is_over, learned), hold)


def start_range(
    view: ClusterView,
    job_id: str,
    is_over: Callable[[], bool] = never,
    learned: LearnedRunTimes | None = None,
) -> StartRange | None:
    """Return when a queued job is expected to start, not before a copy of its data for which it waits is expected to
    end. None if that cannot be estimated (`unknown_starts.why_unknown`). Parameters as for `prospect`."""
    return start_ranges(view, is_over, learned, only={job_id}).get(job_id)


def start_ranges(
    view: ClusterView,
    is_over: Callable[[], bool] = never,
    learned: LearnedRunTimes | None = None,
    only: Collection[str] | None = None,
) -> dict[str, StartRange | None]:
    """Return the start range of each queued job, by id; None as for `start_range`. `only`: the ids of the jobs to
    return. If `is_over()` returns True before a job has started in both simulations, its range has no end."""
    queued = [job for job in view.jobs if job.state == "queued" and (only is None or job.id in only)]
    unknown = UnknownStarts(view)
    wanted = {job.id for job in queued if not unknown.why(job)}
    early = Course(view, EARLY, learned.early if learned else None)
    late = Course(view, LATE, learned.late if learned else None)
    _follow(early, late, wanted, is_over)
    stretch = LEARNED if learned is not None and learned.late else DECLARED
    return {
        job.id: _not_before(_data_of(job, view.now), _range(view.now, early, late, job.id, stretch))
        if job.id in wanted
        else None
        for job in queued
    }


def _data_of(job: JobView, now: int) -> int:
    """Return the time before which a queued job has no data, in Unix seconds; 0 if it has it or that is unknown."""
    return (data_due(job, now) or 0) if job.is_waiting_for_data else 0


def _not_before(due: int, found: StartRange) -> StartRange:
    """Return the range without the time before `due`: steps of the simulation are longer than copies may last."""
    earliest = max(due, found.earliest)
    latest = None if found.latest is None else max(found.latest, earliest + LEAST_SECONDS)
    return StartRange(earliest, latest) if due > found.earliest else found


def _follow(early: Course, late: Course, wanted: Collection[str], is_over: Callable[[], bool]) -> None:
    """Run both simulations in equal steps, STEPS at most, until all jobs have started in both or `is_over()` returns
    True."""
    for step in range(STEPS):
        for course in (early, late):
            if all(job in course.starts for job in wanted):
                continue
            # The first step is the cluster at this moment.
            if step:
                course.advance()
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
