"""Look up single pods at the engine: a pod missing from a watch cache may be newer than the cache."""

from collections.abc import Collection

from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable, PodReport
from jobs.models import Pod

# Per cycle. Each lookup is a network call; the next cycle continues with the rest.
MOST_LOOKS = 50


class PodLookup:
    """The lookups of one cycle, by pod name. Once the engine is unreachable, no further lookup is tried."""

    def __init__(self, engine: Engine, overdue: Collection[str]) -> None:
        self._engine, self._overdue, self._left = engine, overdue, MOST_LOOKS
        # The result of the last lookup.
        self.found: PodReport | None = None

    def is_certain(self, pod: Pod) -> bool:
        """Look a pod up. Return whether the engine answered; `found` is then its report, or None if there is no
        such pod."""
        if self._left == 0 or pod.name not in self._overdue:
            return False
        self._left -= 1
        try:
            self.found = self._engine.find(pod.name, pod.job.project.name)
        except EngineUnreachable:
            # Stop after one time-out, because other clusters wait for this cycle.
            self._left = 0
            return False
        except EngineRefused:
            return False
        return True
