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
    """`ways`: the changes that would start a job, as `suggest` returns them. `ranges`: the start ranges of queued
    jobs by id, as `start_ranges` returns them; None if these were not requested."""

    ways: list[dict[str, Any]]
    ranges: dict[str, StartRange | None] | None


def outlook(
    is_over: IsOver, view: ClusterView, job_id: str, learned: LearnedRunTimes | None, has_ranges: bool
) -> Outlook:
    """Return the changes that would start a queued job and, with `has_ranges`, when each queued job is expected to
    start. `learned`: run times of jobs that declare none."""
    ways = suggest(view, job_id, is_over)
    return Outlook(ways, start_ranges(view, is_over, learned) if has_ranges else None)


def foresee(is_over: IsOver, view: ClusterView, job_id: str, learned: LearnedRunTimes | None) -> Prospect:
    """Return what the next cycles will do with a queued job: where and when it starts, and which jobs stop first.
    `learned`: run times of jobs that declare none."""
    return prospect(view, job_id, is_over, learned)


def compare(is_over: IsOver, view: ClusterView, project: ProjectView, run_times: RunTimes | None) -> WhatIf:
    """Return how shares, waits and preemptions would change if the project of this name were as `project`.
    `run_times`: as for `scheduling.course.Course`."""
    return what_if(view, project, is_over, run_times)


def compare_recorded(
    is_over: IsOver, view: ClusterView, until: int, jobs: Sequence[RecordedJob], project: ProjectView
) -> WhatIf:
    """Return how shares, waits and preemptions of recorded jobs between `view.now` and `until` (Unix seconds) would
    have differed if the project of this name had been as `project`. `view` has no jobs."""
    return recorded_what_if(view, until, jobs, project, is_over)


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "outlook": outlook,
    "foresee": foresee,
    "compare": compare,
    "compare_recorded": compare_recorded,
}
