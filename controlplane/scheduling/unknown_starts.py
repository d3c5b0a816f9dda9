"""Which queued jobs have a start that can be estimated, and why the others have none. Pure."""

from __future__ import annotations

from dataclasses import replace

from controlplane.scheduling.feasibility import FeasibilityCheck
from controlplane.scheduling.locality import is_out_of_reach
from controlplane.scheduling.view import ClusterView, JobView

ENGINE_AWAY = "The cluster does not answer."
IMPOSSIBLE = "It cannot start on the cluster as it is."
NO_OPEN_NODE = "All nodes that it could use are cordoned or not ready."
RATE_UNKNOWN = "How fast its dataset is copied is not known yet."
COPY_FAILED = "The copy of its dataset failed, and when one succeeds is not known."
COPY_WAITS = "The copy of its dataset waits, and when it goes on is not known."
VOLUME_UNKNOWN = "When its volume is ready is not known."
VOLUME_HELD = "When the job that has its volume ends is not known."


class UnknownStarts:
    """Finds the queued jobs of a view whose start cannot be estimated."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._check = FeasibilityCheck(view)
        opened = tuple(node for node in view.nodes if node.is_schedulable)
        self._has_none_open = bool(view.nodes) and not opened
        self._open = FeasibilityCheck(replace(view, nodes=opened))

    def why(self, job: JobView) -> str:
        """Return why the start of a queued job cannot be estimated, as a sentence; "" if it can."""
        if not self._view.is_engine_reachable:
            return ENGINE_AWAY
        if self._check.refuse(job) is not None:
            return IMPOSSIBLE
        # When an admin uncordons a node is not foreseeable; a simulation would run to its end without a start.
        if self._has_none_open or self._open.refuse(job) is not None:
            return NO_OPEN_NODE
        # Most jobs have no locations, and need no request.
        is_far = job.locations and is_out_of_reach(job, self._check.request(job), self._view.nodes)
        if is_far or (job.is_waiting_for_data and data_due(job, self._view.now) is None):
            return _why_no_rate(dict(job.data_progress))
        if not job.is_waiting_for_volume:
            return ""
        return VOLUME_HELD if "held_by" in dict(job.volume_wait) else VOLUME_UNKNOWN


def why_unknown(view: ClusterView, job_id: str) -> str:
    """Return why the start of the queued job `job_id` cannot be estimated, as a sentence; "" if it can, or if the view
    has no such job in the queue."""
    job = next((job for job in view.jobs if job.id == job_id and job.state == "queued"), None)
    return "" if job is None else UnknownStarts(view).why(job)


def data_due(job: JobView, now: int) -> int | None:
    """Return when the first copy of a queued job's data is expected to be complete, in Unix seconds after `now`. None
    if that is unknown: no copy has a measured rate, they have failed or wait, or there is none."""
    return min((due for due, _ in copies_due(job, now)), default=None)


def copies_due(job: JobView, now: int) -> list[tuple[int, str]]:
    """Return (time, location) of each copy of a queued job's data whose end can be estimated: when it is expected to
    be complete, in Unix seconds after `now`."""
    return [(now + max(1, left), location) for location, left in job.copies] if job.state == "queued" else []


def _why_no_rate(progress: dict[str, str | int]) -> str:
    if progress.get("data_state") == "failed":
        return COPY_FAILED
    return COPY_WAITS if progress.get("message") else RATE_UNKNOWN
