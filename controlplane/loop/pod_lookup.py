"""Certain looks at single pods: what a view of the cluster does not show may only be younger than the view."""

from collections.abc import Collection

from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable, PodReport
from jobs.models import Pod

MOST_LOOKS = 50  # in one cycle: each is a call over the network, and the next cycle goes on


class PodLookup:
    """Of one cycle, at pods that should be there, by name. Once the engine does not answer it is not asked again."""

    def __init__(self, engine: Engine, overdue: Collection[str]) -> None:
        self._engine, self._overdue, self._left = engine, overdue, MOST_LOOKS
        self.found: PodReport | None = None  # by the last look

    def is_certain(self, pod: Pod) -> bool:
        """Whether the engine could say what there is of this pod: it is in `found` then, None for nothing."""
        if self._left == 0 or pod.name not in self._overdue:
            return False
        self._left -= 1
        try:
            self.found = self._engine.find(pod.name, pod.job.project.name)
        except EngineUnreachable:
            self._left = 0
            return False
        except EngineRefused:
            return False
        return True
