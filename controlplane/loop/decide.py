"""DECIDE: what a cluster's scheduler says, timed: our own, or the cluster's. Nothing else."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from controlplane.loop.delegated import OURS, Offered, decide_by_cluster
from controlplane.loop.observe import Observation
from controlplane.models import Cluster
from controlplane.scheduling.cycle import decide as decide_purely
from controlplane.scheduling.plan import Plan


@dataclass(frozen=True, slots=True)
class Decided:
    """A plan and the milliseconds that it took. `has_orders`: there is something to execute besides it."""

    plan: Plan
    ms: float
    has_orders: bool = False


def decide(cluster: Cluster, seen: Observation, now: datetime) -> Decided:
    """Have the cluster's scheduler decide on what was observed."""
    began = time.perf_counter()
    offered = SCHEDULERS[cluster.scheduler](cluster, seen, now)
    return Decided(offered.plan, (time.perf_counter() - began) * 1000, offered.has_orders)


def _decide_ourselves(cluster: Cluster, seen: Observation, now: datetime) -> Offered:
    return Offered(decide_purely(seen.view), has_orders=False)


SCHEDULERS: Mapping[str, Callable[[Cluster, Observation, datetime], Offered]] = {
    OURS: _decide_ourselves,
    "kai": decide_by_cluster,
}
