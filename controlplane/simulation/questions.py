"""The questions that the simulating process answers. Arguments and results are plain data and views;
`is_over` returns True when the time for an answer is used up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from controlplane.scheduling.course import RunTimes
from controlplane.scheduling.estimates import LearnedRunTimes, Prospect, StartRange, prospect, start_ranges
from controlplane.scheduling.recorded import RecordedJob, recorded_what_if
from controlplane.scheduling.suggestions import suggest
from controlplane.scheduling.view import ClusterView, ProjectView
from controlplane.scheduling.what_if import WhatIf, what_if

IsOver = Callable[[], bool]


class Outlook(NamedTuple):
    """`ways`: changes that would each start the job, as `suggest` returns them. `ranges`: the start range of each
    queued job by job id, as `start_ranges` returns them; None if they were not requested."""

    ways: list[dict[str, Any]]
    ranges: dict[str, StartRange | None] | None


def outlook(
    is_over: IsOver, view: ClusterView, job_id: str, learned: LearnedRunTimes | None, has_ranges: bool
) -> Outlook:
    """Return the changes that would start the queued job `job_id` and, with `has_ranges`, when each queued job is
    expected to start. `learned`: run times for jobs that declare none."""
    ways = suggest(view, job_id, is_over)
    return Outlook(ways, start_ranges(view, is_over, learned) if has_ranges else None)


def foresee(is_over: IsOver, view: ClusterView, job_id: str, learned: LearnedRunTimes | None) -> Prospect:
    """Return when and where the queued job `job_id` starts if nothing else is submitted, and which jobs stop for it
    first. `learned`: run times for jobs that declare none."""
    return prospect(view, job_id, is_over, learned)


def compare(is_over: IsOver, view: ClusterView, project: ProjectView, run_times: RunTimes | None) -> WhatIf:
    """Return how shares, waits and preemptions would change if the project named `project.name` had the values of
    `project`. `run_times`: as for `scheduling.course.Course`."""
    return what_if(view, project, is_over, run_times)


def compare_recorded(
    is_over: IsOver, view: ClusterView, until: int, jobs: Sequence[RecordedJob], project: ProjectView
) -> WhatIf:
    """Return how shares, waits and preemptions of recorded jobs, from `view.now` to `until` (Unix seconds), would
    differ if the project named `project.name` had had the values of `project`. `view` must have no jobs."""
    return recorded_what_if(view, until, jobs, project, is_over)


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "outlook": outlook,
    "foresee": foresee,
    "compare": compare,
    "compare_recorded": compare_recorded,
}
