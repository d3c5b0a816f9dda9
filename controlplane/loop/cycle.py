"""One pass of the loop, its steps in the order of the design: reconcile, observe, decide, record."""

import logging
import time
from collections.abc import Callable
from datetime import datetime

from controlplane.engines.base import EngineUnreachable
from controlplane.loop.claims import claim, keep, release
from controlplane.loop.cluster_warnings import tell_of_leftovers
from controlplane.loop.decide import decide
from controlplane.loop.engine_pool import attached_clusters, engine_for
from controlplane.loop.inventory import sync_nodes
from controlplane.loop.job_transitions import move_jobs, remove_expired
from controlplane.loop.observe import observe
from controlplane.loop.reconcile import note_reachable, reconcile
from controlplane.loop.record import record
from controlplane.models import Cluster, Cycle
from jobs import lifecycle
from jobs.models import Job

logger = logging.getLogger(__name__)

LEASE = "loop"
LEASE_SECONDS = 10
RENEW_AFTER_SECONDS = 2.0
HOUSEKEEPING_SECONDS = 5.0  # between looks at what changes seldom: nodes, and finished jobs to remove

CHEAP_SECONDS = 0.05  # so long a plan may take that is made in every cycle
LONGEST_SPARED_SECONDS = 5.0
SPARED = 8  # where nothing waits: of the time that a plan took beyond that, until the next

_housekept_at: dict[int, datetime] = {}
_planned: dict[int, tuple[float, float]] = {}  # when the last plan was ready and how long it took, in seconds


def run_cycle(now: datetime, on_orders: Callable[[], None] = lambda: None) -> bool | None:
    """Work through every attached cluster once, if no other process is at it. Returns None when one is, else
    whether there are commands to execute; `on_orders` is called when some are there already. An event that arrived
    meanwhile is seen by the next cycle.
    """
    token = claim(LEASE, LEASE_SECONDS)
    if token is None:
        return None
    has_commands, is_complete, renewed_at = False, False, time.monotonic()
    try:
        outcomes = []
        for cluster in attached_clusters():
            outcomes.append(_run_guarded(cluster, now, on_orders))
            if time.monotonic() - renewed_at > RENEW_AFTER_SECONDS:
                kept = keep(LEASE, token, LEASE_SECONDS)
                if kept is None:
                    break  # we were slower than our lease; whoever took it goes on
                token, renewed_at = kept, time.monotonic()
        has_commands = any(outcomes)
        is_complete = None not in outcomes
    finally:
        release(LEASE, token, is_complete=is_complete)
    return has_commands


def _run_guarded(cluster: Cluster, now: datetime, on_orders: Callable[[], None]) -> bool | None:
    """Run one cluster; None when that failed. One cluster's trouble must not stop the others, and /readyz tells."""
    try:
        return _run(cluster, now, on_orders)
    except Exception:
        logger.exception("the cycle of cluster %s failed; the next one tries again", cluster.name)
        return None


def _run(cluster: Cluster, now: datetime, on_orders: Callable[[], None]) -> bool:
    nodes_with_orphans = _look(cluster, now)
    if not cluster.is_reachable:
        move_jobs(cluster, now)  # an operator may have said that its nodes are dead
    on_orders()  # for pods of jobs that ended or are to
    if _can_wait(cluster):
        return False
    began = time.perf_counter()
    observation = observe(cluster, now, nodes_with_orphans)
    observe_ms = (time.perf_counter() - began) * 1000
    decided = decide(cluster, observation, now)
    _planned[cluster.pk] = (time.perf_counter(), time.perf_counter() - began)
    began = time.perf_counter()
    recorded = record(cluster, decided.plan, observation, now, on_orders)
    if recorded.has_commands:
        Cycle.objects.create(
            cluster=cluster,
            at=now,
            started=recorded.started,
            preempted=recorded.preempted,
            held=recorded.held,
            observe_ms=observe_ms,
            decide_ms=decided.ms,
            record_ms=(time.perf_counter() - began) * 1000,
        )
    return recorded.has_commands or decided.has_orders


def _can_wait(cluster: Cluster) -> bool:
    """Whether the next plan can: no job waits for it, and on a large cluster it takes long. All that it could change is
    what is told of fair shares."""
    ready_at, took = _planned.get(cluster.pk, (0.0, 0.0))
    is_recent = time.perf_counter() - ready_at < min(SPARED * (took - CHEAP_SECONDS), LONGEST_SPARED_SECONDS)
    return is_recent and not Job.objects.filter(project__cluster=cluster, state=lifecycle.QUEUED).exists()


def _look(cluster: Cluster, now: datetime) -> frozenset[str]:
    """Take over what the engine says; one that cannot be opened is out of reach. Returns what reconcile does."""
    try:
        engine = engine_for(cluster)
    except EngineUnreachable as error:
        note_reachable(cluster, False, str(error))
        return frozenset()
    if _is_due(cluster, now):
        sync_nodes(cluster, engine, now)
        remove_expired(cluster, now)
        tell_of_leftovers(cluster)
    return reconcile(cluster, engine, now)


def _is_due(cluster: Cluster, now: datetime) -> bool:
    last = _housekept_at.get(cluster.pk)
    if last is not None and 0 <= (now - last).total_seconds() < HOUSEKEEPING_SECONDS:
        return False
    _housekept_at[cluster.pk] = now
    return True
