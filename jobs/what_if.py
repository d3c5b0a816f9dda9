"""Simulate a change of a project's share of the GPUs; writes nothing."""

import atexit
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from controlplane.loop.observe import observe, project_view
from controlplane.models import Project
from controlplane.models.projects import SHARE_COLUMNS
from controlplane.scheduling.mentions import Sees
from controlplane.scheduling.view import ClusterView, ProjectView
from controlplane.scheduling.what_if import Effect, JobEffect, WhatIf
from controlplane.simulation.client import Simulator, simulator
from jobs.outlook import BUDGET_SECONDS, can_replay
from jobs.recorded_week import RecordedWeek, recorded_week
from jobs.run_times import learned_run_times

# Time limit for replaying a week, because a request waits for it; jobs not reached within it are left out.
WEEK_BUDGET_SECONDS = 20.0
# A separate process, because requests for outlooks must not wait for a week's replay.
week_simulator = Simulator()
atexit.register(week_simulator.close)
# One replay at a time: it occupies one of the few simulation threads for half a minute, so a second is
# refused.
_replaying = threading.Lock()


class CannotSimulate(Exception):
    """The cluster cannot be simulated: it has its own scheduler or too many jobs, or another replay of a week is
    running."""


def share_what_if(project: Project, changes: Mapping[str, Any], *, sees: Sees) -> dict[str, Any]:
    """Return, in REST form (component WhatIf), which jobs of the project's cluster would start, stop and wait if the
    project had the values of `changes` in SHARE_COLUMNS. Jobs of projects outside `sees` (None: all) are counted but
    not named. Raises CannotSimulate, and SimulationFailed if the simulation fails."""
    view, changed = _views(project, changes)
    run_times = learned_run_times(project.cluster).expected
    found = simulator.ask("compare", view, changed, run_times, budget_seconds=BUDGET_SECONDS)
    return _shown(found, None, sees)


def week_what_if(project: Project, changes: Mapping[str, Any], *, sees: Sees) -> dict[str, Any]:
    """Return, in REST form (component WhatIf), how long the submissions of the last week, or fewer days of a busy
    cluster, would have waited if the project had the values of `changes` in SHARE_COLUMNS. Both replays use the nodes
    and projects of today. Jobs of projects outside `sees` (None: all) are counted but not named. Raises CannotSimulate,
    also while another such replay runs in this process, and SimulationFailed if the simulation fails."""
    if not _replaying.acquire(blocking=False):
        raise CannotSimulate("Another replay is running; try again in a minute.")
    try:
        return _replayed(project, changes, sees)
    finally:
        _replaying.release()


def _replayed(project: Project, changes: Mapping[str, Any], sees: Sees) -> dict[str, Any]:
    view, changed = _views(project, changes)
    record = recorded_week(project.cluster, view)
    if record is None:
        raise CannotSimulate("The last day has too many jobs to simulate.")
    found = week_simulator.ask(
        "compare_recorded", record.view, view.now, record.jobs, changed, budget_seconds=WEEK_BUDGET_SECONDS
    )
    return _shown(found, record, sees)


def _views(project: Project, changes: Mapping[str, Any]) -> tuple[ClusterView, ProjectView]:
    """Return the present view of the project's cluster, and the project's view with the values of `changes`.
    Raises CannotSimulate."""
    if not can_replay(project.cluster):
        raise CannotSimulate("Trainyard does not schedule this cluster, or it has too many jobs to simulate.")
    changed = Project.objects.select_related("department").get(pk=project.pk)
    for column in changes.keys() & set(SHARE_COLUMNS):
        setattr(changed, column, changes[column])
    view = observe(project.cluster, timezone.now()).view
    usage = next(one.usage for one in view.projects if one.name == project.name)
    return view, project_view(changed, usage)


def _shown(found: WhatIf, record: RecordedWeek | None, sees: Sees) -> dict[str, Any]:
    lists = {name: getattr(found, name) for name in ("sooner", "later", "preempted", "spared")}
    return {
        "record": None if record is None else record.summary(),
        "followed_seconds": found.seconds,
        "projects": [
            {
                "project": one.project,
                "fair_share_gpus": _gpus(one.fair_share_milli_gpus),
                "held_gpus": _gpus(one.held_milli_gpus),
                "mean_wait_seconds": asdict(one.mean_wait_seconds),
                "recorded_mean_wait_seconds": found.recorded_mean_waits.get(one.project),
            }
            for one in found.projects
        ],
        "counts": dict(found.counts),
        **{name: [_job(one, sees) for one in jobs] for name, jobs in lists.items()},
    }


def _gpus(effect: Effect) -> dict[str, float | None]:
    return {name: None if milli is None else milli / 1000 for name, milli in asdict(effect).items()}


def _job(one: JobEffect, sees: Sees) -> dict[str, Any]:
    is_visible = sees is None or one.project in sees
    return {
        "project": one.project,
        "job": one.job if is_visible else None,
        "name": one.name if is_visible else None,
        "wait_seconds": asdict(one.wait_seconds),
    }
