"""Lets a test give a cluster an engine object of its own."""

from controlplane.engines.base import Engine
from controlplane.loop import engine_pool
from controlplane.loop.engine_pool import EnginePool
from controlplane.models import Cluster


class GivenEngines(EnginePool):
    """The engine pool of the test process. It returns the engine that a test gave a cluster, else opens one as in
    the product."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, Engine] = {}

    def engine_for(self, cluster: Cluster) -> Engine:
        return self.given.get(cluster.pk) or super().engine_for(cluster)


POOL = GivenEngines()
engine_pool.POOL = POOL


def give_engine(cluster: Cluster, engine: Engine | None) -> None:
    """Use `engine` for the cluster; None: open one from its row again."""
    if engine is None:
        POOL.given.pop(cluster.pk, None)
    else:
        POOL.given[cluster.pk] = engine
