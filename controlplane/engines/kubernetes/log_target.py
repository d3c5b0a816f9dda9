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
    """One wanted log. `pause_seconds` grows while nothing comes; `ended_at`: when we saw that its pod has ended.

    Times are monotonic.
    """

    name: str
    path: str
    cursor: Cursor = field(default_factory=Cursor)
    size: int = -1  # of the file when we last looked
    # None: judged, or read before we were there
    beginning: Beginning | None = field(default_factory=Beginning)
    file_began_ms: int | None = None  # the time of the first line of the node's file that we follow
    checked_size: int = 0  # when the node last told us that
    checked_at: float = 0.0  # when we last asked
    new_files: list[int] = field(default_factory=list)  # when later ones began, of which no line was read yet
    is_drained: bool = False
    was_seen: bool = False
    restarts: int | None = None
    task: asyncio.Task[None] | None = None
    opened_at: float = 0.0
    opened_ms: int = 0  # the same by the cluster's clock
    heard_at: float = 0.0  # when its stream last gave something
    doubted_size: int = 0  # of the file when its silence was last doubted
    is_open: bool = False
    is_followed: bool = False  # its stream went on until the node ended it in good order
    pause_seconds: float = FIRST_PAUSE_SECONDS
    retry_at: float = 0.0
    look_at: float = 0.0  # it has not started: nothing is to be seen of it before
    ended_at: float | None = None
    is_end_known: bool = False  # a stream was opened, or could have been, since the pod's end was seen
    problem: str = ""  # why its last stream broke
    patience_seconds: float = 0.0  # with that problem, once the pod has ended
    is_odd: bool = False  # its pod could not be read when we last looked

    def note_asked(self, source: LogSource) -> None:
        """A stream is about to be asked for."""
        self.opened_at, self.opened_ms, self.is_open = time.monotonic(), source.now_ms, False

    def note_open(self, source: LogSource) -> None:
        self.is_open = True
        if self.beginning is not None and self.beginning.first_ms is None:
            self.beginning.listen(self._cluster_ms(), source.started_ms)

    def note_left(self) -> None:
        """The stream, if it was opened, ends in good order."""
        if self.beginning is not None and self.is_open:
            self.beginning.leave(self._cluster_ms())

    def _cluster_ms(self) -> int:
        return self.opened_ms + int((time.monotonic() - self.opened_at) * 1000)
