"""One look at what jobs say and devices do, by one process at a time."""

from datetime import datetime

from controlplane.loop.attached import attached_clusters, engine_for
from controlplane.loop.claims import COLLECT_LEASE, WATCH_GAP_SECONDS, claim, is_fresh, release
from controlplane.telemetry.collect import collect
from jobs.lifecycle import RUNNING
from jobs.models import Job

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
        for cluster in attached_clusters():
            collect(engine_for(cluster), cluster, now)
        is_complete = True
    finally:
        release(COLLECT_LEASE, token, is_complete=is_complete)
    return True
