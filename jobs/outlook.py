"""What a queued job waits for: what would let it start, and when it is expected to.

The scheduler's core answers in the simulating process, so these functions take seconds: only requests of
`controlplane.simulation.routes` call them. `known_estimate` is for all others.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone

from controlplane.engines.kinds import is_delegated
from controlplane.loop.observe import observe
from controlplane.models import Cluster
from controlplane.scheduling.estimates import StartRange
from controlplane.scheduling.mentions import Sees, seen_by
from controlplane.scheduling.view import ClusterView
from controlplane.simulation.client import SimulationFailed, simulator
from jobs.estimate_record import record_estimate
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job
from jobs.queries import in_gpus
from jobs.run_times import learned_run_times

logger = logging.getLogger(__name__)

# For so long the future is followed for all queued jobs of a cluster; what was not seen by then stays open.
BUDGET_SECONDS = 5.0
# The ranges of one computation serve all jobs of the cluster for so long; REST's job objects show them longer.
FRESH_SECONDS, KNOWN_SECONDS = 20.0, 300.0
# Unfinished jobs of the cluster: decisions on more take too long.
MOST_JOBS = 5000


@dataclass(frozen=True, slots=True)
class _Known:
    """What was worked out of a cluster last. `view` has no time: the ways of jobs, by id, hold while it is equal."""

    at: float
    ranges: Mapping[str, StartRange | None]
    view: ClusterView
    ways: dict[str, list[dict[str, Any]]]


# By cluster. Jobs' ids are unique, so answers for another database under the same cluster id are never found.
_kept: dict[int, _Known] = {}
# By cluster: its readers wait for one answer, which may be theirs too, and other clusters' readers do not.
_asking: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


def outlook(job: Job, sees: Sees) -> dict[str, Any]:
    """Return {"would_start_if", "start_estimate"} of a job as REST shows them: up to three changes with which it would
    start, each tried, and the range in which it is expected to start. Empty and None for a job that is not queued, for
    clusters with a scheduler of their own or more than MOST_JOBS unfinished jobs, and if the simulation fails."""
    cluster = job.project.cluster
    if job.state != QUEUED or not can_replay(cluster):
        return _shown([], None, sees)
    try:
        with _asking[cluster.pk]:
            ways, found = _ask(job, cluster)
    except SimulationFailed as error:
        logger.warning("a job's outlook could not be worked out: %s", error)
        return _shown([], None, sees)
    allowed = None if sees is None else sees | {job.project.name}
    record_estimate(job, found)
    return _shown(ways, found, allowed)


def _ask(job: Job, cluster: Cluster) -> tuple[list[dict[str, Any]], StartRange | None]:
    """Return the ways in which a job would start and its range; ask the simulation only for what is not known."""
    key, known = str(job.pk), _fresh(job, FRESH_SECONDS)
    view = observe(cluster, timezone.now()).view
    # Time alone changes no answer that is kept for seconds.
    timeless = replace(view, now=0)
    is_same = known is not None and known.view == timeless
    if known is not None and is_same and key in known.ways:
        return known.ways[key], known.ranges[key]
    learned = learned_run_times(cluster)
    answer = simulator.ask("outlook", view, key, learned, known is None, budget_seconds=BUDGET_SECONDS)
    ways = {**(known.ways if known is not None and is_same else {}), key: answer.ways}
    # Ranges cost far more than the ways of one job: those that are known are kept for all.
    if known is None:
        at, ranges = time.monotonic(), answer.ranges or {}
    else:
        at, ranges = known.at, known.ranges
    _kept[cluster.pk] = _Known(at, ranges, timeless, ways)
    return answer.ways, ranges.get(key)


def known_estimate(job: Job) -> dict[str, Any] | None:
    """Return the range that was worked out last for a queued job, at most KNOWN_SECONDS ago; works nothing out."""
    known = _fresh(job, KNOWN_SECONDS) if job.state == QUEUED else None
    return shown_range(None if known is None else known.ranges.get(str(job.pk)))


def shown_range(found: StartRange | None) -> dict[str, Any] | None:
    """Return a range as REST shows it. `latest` null: not within what was looked at."""
    if found is None:
        return None
    return {
        "earliest": datetime.fromtimestamp(found.earliest, UTC),
        "latest": None if found.latest is None else datetime.fromtimestamp(found.latest, UTC),
    }


def can_replay(cluster: Cluster) -> bool:
    """Return whether a request may decide on this cluster: it is ours to schedule, and not too large."""
    if is_delegated(cluster.scheduler):
        return False
    unfinished = Job.objects.filter(project__cluster=cluster, state__in=(QUEUED, *ACTIVE_STATES))
    return unfinished.count() <= MOST_JOBS


def _fresh(job: Job, seconds: float) -> _Known | None:
    """Return what is known of the job's cluster if it is new enough and has the job's range."""
    known = _kept.get(job.project.cluster_id)
    is_usable = known is not None and str(job.pk) in known.ranges and time.monotonic() - known.at < seconds
    return known if is_usable else None


def _shown(ways: list[dict[str, Any]], found: StartRange | None, allowed: Sees) -> dict[str, Any]:
    fixes = [in_gpus(seen_by(way, allowed)) for way in ways]
    return {
        "would_start_if": [fix | {"message": fix.pop("text")} for fix in fixes],
        "start_estimate": shown_range(found),
    }
