"""How often the loop's threads run without a notification: every second, or less often while no work is unfinished."""

import threading
import time

from controlplane.models import Cluster, Command, Event
from controlplane.models.prepared import Rows, prepared
from controlplane.telemetry.metrics import SAMPLED
from jobs.models import Job

PERIOD_SECONDS = 1.0
# The interval of checks for new events while nothing is unfinished; a lost wake-up is delayed by this at most.
QUIET_SECONDS = 5.0
# The interval of other work while nothing is unfinished. It can be long, because engines notify of pod changes,
# and user actions write events.
QUIET_PASS_SECONDS = 15.0
# The interval of work that only commands and growing tables cause, while nothing is unfinished: a pass of the loop that
# finds a command ends the long period for all.
QUIET_WORK_SECONDS = 60.0
# How long nothing must be unfinished first; the consequences of a job's end are written within a second or two.
LINGER_SECONDS = 5.0


class Period:
    """The current period of the loop's threads: short while there is work, long while there is none. All of them
    share it."""

    def __init__(self) -> None:
        self._busy = threading.Event()
        self._busy.set()
        self._seen_event, self._passed_at = 0, 0.0
        self._quiet_since: float | None = None
        self._rouses = 0

    @property
    def seconds(self) -> float:
        return PERIOD_SECONDS if self._busy.is_set() else QUIET_PASS_SECONDS

    def rouse(self) -> None:
        """Switch to the short period at once."""
        self._rouses += 1
        self._quiet_since = None
        self._busy.set()

    def settle(self, seen_event: int) -> None:
        """Switch to the long period if every job and command has been finished for LINGER_SECONDS and every cluster
        answers; to the short one if work is unfinished or a cluster does not answer. `seen_event`: the newest event
        number before the cycle that found nothing to do."""
        rouses = self._rouses
        if not is_quiet():
            self.rouse()
            return
        now = time.monotonic()
        self._seen_event, self._passed_at = seen_event, now
        since = self._quiet_since or now
        self._quiet_since = since
        if now - since >= LINGER_SECONDS:
            self._busy.clear()
        if rouses != self._rouses:
            # Another thread called `rouse` meanwhile, which must not be lost.
            self.rouse()

    def has_news(self) -> bool:
        """Return whether a cycle must examine the clusters: after a notification, after an event without one (which
        also switches to the short period), or after a long time. Otherwise the cycle only records that the loop
        runs."""
        if self._busy.is_set():
            return True
        # Measurements of idle devices are written at any time and need no cycle.
        if _news_since(self._seen_event):
            self.rouse()
            return True
        return time.monotonic() - self._passed_at >= QUIET_PASS_SECONDS - QUIET_SECONDS / 2

    def pause(
        self, wakeup: threading.Event, period_seconds: float, quiet_seconds: float = QUIET_PASS_SECONDS
    ) -> None:
        """Wait until `wakeup` is set, for at most `period_seconds`. While no work is unfinished, wait until `rouse` is
        called instead, for at most `quiet_seconds`. Whatever sets `wakeup` must call `rouse` too."""
        if not self._busy.is_set() and not wakeup.is_set():
            self._busy.wait(quiet_seconds)
        elif not wakeup.wait(period_seconds) and not self._busy.is_set():
            self._busy.wait(max(0.0, quiet_seconds - period_seconds))


def is_quiet() -> bool:
    """Return whether no job or command is unfinished and every cluster answers, so that new work can only come with a
    notification."""
    return not (_unfinished_job() or _unfinished_command() or _cluster_that_is_away())


@prepared
def _news_since(seq: int) -> Rows[Event]:
    return Event.objects.filter(seq__gt=seq).exclude(kind=SAMPLED).values_list("seq")[:1]


@prepared
def _unfinished_job() -> Rows[Job]:
    return Job.objects.unfinished().values_list("pk")[:1]


@prepared
def _unfinished_command() -> Rows[Command]:
    return Command.objects.unfinished().values_list("pk")[:1]


@prepared
def _cluster_that_is_away() -> Rows[Cluster]:
    here = Cluster.objects.filter(detached_at=None).exclude(state=Cluster.REFUSED)
    return here.exclude(state=Cluster.ATTACHED, is_reachable=True).values_list("pk")[:1]
