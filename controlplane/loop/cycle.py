"""One cycle of the loop, for each cluster: reconcile, observe, decide, record."""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from enum import IntEnum

from controlplane.engines.base import Engine, EngineUnreachable
from controlplane.loop.balance import balance_jobs
from controlplane.loop.claims import claim, extend, note_complete, release
from controlplane.loop.cluster_context import ClusterContext, context_of
from controlplane.loop.cluster_warnings import warn_of_leftovers
from controlplane.loop.decide import decide
from controlplane.loop.engine_pool import attached_clusters, engine_for
from controlplane.loop.growth import grow_jobs
from controlplane.loop.interruptions import hasten_owed, leave_nodes
from controlplane.loop.inventory import sync_nodes
from controlplane.loop.job_transitions import move_jobs, remove_expired
from controlplane.loop.membership import ElasticJobs, keep_memberships
from controlplane.loop.missing_workers import ask_for_workers, note_promises
from controlplane.loop.observe import Observation, observe
from controlplane.loop.reconcile import note_reachable, reconcile
from controlplane.loop.record import record
from controlplane.loop.shrinking import shrink_victims
from controlplane.models import Cluster, Cycle
from controlplane.scheduling.plan import Plan
from jobs import lifecycle
from jobs.models import Job

logger = logging.getLogger(__name__)

LEASE = "loop"
LEASE_SECONDS = 10
# The lease is not extended more often than this, because each extension is a write.
RENEW_AFTER_SECONDS = 2.0
# The lease is extended for this many times the duration of the cluster's last plan, because the next plan may
# take longer.
PLAN_MARGIN = 2
# The period of work on rows that seldom change (nodes, expired jobs), whose queries would lengthen every
# cycle.
HOUSEKEEPING_SECONDS = 5.0

# Plans that take no longer than this are made in every cycle, so that small clusters always show present fair
# shares.
CHEAP_SECONDS = 0.05
LONGEST_SPARED_SECONDS = 5.0
# While no job is queued, planning pauses for this many times the plan's duration above CHEAP_SECONDS: such
# plans only renew the displayed fair shares.
SPARED = 8


class Due(IntEnum):
    """When the next cycle is due. LATER: at the next period. SOON: after a pause, because commands wait for
    execution, not all holds were compared, or a cluster failed. AT_ONCE: without a pause, because planned starts are
    left over."""

    LATER = 0
    SOON = 1
    AT_ONCE = 2


def run_cycle(now: datetime, on_orders: Callable[[], None] = lambda: None) -> Due | None:
    """Process every attached cluster once. Return when the next cycle is due, None if another process holds the
    loop's lease.

    `on_orders` is called as soon as the first commands are committed. Events that arrive during the cycle are handled
    by the next one.
    """
    token = claim(LEASE, LEASE_SECONDS)
    if token is None:
        return None
    lease, due, is_complete = _LoopLease(token), Due.SOON, False
    try:
        outcomes = []
        for cluster in attached_clusters():
            outcomes.append(_run_guarded(cluster, now, on_orders, lease))
            if not lease.keep():
                # The cycle took longer than the lease lasts; the new holder of the lease continues.
                break
        due = max((Due.SOON if one is None else one for one in outcomes), default=Due.LATER)
        is_complete = None not in outcomes
    finally:
        release(LEASE, token, is_complete=is_complete)
    return due


class _LoopLease:
    """The loop's lease during one cycle, extended as needed. `token`: the one that claimed it."""

    def __init__(self, token: str) -> None:
        self._token, self._is_lost = token, False
        self._renewed_at = time.monotonic()

    def keep(self) -> bool:
        """Extend the lease, unless that was done within RENEW_AFTER_SECONDS. Return False once another process has
        claimed it."""
        if self._is_lost or time.monotonic() - self._renewed_at <= RENEW_AFTER_SECONDS:
            return not self._is_lost
        return self._extend(LEASE_SECONDS)

    def keep_for_plan(self, seconds: float) -> bool:
        """Extend the lease if a plan of PLAN_MARGIN * `seconds` could outlast it. Return False once another process
        has claimed it."""
        # Otherwise, two processes whose plans take longer than the lease would take it from each other without end.
        if self._is_lost or PLAN_MARGIN * seconds <= LEASE_SECONDS - RENEW_AFTER_SECONDS:
            return not self._is_lost
        return self._extend(LEASE_SECONDS + round(PLAN_MARGIN * seconds))

    def _extend(self, seconds: int) -> bool:
        self._renewed_at = time.monotonic()
        self._is_lost = not extend(LEASE, self._token, seconds)
        return not self._is_lost


def keep_fresh() -> None:
    """Record that the loop runs, which /readyz checks, without examining any cluster. Does nothing while another
    process has the loop's lease."""
    note_complete(LEASE)


def _run_guarded(
    cluster: Cluster, now: datetime, on_orders: Callable[[], None], lease: _LoopLease
) -> Due | None:
    """Process one cluster and return when its next cycle is due. An exception is logged and gives None, so that it
    does not stop the other clusters and /readyz reports it."""
    try:
        return _run(cluster, now, on_orders, lease)
    except Exception:
        logger.exception("the cycle of cluster %s failed; the next one tries again", cluster.name)
        return None


def _run(cluster: Cluster, now: datetime, on_orders: Callable[[], None], lease: _LoopLease) -> Due:
    context, elastic = context_of(cluster), ElasticJobs(cluster)
    engine, nodes_with_orphans = _look(cluster, context, elastic, now)
    if not cluster.is_reachable:
        # Even without the engine pods can end: an operator may have declared their nodes dead.
        move_jobs(cluster, now)
    # Reconciling may have written commands for the pods of ended or stopping jobs.
    on_orders()
    if _can_wait(cluster, context) or not lease.keep_for_plan(context.plan_seconds):
        return Due.LATER
    began = time.perf_counter()
    observation = observe(cluster, now, nodes_with_orphans, context.jobs)
    if engine is not None:
        observation = ask_for_workers(observation, elastic, engine, now)
    observe_ms = (time.perf_counter() - began) * 1000
    decided = decide(cluster, engine, observation, now)
    context.planned_at, context.plan_seconds = time.perf_counter(), time.perf_counter() - began
    if not lease.keep():
        # Another process has planned on this cluster since: the plan is of a state that is gone.
        logger.warning("the plan of %s took %.1f s and is dropped", cluster.name, context.plan_seconds)
        return Due.LATER
    began = time.perf_counter()
    plan = shrink_victims(elastic, engine, decided.plan, now) if engine else decided.plan
    hasten_owed(cluster, plan)
    recorded = record(cluster, plan, observation, now, on_orders)
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
    has_grown = engine is not None and _resize(cluster, elastic, engine, observation, decided.plan, now)
    note_promises(elastic, plan)
    if recorded.has_more_starts:
        return Due.AT_ONCE
    is_soon = recorded.has_commands or recorded.has_more_holds or decided.has_orders or has_grown
    return Due.SOON if is_soon else Due.LATER


def _resize(
    cluster: Cluster, elastic: ElasticJobs, engine: Engine, seen: Observation, plan: Plan, now: datetime
) -> bool:
    """Let elastic jobs grow, or shrink for others. Return whether there are new pods to start. An exception, which
    one job's declared speeds or reports could cause, is logged and does not stop the cycle."""
    try:
        if grow_jobs(cluster, elastic, engine, seen, plan, now):
            return True
        balance_jobs(elastic, engine, seen, plan, now)
    except Exception:
        logger.exception("the elastic jobs of cluster %s could not be resized", cluster.name)
    return False


def _can_wait(cluster: Cluster, context: ClusterContext) -> bool:
    """Return whether planning can wait, because no job is queued and a plan of this large cluster takes long. Only
    the displayed fair shares become outdated."""
    spared = min(SPARED * (context.plan_seconds - CHEAP_SECONDS), LONGEST_SPARED_SECONDS)
    is_recent = time.perf_counter() - context.planned_at < spared
    return is_recent and not Job.objects.filter(project__cluster=cluster, state=lifecycle.QUEUED).exists()


def _look(
    cluster: Cluster, context: ClusterContext, elastic: ElasticJobs, now: datetime
) -> tuple[Engine | None, frozenset[str]]:
    """Update the cluster's rows from its engine's report: from time to time its nodes, then pods, jobs and the
    memberships of elastic jobs. Return the engine (None if it is unreachable), and the nodes that run pods without a
    row."""
    try:
        engine = engine_for(cluster)
    except EngineUnreachable as error:
        note_reachable(cluster, False, str(error))
        return None, frozenset()
    if _is_due(context, now):
        sync_nodes(cluster, engine, now)
        remove_expired(cluster, now)
        warn_of_leftovers(cluster)
    nodes = reconcile(cluster, engine, now)
    if cluster.is_reachable:
        keep_memberships(cluster, elastic, engine, now)
        leave_nodes(cluster, elastic, engine, now)
    return (engine if cluster.is_reachable else None), nodes


def _is_due(context: ClusterContext, now: datetime) -> bool:
    last = context.housekept_at
    # A negative interval means that the clock was set back; housekeeping must not pause until it catches up.
    if last is not None and 0 <= (now - last).total_seconds() < HOUSEKEEPING_SECONDS:
        return False
    context.housekept_at = now
    return True
