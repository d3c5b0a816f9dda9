"""What a change of a project's share of the GPUs would do; nothing is written."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from controlplane.loop.observe import observe, project_view
from controlplane.models import Project
from controlplane.scheduling.mentions import Sees
from controlplane.scheduling.what_if import Effect, JobEffect
from controlplane.simulation.client import simulator
from jobs.outlook import BUDGET_SECONDS, can_replay
from jobs.run_times import learned_run_times

# Columns of a project that decide on its share.
COLUMNS = ("gpu_quota_milli", "over_quota_weight_milli", "gpu_limit_milli", "priority")


class CannotSimulate(Exception):
    """The cluster has a scheduler of its own, or too many unfinished jobs."""


def share_what_if(project: Project, changes: Mapping[str, Any], *, sees: Sees) -> dict[str, Any]:
    """Return what the cluster would look like with other values of COLUMNS. Jobs of projects outside `sees` are counted
    and not named. Raises CannotSimulate, SimulationFailed."""
    if not can_replay(project.cluster):
        raise CannotSimulate("Trainyard does not schedule this cluster, or it has too many jobs to simulate.")
    changed = Project.objects.select_related("department").get(pk=project.pk)
    for column in changes.keys() & set(COLUMNS):
        setattr(changed, column, changes[column])
    view = observe(project.cluster, timezone.now()).view
    run_times = learned_run_times(project.cluster).expected
    usage = next(one.usage for one in view.projects if one.name == project.name)
    found = simulator.ask(
        "compare", view, project_view(changed, usage), run_times, budget_seconds=BUDGET_SECONDS
    )
    lists = {name: getattr(found, name) for name in ("sooner", "later", "preempted", "spared")}
    return {
        "followed_seconds": found.seconds,
        "projects": [
            {
                "project": one.project,
                "fair_share_gpus": _gpus(one.fair_share_milli_gpus),
                "held_gpus": _gpus(one.held_milli_gpus),
                "mean_wait_seconds": asdict(one.mean_wait_seconds),
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
