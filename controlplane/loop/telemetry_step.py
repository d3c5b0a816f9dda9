"""Collect job output and device usage from every cluster, in one process at a time."""

import logging
from collections.abc import Collection
from datetime import datetime

from django.db.models import QuerySet

from controlplane.engines.base import EngineUnreachable
from controlplane.loop.claims import COLLECT_LEASE, WATCH_GAP_SECONDS, claim, is_fresh, release
from controlplane.loop.cluster_context import context_of
from controlplane.loop.engine_pool import attached_clusters, engine_for
from controlplane.models import Cluster
from controlplane.models.prepared import Rows, Values, prepared, prepared_update
from jobs.kinds.registry import KINDS
from jobs.lifecycle import RUNNING_STATES
from jobs.models import Job
from jobs.telemetry.collect import collect, is_at_rest

logger = logging.getLogger(__name__)

LEASE_SECONDS = 10
LIMITED_KINDS = [name for name, kind in KINDS.items() if kind.has_interactive_limits]


def collect_once(now: datetime, *, is_quiet: bool = False) -> bool:
    """Collect output and device usage from every cluster. Return False, with nothing done, if another process holds
    the lease. `is_quiet`: no job or command is unfinished; then nothing is done while every cluster is at rest.

    Time without measurements never counts as idle: after a gap in collecting, or while a cluster cannot be read, the
    idle times of its jobs start at zero again.
    """
    if is_quiet and all(_is_at_rest(cluster, now) for cluster in attached_clusters()):
        return True
    token = claim(COLLECT_LEASE, LEASE_SECONDS)
    if token is None:
        return False
    is_complete = False
    try:
        if not is_fresh(COLLECT_LEASE, WATCH_GAP_SECONDS):
            _begin_all_anew(now)
        looked_at = [cluster.pk for cluster in attached_clusters() if _collect_from(cluster, now)]
        _begin_idleness_anew(looked_at, now)
        is_complete = True
    finally:
        release(COLLECT_LEASE, token, is_complete=is_complete)
    return True


def _is_at_rest(cluster: Cluster, now: datetime) -> bool:
    try:
        return is_at_rest(engine_for(cluster), cluster, context_of(cluster).usage, now)
    except EngineUnreachable:
        return False


def _collect_from(cluster: Cluster, now: datetime) -> bool:
    """Collect from one cluster. Return False if that failed; the error is logged and does not stop the others."""
    try:
        collect(engine_for(cluster), cluster, context_of(cluster).usage, now)
    except EngineUnreachable:
        # Not logged here, because the loop reports an unreachable engine.
        return False
    except Exception:
        logger.exception("collecting from cluster %s failed; the next second tries again", cluster.name)
        return False
    return True


def _begin_idleness_anew(looked_at: Collection[int], now: datetime) -> None:
    """Set the idle times of running jobs to zero on all clusters except those in `looked_at` (primary keys), which
    were measured."""
    keys = [pk for pk, cluster_id in _running_limited() if cluster_id not in looked_at]
    if keys:
        Job.objects.filter(pk__in=keys).update(active_at=now)


@prepared_update
def _begin_all_anew(now: datetime) -> tuple[QuerySet[Job], Values]:
    return Job.objects.filter(state__in=RUNNING_STATES), {"active_at": now}


@prepared
def _running_limited() -> Rows[Job]:
    running = Job.objects.filter(state__in=RUNNING_STATES, kind__in=LIMITED_KINDS)
    return running.order_by("pk").values_list("pk", "project__cluster")
