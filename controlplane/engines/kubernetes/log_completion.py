"""Track whether the log of an ended pod has been read to its end; until then the pod must not be deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from controlplane.engines.kubernetes.log_copier import LogCopier
from controlplane.logstore.reader import tail

# How long a call waits; after that the command is refused and retried.
WAIT_SECONDS = 0.5
# How long to wait for a process that has begun to copy a log and does not finish.
LOG_SECONDS = 600.0
# After a start, how long to wait for the loop to list the logs to copy.
BEGINNING_SECONDS = 15.0


class LogEnds:
    """Which logs have been read to their end. Thread-safe. `clock` returns monotonic seconds."""

    def __init__(self, copier: LogCopier, clock: Callable[[], float] = time.monotonic) -> None:
        self._copier, self._clock, self._lock = copier, clock, threading.Lock()
        self._began = clock()
        self._waiting: dict[str, float] = {}

    def is_read(self, pod_name: str, path: Path, ended_seconds_ago: float | None) -> bool:
        """Return whether the log at `path` is complete, written by this process or another. A log that stays
        incomplete for LOG_SECONDS counts as read. `ended_seconds_ago`: None for a pod whose container never
        began."""
        if self._copier.is_wanted(pod_name):
            return self._copier.wait_drained(pod_name, WAIT_SECONDS)
        if not path.exists():
            age = self._clock() - self._began
            is_of_an_absence = ended_seconds_ago is not None and ended_seconds_ago > age
            return not is_of_an_absence or age > BEGINNING_SECONDS
        if tail(path, 1).complete:
            return True
        with self._lock:
            since = self._waiting.setdefault(pod_name, self._clock())
        return self._clock() - since > LOG_SECONDS

    def forget(self, pod_name: str) -> None:
        with self._lock:
            self._waiting.pop(pod_name, None)
