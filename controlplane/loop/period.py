"""How often the loop's threads run without a notification: every second, or less often while no work is unfinished."""

import threading
import time
from collections.abc import Callable

from controlplane.commands.outcomes import is_any_unfinished
from controlplane.models import Cluster, Event
from controlplane.models.prepared import Rows, prepared
from controlplane.telemetry.metrics import SAMPLED
from jobs.models import Job

PERIOD_SECONDS = 1.0
# The interval of checks for new events while nothing is unfinished; a lost wake-up is delayed by this at most.
QUIET_SECONDS = 5.0
# The interval of looks at the engines while nothing is unfinished. It can be long, because engines notify of pod
# changes.
QUIET_PASS_SECONDS = 15.0
# The interval of work on rows while nothing is unfinished. It can be longer, because all that changes rows writes an
# event, and an event ends the long period for all. It finds what comes with time only, such as expired jobs.
QUIET_WORK_SECONDS = 60.0
# While nothing is unfinished, all threads wake at the same times, because the first one finds the caches of the
# processor cold: each this much after the one before, so that they do not wait for each other.
STAGGER_SECONDS = 0.25
# How long nothing must be unfinished first; the consequences of a job's end are written within a second or two.
LINGER_SECONDS = 5.0
# Stands for the number of changes while work is unfinished.
BUSY = -1


class Period:
    """The current period of the loop's threads: short while there is work, long while there is none. All of them
    share it."""

    def __init__(self) -> None:
        self._busy = threading.Event()
        self._busy.set()
        self._seen_event, self._passed_at = 0, 0.0
        # The last look at the engines, and whether a look since the last cycle has found a change.
        self._looked_at, self._is_due = 0.0, False
        self._quiet_since: float | None = None
        self._rouses = 0

    @property
    def seconds(self) -> float:
        """Return the seconds until the next pass."""
        return PERIOD_SECONDS if self._busy.is_set() else _until_next(QUIET_PASS_SECONDS)

    @property
    def changes(self) -> int:
        """Return how often `rouse` was called, while no work is unfinished; else BUSY."""
        # Read first: a call in between makes the number outdated, not the other way round.
        rouses = self._rouses
        return BUSY if self._busy.is_set() else rouses

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
        self._seen_event, self._passed_at, self._looked_at, self._is_due = seen_event, now, now, False
        since = self._quiet_since or now
        self._quiet_since = since
        if now - since >= LINGER_SECONDS:
            self._busy.clear()
        if rouses != self._rouses:
            # Another thread called `rouse` meanwhile, which must not be lost.
            self.rouse()

    def has_news(self, have_engines_changed: Callable[[], bool]) -> bool:
        """Return whether a cycle must examine the clusters: after a notification, after an event without one (which
        also switches to the short period), if `have_engines_changed`, which is asked every QUIET_PASS_SECONDS, or after
        QUIET_WORK_SECONDS. Otherwise the cycle only records that the loop runs."""
        if self._busy.is_set():
            return True
        # Measurements of idle devices are written at any time and need no cycle.
        if _news_since(self._seen_event):
            self.rouse()
            return True
        now = time.monotonic()
        if now - self._passed_at >= QUIET_WORK_SECONDS - QUIET_SECONDS / 2:
            return True
        if now - self._looked_at >= QUIET_PASS_SECONDS - QUIET_SECONDS / 2:
            self._looked_at = now
            # Kept until a cycle has succeeded.
            self._is_due = have_engines_changed() or self._is_due
        return self._is_due

    def pause(
        self,
        wakeup: threading.Event,
        period_seconds: float,
        quiet_seconds: float = QUIET_PASS_SECONDS,
        phase: float = 0.0,
    ) -> None:
        """Wait until `wakeup` is set, for at most `period_seconds`. While no work is unfinished, wait until `rouse` is
        called instead, for at most `quiet_seconds`: until `phase` seconds after a multiple of it, so that the waits of
        all threads end at about the same time. Whatever sets `wakeup` must call `rouse` too."""
        is_quiet = not self._busy.is_set() and not wakeup.is_set()
        if is_quiet or not (wakeup.wait(period_seconds) or self._busy.is_set()):
            self._busy.wait(_until_next(quiet_seconds, phase))


def _until_next(seconds: float, phase: float = 0.0) -> float:
    """Return the time until the monotonic clock is `phase` after a multiple of `seconds`."""
    return seconds - (time.monotonic() - phase) % seconds


def is_quiet() -> bool:
    """Return whether no job or command is unfinished and every cluster answers, so that new work can only come with a
    notification."""
    return not (_unfinished_job() or is_any_unfinished() or _cluster_that_is_away())


@prepared
def _news_since(seq: int) -> Rows[Event]:
    return Event.objects.filter(seq__gt=seq).exclude(kind=SAMPLED).values_list("seq")[:1]


@prepared
def _unfinished_job() -> Rows[Job]:
    return Job.objects.unfinished().values_list("pk")[:1]


@prepared
def _cluster_that_is_away() -> Rows[Cluster]:
    here = Cluster.objects.filter(detached_at=None).exclude(state=Cluster.REFUSED)
    return here.exclude(state=Cluster.ATTACHED, is_reachable=True).values_list("pk")[:1]
