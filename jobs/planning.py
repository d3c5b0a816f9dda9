"""Preview a submission without storing it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.access import Actor
from controlplane.loop.observe import observe, observe_job
from controlplane.models import Project
from controlplane.scheduling.estimates import StartRange
from controlplane.scheduling.mentions import Sees, mention, seen_by
from controlplane.scheduling.view import JobView, PodPlacement
from controlplane.simulation.client import simulator
from jobs.actions import submit_job
from jobs.outlook import BUDGET_SECONDS, can_replay, shown_range
from jobs.run_times import learned_run_times

MILLI_GPU_HOUR = 1000 * 3600


def plan_job(project: Project, body: Mapping[str, Any], *, actor: Actor, sees: Sees) -> dict[str, Any]:
    """Return what would happen to a submission, in REST form (component JobPlan): where and when it starts, and which
    jobs stop for it. `starts_now` is None, without a forecast, for clusters that cannot be simulated (`can_replay`).
    Jobs of projects outside `sees` (None: all) are not named. Stores nothing. Raises the errors of `submit_job`, and
    SimulationFailed."""
    with transaction.atomic():
        submitted = submit_job(project, body, actor=actor)
        job = observe_job(submitted)
        transaction.set_rollback(True)
    if not can_replay(project.cluster):
        return _answer(None, (), [], None, None)
    # Simulate only after the rollback: a submission holds the lock of the event counter, for which every
    # other writer waits.
    seen = observe(project.cluster, timezone.now()).view
    learned = learned_run_times(project.cluster, submitted)
    expected = learned.expected.get(job.id, job.expected_runtime_seconds)
    job = replace(job, expected_runtime_seconds=expected)
    seen = replace(seen, jobs=(*seen.jobs, job))
    found = simulator.ask("foresee", seen, job.id, learned, budget_seconds=BUDGET_SECONDS)
    jobs = {one.id: one for one in seen.jobs}
    victims = [mention(jobs[one].project, one, jobs[one].label) for one in found.victims]
    allowed = None if sees is None else sees | {project.name}
    shown: list[dict[str, Any]] = seen_by({"stopping": victims}, allowed)["stopping"]
    return _answer(found.starts_now, found.placements, shown, found.range, _gpu_hours(job))


def _answer(
    starts_now: bool | None,
    placements: tuple[PodPlacement, ...],
    preempts: list[dict[str, Any]],
    found: StartRange | None,
    gpu_hours: float | None,
) -> dict[str, Any]:
    return {
        "starts_now": starts_now,
        "placement": [
            {
                "rank": pod.rank,
                "node": pod.node,
                "devices": [{"index": index, "share": milli / 1000} for index, milli in pod.devices],
            }
            for pod in placements
        ],
        "preempts": preempts,
        "start_estimate": shown_range(found),
        "gpu_hours": gpu_hours,
    }


def _gpu_hours(job: JobView) -> float | None:
    """Return the GPU hours that the job uses until it ends; None if its run time is unknown or it requests GPU
    memory."""
    if job.expected_runtime_seconds is None or job.gpu_memory_mib is not None:
        return None
    return round(job.milli_gpus * job.pods * job.expected_runtime_seconds / MILLI_GPU_HOUR, 2)
