"""Engines that a test made, in the pool of this process in place of those that the rows would open."""

from controlplane.engines.base import Engine
from controlplane.loop import engine_pool
from controlplane.loop.engine_pool import EnginePool
from controlplane.models import Cluster


class GivenEngines(EnginePool):
    """A pool in which some clusters have an engine of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, Engine] = {}

    def engine_for(self, cluster: Cluster) -> Engine:
        return self.given.get(cluster.pk) or super().engine_for(cluster)


POOL = GivenEngines()
engine_pool.POOL = POOL


def give_engine(cluster: Cluster, engine: Engine | None) -> None:
    """Use this engine object for the cluster, or stop doing so (None)."""
    if engine is None:
        POOL.given.pop(cluster.pk, None)
    else:
        POOL.given[cluster.pk] = engine
