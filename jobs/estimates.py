"""What would happen to a job, and when a queued one starts: the scheduler decides ahead on the present cluster."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.access import Actor
from controlplane.loop.observe import observe
from controlplane.models import Project
from controlplane.scheduling.estimates import StartRange, prospect, start_range
from controlplane.scheduling.mentions import Sees, mention, seen_by
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement
from jobs.actions import submit_job
from jobs.lifecycle import QUEUED
from jobs.models import Job
from jobs.suggestions import can_replay

# For so long a request follows the future; what it has not seen by then stays open.
BUDGET_SECONDS = 2.0
KEPT_SECONDS, KEPT_MOST = 20.0, 1000
MILLI_GPU_HOUR = 1000 * 3600

_kept: dict[str, tuple[float, StartRange | None]] = {}


def start_estimate(job: Job) -> dict[str, Any] | None:
    """Return the range in which a queued job is expected to start; None where nothing can be said. Ranges are kept
    for KEPT_SECONDS, since clients that wait for a job ask again and again."""
    if job.state != QUEUED or not can_replay(job.project.cluster):
        return None
    at, found = _kept.get(str(job.pk), (0.0, None))
    if not at or time.monotonic() - at > KEPT_SECONDS:
        view = observe(job.project.cluster, timezone.now()).view
        found = start_range(view, str(job.pk), _budget())
        if len(_kept) >= KEPT_MOST:
            _kept.clear()
        _kept[str(job.pk)] = time.monotonic(), found
    return shown_range(found)


def plan_job(project: Project, body: Mapping[str, Any], *, actor: Actor, sees: Sees) -> dict[str, Any]:
    """Return what would happen to a submission, of which nothing is kept: where it starts, when, and which jobs stop
    for it. Raises what `submit_job` raises."""
    with transaction.atomic():
        job = submit_job(project, body, actor=actor)
        name = str(job.pk)
        seen = observe(project.cluster, timezone.now()).view if can_replay(project.cluster) else None
        transaction.set_rollback(True)
    if seen is None:
        return _answer(None, (), [], None, None)
    found = prospect(seen, name, _budget())
    jobs = {one.id: one for one in seen.jobs}
    victims = [mention(jobs[one].project, one, jobs[one].label) for one in found.victims]
    allowed = None if sees is None else sees | {project.name}
    shown: list[dict[str, Any]] = seen_by({"stopping": victims}, allowed)["stopping"]
    return _answer(found.starts_now, found.placements, shown, found.range, _gpu_hours(seen, jobs[name]))


def shown_range(found: StartRange | None) -> dict[str, Any] | None:
    """Return a range as REST shows it. `latest` null: not within what was looked at."""
    if found is None:
        return None
    return {
        "earliest": datetime.fromtimestamp(found.earliest, UTC),
        "latest": None if found.latest is None else datetime.fromtimestamp(found.latest, UTC),
    }


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


def _gpu_hours(view: ClusterView, job: JobView) -> float | None:
    """Return what the job uses until it ends; None if its run time is unknown."""
    if job.expected_runtime_seconds is None or job.gpu_memory_mib is not None:
        return None
    return round(job.milli_gpus * job.pods * job.expected_runtime_seconds / MILLI_GPU_HOUR, 2)


def _budget() -> Callable[[], bool]:
    until = time.monotonic() + BUDGET_SECONDS
    return lambda: time.monotonic() > until
