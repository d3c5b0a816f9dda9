"""What would let a queued job start: the scheduler decides again on the present cluster with one thing changed."""

from typing import Any

from django.utils import timezone

from controlplane.engines.kinds import is_delegated
from controlplane.loop.observe import observe
from controlplane.models import Cluster
from controlplane.scheduling.mentions import Sees, seen_by
from controlplane.scheduling.suggestions import suggest
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job
from jobs.queries import in_gpus

# Unfinished jobs of the cluster: a decision on more takes longer than a page may.
MOST_JOBS = 5000


def ways_to_start(job: Job, sees: Sees) -> list[dict[str, Any]]:
    """Return up to three changes with which a queued job would start, each tried. Empty for a job of a cluster that has
    more than MOST_JOBS unfinished ones, and for clusters with a scheduler of their own."""
    cluster = job.project.cluster
    if job.state != QUEUED or not can_replay(cluster):
        return []
    allowed = None if sees is None else sees | {job.project.name}
    fixes = suggest(observe(cluster, timezone.now()).view, str(job.pk))
    return [_shown(fix, allowed) for fix in fixes]


def can_replay(cluster: Cluster) -> bool:
    """Return whether a request may decide on this cluster: it is ours to schedule, and not too large."""
    if is_delegated(cluster.scheduler):
        return False
    unfinished = Job.objects.filter(project__cluster=cluster, state__in=(QUEUED, *ACTIVE_STATES))
    return unfinished.count() <= MOST_JOBS


def _shown(fix: dict[str, Any], allowed: Sees) -> dict[str, Any]:
    shown = in_gpus(seen_by(fix, allowed))
    return shown | {"message": shown.pop("text")}
