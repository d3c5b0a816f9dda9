"""One look at what jobs say and devices do, by one process at a time."""

import logging
from datetime import datetime

from controlplane.engines.base import EngineUnreachable
from controlplane.loop.attached import attached_clusters, engine_for
from controlplane.loop.claims import COLLECT_LEASE, WATCH_GAP_SECONDS, claim, is_fresh, release
from controlplane.models import Cluster
from controlplane.telemetry.collect import collect
from jobs.lifecycle import RUNNING
from jobs.models import Job

logger = logging.getLogger(__name__)

LEASE_SECONDS = 10


def collect_once(now: datetime) -> bool:
    """Collect from every cluster, unless another process is at it. After a gap nobody is called idle for it."""
    token = claim(COLLECT_LEASE, LEASE_SECONDS)
    if token is None:
        return False
    is_complete = False
    try:
        if not is_fresh(COLLECT_LEASE, WATCH_GAP_SECONDS):
            Job.objects.filter(state=RUNNING).update(active_at=now)
        outcomes = [_collect_from(cluster, now) for cluster in attached_clusters()]
        is_complete = all(outcomes)
    finally:
        release(COLLECT_LEASE, token, is_complete=is_complete)
    return True


def _collect_from(cluster: Cluster, now: datetime) -> bool:
    """Collect from one cluster; False when that failed, which must not stop the others."""
    try:
        collect(engine_for(cluster), cluster, now)
    except EngineUnreachable:
        return False  # the loop tells that
    except Exception:
        logger.exception("collecting from cluster %s failed; the next second tries again", cluster.name)
        return False
    return True
