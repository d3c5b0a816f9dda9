"""Ask the engine for single pods: one that is missing from a list may be newer than the list."""

from collections.abc import Collection

from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable, PodReport
from jobs.models import Pod

# Per cycle. Each lookup is a network call; the next cycle continues with the rest.
MOST_LOOKS = 50


class PodLookup:
    """The look-ups of single pods in one cycle. `overdue`: the names of the pods whose absence would be final; only
    these are looked up. After one time-out no more are looked up."""

    def __init__(self, engine: Engine, overdue: Collection[str]) -> None:
        self._engine, self._overdue, self._left = engine, overdue, MOST_LOOKS
        # The result of the last lookup.
        self.found: PodReport | None = None

    def is_certain(self, pod: Pod) -> bool:
        """Ask the engine for the pod, and store its report in `found` (None: there is no such pod). Return False,
        with `found` unchanged, if the pod is not overdue, MOST_LOOKS are used up, or the engine did not answer."""
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
