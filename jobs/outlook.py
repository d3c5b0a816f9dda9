"""Explain a queued job's wait: which changes would let it start, and when it is expected to.

The simulating process computes the answers with the scheduler's core, which takes seconds: only requests that
`controlplane.simulation.routes` lists may call `outlook`. All others use `known_estimate`, which reads the cache.
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
from controlplane.scheduling.reasons import WAITING_FOR_DATA
from controlplane.scheduling.unknown_starts import why_unknown
from controlplane.scheduling.view import ClusterView
from controlplane.simulation.client import SimulationFailed, simulator
from jobs.estimate_record import record_estimate
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job
from jobs.queries import in_gpus
from jobs.run_times import learned_run_times

logger = logging.getLogger(__name__)

# Time limit for simulating a cluster's queue, because a request waits for it; a start that is not reached within it is
# left open.
BUDGET_SECONDS = 5.0
# How long one computation, which takes seconds, serves all jobs of the cluster, and how long its ranges are shown in
# REST's job objects.
FRESH_SECONDS, KNOWN_SECONDS = 20.0, 300.0
# Limit on the cluster's unfinished jobs; a simulation of more takes too long.
MOST_JOBS = 5000
OWN_SCHEDULER = "The cluster's own scheduler decides when it starts."
TOO_MANY_JOBS = f"The cluster has more than {MOST_JOBS:,} unfinished jobs, too many to simulate."
NOT_SIMULATED = "It could not be simulated; try again."
MAYBE_SOONER = "It may be sooner: how fast its dataset is copied to where it has room is not known yet."


@dataclass(frozen=True, slots=True)
class _Known:
    """The cached results for a cluster. `ranges`: estimated start by job id, computed `at` this monotonic time.
    `ways`: the changes that let a job start, by job id, computed from `view` (with time 0) and valid while the
    cluster's view equals it."""

    at: float
    ranges: Mapping[str, StartRange | None]
    view: ClusterView
    ways: dict[str, list[dict[str, Any]]]


# By cluster id. Job ids are unique, so entries of another database with the same cluster id never match.
_kept: dict[int, _Known] = {}
# One lock per cluster: requests for the same cluster wait for one computation and share it; other clusters do
# not wait.
_asking: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


def outlook(job: Job, sees: Sees) -> dict[str, Any]:
    """Return {"would_start_if", "start_estimate", "start_estimate_note"} of a job in REST form: up to three simulated
    changes that let it start, the range in which it is expected to start, and a sentence on why that is unknown or may
    be sooner, None if there is nothing to say. `sees`: the projects whose jobs may be named, None for all.

    [] and None for a job that is not queued, for clusters with their own scheduler or more than MOST_JOBS
    unfinished jobs, and if the simulation fails. Stores the estimate (see `record_estimate`)."""
    cluster = job.project.cluster
    if job.state != QUEUED:
        return _shown([], None, "", sees)
    if not can_replay(cluster):
        return _shown([], None, OWN_SCHEDULER if is_delegated(cluster.scheduler) else TOO_MANY_JOBS, sees)
    try:
        with _asking[cluster.pk]:
            ways, found, note = _ask(job, cluster)
    except SimulationFailed as error:
        logger.warning("a job's start could not be estimated: %s", error)
        return _shown([], None, NOT_SIMULATED, sees)
    allowed = None if sees is None else sees | {job.project.name}
    record_estimate(job, found)
    return _shown(ways, found, note, allowed)


def _ask(job: Job, cluster: Cluster) -> tuple[list[dict[str, Any]], StartRange | None, str]:
    """Return the changes that let a job start, its estimated range, None if it has none, and the note on it, "" if
    there is none. Simulates only what is not cached."""
    key, known = str(job.pk), _fresh(job, FRESH_SECONDS)
    view = observe(cluster, timezone.now()).view
    # Time alone changes no answer within the seconds for which it is cached.
    timeless = replace(view, now=0)
    is_same = known is not None and known.view == timeless
    if known is not None and is_same and key in known.ways:
        return (
            known.ways[key],
            known.ranges[key],
            start_note(view, key, known.ranges[key], job.reason, job.details),
        )
    learned = learned_run_times(cluster)
    answer = simulator.ask("outlook", view, key, learned, known is None, budget_seconds=BUDGET_SECONDS)
    ways = {**(known.ways if known is not None and is_same else {}), key: answer.ways}
    # The ranges cost far more than one job's changes and cover all jobs, so cached ones are reused.
    if known is None:
        at, ranges = time.monotonic(), answer.ranges or {}
    else:
        at, ranges = known.at, known.ranges
    _kept[cluster.pk] = _Known(at, ranges, timeless, ways)
    return answer.ways, ranges.get(key), start_note(view, key, ranges.get(key), job.reason, job.details)


def start_note(
    view: ClusterView, job_id: str, found: StartRange | None, reason: str, details: Mapping[str, Any]
) -> str:
    """Return why the start of the queued job `job_id` is unknown or may be sooner than estimated (`found`); "" if
    neither is so. `reason`, `details`: why it waits."""
    if found is None:
        return why_unknown(view, job_id)
    if reason != WAITING_FOR_DATA or "fill_at" not in details:
        return ""
    seen = next((one for one in view.jobs if one.id == job_id), None)
    copied_to = {location for location, _ in seen.copies} if seen else set[str]()
    return MAYBE_SOONER if seen and details["fill_at"] not in copied_to else ""


def known_estimate(job: Job) -> dict[str, Any] | None:
    """Return the cached estimate of a queued job, at most KNOWN_SECONDS old, or None. Never simulates."""
    known = _fresh(job, KNOWN_SECONDS) if job.state == QUEUED else None
    return shown_range(None if known is None else known.ranges.get(str(job.pk)))


def shown_range(found: StartRange | None) -> dict[str, Any] | None:
    """Return an estimate in REST form, None for None. `latest` is null if the job did not start within the
    simulated time."""
    if found is None:
        return None
    return {
        "earliest": datetime.fromtimestamp(found.earliest, UTC),
        "latest": None if found.latest is None else datetime.fromtimestamp(found.latest, UTC),
    }


def can_replay(cluster: Cluster) -> bool:
    """Return whether the cluster can be simulated in a request: Trainyard schedules it, and it has at most
    MOST_JOBS unfinished jobs."""
    if is_delegated(cluster.scheduler):
        return False
    unfinished = Job.objects.filter(project__cluster=cluster, state__in=(QUEUED, *ACTIVE_STATES))
    return unfinished.count() <= MOST_JOBS


def _fresh(job: Job, seconds: float) -> _Known | None:
    """Return the cached result of the job's cluster; None if it is older than `seconds` or lacks the job's estimate."""
    known = _kept.get(job.project.cluster_id)
    is_usable = known is not None and str(job.pk) in known.ranges and time.monotonic() - known.at < seconds
    return known if is_usable else None


def _shown(ways: list[dict[str, Any]], found: StartRange | None, note: str, allowed: Sees) -> dict[str, Any]:
    fixes = [in_gpus(seen_by(way, allowed)) for way in ways]
    return {
        "would_start_if": [fix | {"message": fix.pop("text")} for fix in fixes],
        "start_estimate": shown_range(found),
        "start_estimate_note": note or None,
    }
