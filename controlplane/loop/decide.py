"""DECIDE: call our scheduler, or the adapter for the cluster's own scheduler, and measure the time it takes."""

import time
from dataclasses import dataclass
from datetime import datetime

from controlplane.engines.base import Engine
from controlplane.engines.kinds import is_delegated
from controlplane.loop.cluster_context import context_of
from controlplane.loop.delegated import Offered, decide_by_cluster
from controlplane.loop.observe import Observation
from controlplane.models import Cluster
from controlplane.scheduling.plan import Plan


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan, and how many milliseconds it took. `has_orders`: deciding has already written commands, by which queued
    jobs are offered to the cluster's own scheduler."""

    plan: Plan
    ms: float
    has_orders: bool = False


def decide(cluster: Cluster, engine: Engine | None, seen: Observation, now: datetime) -> Decided:
    """Return the plan for an observation: by our scheduler, or by the cluster's own one if the cluster is set up for
    that. `engine`: None if it is unreachable."""
    began = time.perf_counter()
    if is_delegated(cluster.scheduler):
        offered = decide_by_cluster(cluster, engine, seen, now)
    else:
        plan = context_of(cluster).scheduler.decide(seen.view)
        offered = Offered(plan, has_orders=False)
    return Decided(offered.plan, (time.perf_counter() - began) * 1000, offered.has_orders)
