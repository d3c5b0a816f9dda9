"""Look up single pods at the engine: a pod absent from a watch cache may only be newer than the cache."""

from collections.abc import Collection

from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable, PodReport
from jobs.models import Pod

# In one cycle: each is a call over the network, and the next cycle goes on.
MOST_LOOKS = 50


class PodLookup:
    """The lookups of one cycle, by pod name. After one failure the engine is not asked again."""

    def __init__(self, engine: Engine, overdue: Collection[str]) -> None:
        self._engine, self._overdue, self._left = engine, overdue, MOST_LOOKS
        # By the last look.
        self.found: PodReport | None = None

    def is_certain(self, pod: Pod) -> bool:
        """Return whether the engine answered for this pod; `found` then holds the report, or None if there is
        no pod.
        """
        if self._left == 0 or pod.name not in self._overdue:
            return False
        self._left -= 1
        try:
            self.found = self._engine.find(pod.name, pod.job.project.name)
        except EngineUnreachable:
            # One answer that does not come is enough: other clusters wait for this cycle.
            self._left = 0
            return False
        except EngineRefused:
            return False
        return True
