"""When a queued job starts: the scheduler decides ahead on the present cluster."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone

from controlplane.loop.observe import observe
from controlplane.scheduling.estimates import StartRange, start_range
from jobs.lifecycle import QUEUED
from jobs.models import Job
from jobs.suggestions import can_replay

# For so long a request follows the future; what it has not seen by then stays open.
BUDGET_SECONDS = 2.0
KEPT_SECONDS, KEPT_MOST = 20.0, 1000

_kept: dict[str, tuple[float, StartRange | None]] = {}


def start_estimate(job: Job) -> dict[str, Any] | None:
    """Return the range in which a queued job is expected to start; None where nothing can be said. Ranges are kept
    for KEPT_SECONDS, since clients that wait for a job ask again and again."""
    if job.state != QUEUED or not can_replay(job.project.cluster):
        return None
    at, found = _kept.get(str(job.pk), (0.0, None))
    if not at or time.monotonic() - at > KEPT_SECONDS:
        view = observe(job.project.cluster, timezone.now()).view
        found = start_range(view, str(job.pk), budget())
        if len(_kept) >= KEPT_MOST:
            _kept.clear()
        _kept[str(job.pk)] = time.monotonic(), found
    return shown_range(found)


def shown_range(found: StartRange | None) -> dict[str, Any] | None:
    """Return a range as REST shows it. `latest` null: not within what was looked at."""
    if found is None:
        return None
    return {
        "earliest": datetime.fromtimestamp(found.earliest, UTC),
        "latest": None if found.latest is None else datetime.fromtimestamp(found.latest, UTC),
    }


def budget() -> Callable[[], bool]:
    """Return what is true once a request has followed the future for BUDGET_SECONDS."""
    until = time.monotonic() + BUDGET_SECONDS
    return lambda: time.monotonic() > until
