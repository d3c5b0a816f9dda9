"""One pod's log to be copied: its source and the progress of the copy."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from controlplane.engines.kubernetes.log_cursor import Beginning, Cursor

FIRST_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where a pod's log is and whether it is at its end. `path`: of the API, up to `/log`.

    `restarts` of its container, which began at `started_ms` (known to the second); `now_ms`: the cluster's clock when
    this was seen; `end_word`: what the log's end says, such as "exit 0"; "" while the pod lives.
    """

    path: str
    container: str
    has_started: bool
    end_word: str = ""
    restarts: int = 0
    started_ms: int | None = None
    now_ms: int = 0


@dataclass(slots=True, eq=False)
class WantedLog:
    """One wanted log and how far its copy is. Times `_at` are monotonic, times `_ms` the cluster's."""

    name: str
    path: str
    cursor: Cursor = field(default_factory=Cursor)
    # Of our file, as this process left it; -1: not read yet.
    size: int = -1
    # None once judged, and for a log that was read before this process began.
    beginning: Beginning | None = field(default_factory=Beginning)
    # The first line of the node's file; after a restart of this process the last line of ours.
    file_began_ms: int | None = None
    checked_size: int = 0
    checked_at: float = 0.0
    is_drained: bool = False
    was_seen: bool = False
    restarts: int | None = None
    task: asyncio.Task[None] | None = None
    opened_at: float = 0.0
    opened_ms: int = 0
    is_open: bool = False
    # Its stream went on until the node ended it in good order.
    is_followed: bool = False
    # Doubles with each try that gives nothing.
    pause_seconds: float = FIRST_PAUSE_SECONDS
    retry_at: float = 0.0
    # A pod that has not started is not looked at before, unless it changes.
    look_at: float = 0.0
    # When this process saw that the pod had ended.
    ended_at: float | None = None
    is_end_known: bool = False
    # Why its last stream broke, and how long an ended pod's log is tried for with that problem.
    problem: str = ""
    patience_seconds: float = 0.0
    # The pod could not be read at the last look.
    is_odd: bool = False

    def note_asked(self, source: LogSource) -> None:
        """Note that a stream is being requested."""
        self.opened_at, self.opened_ms, self.is_open = time.monotonic(), source.now_ms, False

    def note_open(self, source: LogSource) -> None:
        self.is_open = True
        if self.beginning is not None and self.beginning.first_ms is None:
            self.beginning.listen(self._cluster_ms(), source.started_ms)

    def note_left(self) -> None:
        """Note that the stream, if it was opened, ended without an error."""
        if self.beginning is not None and self.is_open:
            self.beginning.leave(self._cluster_ms())

    def _cluster_ms(self) -> int:
        return self.opened_ms + int((time.monotonic() - self.opened_at) * 1000)
