"""How often the loop's threads run without being notified: every second, and less often while nothing is unfinished."""

import threading

from controlplane.models import Cluster, Command
from jobs.lifecycle import FINAL_STATES
from jobs.models import Job

PERIOD_SECONDS = 1.0
# The period while nothing is unfinished; a lost wake-up costs as much.
QUIET_SECONDS = 5.0


class Period:
    """Period shared by the threads of one loop."""

    def __init__(self) -> None:
        self._busy = threading.Event()
        self._busy.set()

    @property
    def seconds(self) -> float:
        return PERIOD_SECONDS if self._busy.is_set() else QUIET_SECONDS

    def rouse(self) -> None:
        """Return to the short period at once."""
        self._busy.set()

    def settle(self) -> None:
        """Lengthen the period if every job and command has finished and every cluster answers."""
        if is_quiet():
            self._busy.clear()
        else:
            self._busy.set()

    def pause(self, bell: threading.Event, period_seconds: float) -> None:
        """Wait for a notification or the end of the period; while all is quiet, for `rouse` or the end of the
        longer period."""
        if not bell.wait(period_seconds) and not self._busy.is_set():
            self._busy.wait(max(0.0, QUIET_SECONDS - period_seconds))


def is_quiet() -> bool:
    """Return whether nothing is unfinished, so that only a notification can bring work."""
    unfinished = Job.objects.exclude(state__in=FINAL_STATES)
    here = Cluster.objects.filter(detached_at=None)
    away = here.exclude(state=Cluster.REFUSED).exclude(state=Cluster.ATTACHED, is_reachable=True)
    return not (unfinished.exists() or Command.objects.unfinished().exists() or away.exists())
