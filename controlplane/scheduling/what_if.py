"""Simulate what a change of a project's quota, weight, limit or priority does: two simulations, with and without it.

Future submissions are unknown, so that both simulations have only the jobs of the view. Never called in a scheduling
cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.scheduling.course import STEPS, Course, RunTimes, never
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.view import ClusterView, JobView, ProjectView

# The most jobs in each list, so that the answer stays readable; those with the largest difference are kept.
LISTED = 50
# A smaller difference of waits counts as none, because simulations advance in steps of a minute and more.
LEAST_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Effect:
    """A number before and after a change, each None if that simulation has none: the project is not in it, the job does
    not start, or no job starts in both."""

    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class ProjectEffect:
    """The effect on a project: its fair share and the GPUs that it holds after the next cycles, in milli-GPUs, and
    the mean wait in seconds of its queued jobs that start in both simulations."""

    project: str
    fair_share_milli_gpus: Effect
    held_milli_gpus: Effect
    mean_wait_seconds: Effect


@dataclass(frozen=True, slots=True)
class JobEffect:
    """The effect on a queued job: its wait from now in seconds; None if it does not start within the simulation."""

    job: str
    project: str
    name: str
    wait_seconds: Effect


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The effects of a change. `sooner`, `later`: queued jobs whose wait differs. `preempted`: running jobs that the
    next cycles stop only with the change; `spared`: only without it.

    Lists have at most LISTED jobs; `counts` has their full lengths. `seconds`: the simulated time that was compared.
    `recorded_mean_waits`: for a recorded period, seconds by project, over the jobs that start in both replays and
    started in the record; else {}.
    """

    projects: tuple[ProjectEffect, ...]
    sooner: tuple[JobEffect, ...]
    later: tuple[JobEffect, ...]
    preempted: tuple[JobEffect, ...]
    spared: tuple[JobEffect, ...]
    counts: Mapping[str, int]
    seconds: int
    recorded_mean_waits: Mapping[str, int]


def what_if(
    view: ClusterView,
    project: ProjectView,
    is_over: Callable[[], bool] = never,
    run_times: RunTimes | None = None,
) -> WhatIf:
    """Return the effects of putting `project` in the place of the project with the same name. Simulating ends early
    when `is_over()` returns True. `run_times`: see `Course`."""
    changed = replace(
        view, projects=tuple(project if one.name == project.name else one for one in view.projects)
    )
    before, after = Course(view, run_times=run_times), Course(changed, run_times=run_times)
    held, until = _follow(before, after, is_over)
    shares = [
        {share.project: share.fair_share_milli_gpus for share in decide(one).shares}
        for one in (view, changed)
    ]
    waits = _waits(view, before, after, until)
    stopped = _stopped(view, after, before), _stopped(view, before, after)
    return compared(project_effects(view, shares, held, waits), waits, stopped, until - view.now)


def compared(
    projects: tuple[ProjectEffect, ...],
    waits: Sequence[JobEffect],
    stopped: tuple[Sequence[JobEffect], Sequence[JobEffect]],
    seconds: int,
) -> WhatIf:
    """Return the effects, with lists of at most LISTED jobs. `waits`: of all queued jobs. `stopped`: the jobs that
    are stopped only with the change, and only without. `seconds`: the simulated time."""
    lists = {
        "sooner": sorted((one for one in waits if _gain(one) > 0), key=lambda one: (-_gain(one), one.job)),
        "later": sorted((one for one in waits if _gain(one) < 0), key=lambda one: (_gain(one), one.job)),
        "preempted": stopped[0],
        "spared": stopped[1],
    }
    return WhatIf(
        projects=projects,
        sooner=tuple(lists["sooner"][:LISTED]),
        later=tuple(lists["later"][:LISTED]),
        preempted=tuple(stopped[0][:LISTED]),
        spared=tuple(stopped[1][:LISTED]),
        counts={name: len(found) for name, found in lists.items()},
        seconds=seconds,
        recorded_mean_waits={},
    )


def project_effects(
    view: ClusterView,
    shares: Sequence[Mapping[str, int]],
    held: tuple[Mapping[str, int], Mapping[str, int]],
    waits: Sequence[JobEffect],
) -> tuple[ProjectEffect, ...]:
    """Return the effects on each project, sorted by name. `shares`, `held`: milli-GPUs by project, before and after
    the change."""
    return tuple(
        ProjectEffect(
            project.name,
            Effect(*(one.get(project.name) for one in shares)),
            Effect(*(one.get(project.name, 0) for one in held)),
            _mean_wait([one.wait_seconds for one in waits if one.project == project.name]),
        )
        for project in sorted(view.projects, key=lambda one: one.name)
    )


def _follow(
    before: Course, after: Course, is_over: Callable[[], bool]
) -> tuple[tuple[Mapping[str, int], Mapping[str, int]], int]:
    """Run both simulations in equal steps, until `is_over()` returns True or no job is queued. Return what projects
    hold after the first decisions, before and after the change, and the latest time that both have reached: what one
    did later must not be compared."""
    before.settle()
    after.settle()
    held = _held(before.view), _held(after.view)
    until = before.view.now
    for _ in range(STEPS):
        if is_over() or not any(job.state == "queued" for one in (before, after) for job in one.view.jobs):
            break
        for course in (before, after):
            course.advance()
            course.settle(is_over)
        if is_over():
            break
        until = before.view.now
    return held, until


def _held(view: ClusterView) -> Mapping[str, int]:
    held: dict[str, int] = {}
    for job in view.jobs:
        held[job.project] = held.get(job.project, 0) + sum(pod.milli_gpus for pod in job.placements)
    return held


def _waits(view: ClusterView, before: Course, after: Course, until: int) -> list[JobEffect]:
    return [
        job_effect(job, _wait(view, before, job, until), _wait(view, after, job, until))
        for job in view.jobs
        if job.state == "queued"
    ]


def _wait(view: ClusterView, course: Course, job: JobView, until: int) -> int | None:
    start = course.starts.get(job.id)
    return None if start is None or start.by > until else start.by - view.now


def job_effect(job: JobView, before: int | None, after: int | None) -> JobEffect:
    """Return the effect on a job with these waits before and after the change, in seconds."""
    return JobEffect(job.id, job.project, job.label, Effect(before, after))


def _gain(one: JobEffect) -> float:
    """Return by how many seconds a job starts sooner (negative: later); 0 if by less than LEAST_SECONDS. Infinity,
    positive or negative, if it starts in one of the simulations only."""
    before, after = one.wait_seconds.before, one.wait_seconds.after
    if before is None or after is None:
        return 0.0 if before is after else float("inf") if before is None else float("-inf")
    return float(before - after) if abs(before - after) >= LEAST_SECONDS else 0.0


def _stopped(view: ClusterView, course: Course, other: Course) -> list[JobEffect]:
    """Return the running jobs that only `course`, and not `other`, stops at its first moment."""
    only = course.preempted.keys() - other.preempted.keys()
    return [job_effect(job, None, None) for job in view.jobs if job.id in only and job.state == "active"]


def _mean_wait(waits: Sequence[Effect]) -> Effect:
    both = [(one.before, one.after) for one in waits if one.before is not None and one.after is not None]
    if not both:
        return Effect(None, None)
    return Effect(*(sum(column) // len(both) for column in zip(*both, strict=True)))
