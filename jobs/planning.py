"""Preview a submission without storing it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.access import Actor
from controlplane.loop.observe import observe, observe_job
from controlplane.models import Project
from controlplane.scheduling.estimates import Prospect
from controlplane.scheduling.mentions import Sees, mention, seen_by
from controlplane.scheduling.view import ClusterView, JobView
from controlplane.simulation.client import simulator
from jobs.actions import submit_job
from jobs.outlook import BUDGET_SECONDS, can_replay, shown_range, start_note
from jobs.queries import reason_of
from jobs.run_times import learned_run_times

MILLI_GPU_HOUR = 1000 * 3600


def plan_job(project: Project, body: Mapping[str, Any], *, actor: Actor, sees: Sees) -> dict[str, Any]:
    """Return what would happen to a submission, in REST form (component JobPlan): where and when it starts, which
    jobs stop for it, and why it waits. `starts_now` is None, without a forecast, for clusters that cannot be simulated
    (`can_replay`). Jobs of projects outside `sees` (None: all) are not named. Stores nothing. Raises the errors of
    `submit_job`, and SimulationFailed."""
    with transaction.atomic():
        submitted = submit_job(project, body, actor=actor)
        job = observe_job(submitted)
        transaction.set_rollback(True)
    if not can_replay(project.cluster):
        return _answer(Prospect((), False, (), None), [], None) | {"starts_now": None}
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
    return _answer(found, shown, _gpu_hours(job)) | _wait(project, seen, found, sees)


def _answer(found: Prospect, preempts: list[dict[str, Any]], gpu_hours: float | None) -> dict[str, Any]:
    return {
        "starts_now": found.starts_now,
        "placement": [
            {
                "rank": pod.rank,
                "node": pod.node,
                "devices": [{"index": index, "share": milli / 1000} for index, milli in pod.devices],
            }
            for pod in found.placements
        ],
        "preempts": preempts,
        "start_estimate": shown_range(found.range),
        "start_estimate_note": None,
        "reason": None,
        "gpu_hours": gpu_hours,
    }


def _wait(project: Project, view: ClusterView, found: Prospect, sees: Sees) -> dict[str, Any]:
    """Return why the submission waits and the note on its start estimate, as its queued job will show them; {} if it
    starts now."""
    hold = found.hold
    if hold is None:
        return {}
    note = start_note(view, hold.job, found.range, hold.reason, hold.details)
    row = {"project_name": project.name, "reason": hold.reason, "message": "", "details": hold.details}
    return {"reason": reason_of(row, sees), "start_estimate_note": note or None}


def _gpu_hours(job: JobView) -> float | None:
    """Return the GPU hours that the job uses until it ends; None if its run time is unknown or it requests GPU
    memory."""
    if job.expected_runtime_seconds is None or job.gpu_memory_mib is not None:
        return None
    return round(job.milli_gpus * job.pods * job.expected_runtime_seconds / MILLI_GPU_HOUR, 2)
