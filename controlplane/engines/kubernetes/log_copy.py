"""Copy one stream of a pod's log into the log store: resume at the last stored time, drop what was seen, show gaps
(decision 49)."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes.log_cursor import Cursor, Lines, Piece
from controlplane.engines.kubernetes.log_gaps import FILE_BYTES, GapRule
from controlplane.engines.kubernetes.log_streams import LogNotThere, LogStreams, is_removed
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.errors import ApiError
from controlplane.logstore.reader import tail
from controlplane.logstore.writer import LogWriter

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.1
# How many of the last lines are added to a log that exceeded its size, when the pod has ended.
LAST_LINES = 5000
FILE_CHECK_SECONDS = 2.0
# After a quick rotation a kubelet may send nothing more until the container ends, so a silent stream is opened
# again.
SILENT_SECONDS = 10.0
_TAIL_LINES = 2000


class LogStoreBusy(Exception):
    """Another process has written to the file, so its end must be read again."""


# Errors after which the copy is retried; the last two occur when no token can be obtained.
PASSING = (
    aiohttp.ClientError, ApiError, OSError, TimeoutError, LogStoreBusy, LogNotThere,
    EngineUnreachable, EngineRefused,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where a pod's log is and whether it is complete. `path`: the pod's path in the API, up to `/log`.

    `restarts`: how often its container was restarted; `started_ms`: when the container began, Unix ms in whole
    seconds; `now_ms`: the cluster's time of this observation; `end_word`: the text of the end record, such as
    "exit 0", or "" while the pod runs.
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
    """One wanted log and the progress of its copy. Times `_at` are monotonic, times `_ms` are the cluster's."""

    name: str
    path: str
    cursor: Cursor = field(default_factory=Cursor)
    gaps: GapRule = field(default_factory=GapRule)
    # The size of our file after this process's last write; -1: the file must be read.
    size: int = -1
    checked_size: int = 0
    checked_at: float = 0.0
    is_drained: bool = False
    was_seen: bool = False
    restarts: int | None = None
    # True if its stream continued until the node ended it normally.
    is_followed: bool = False
    # When its stream must end, and the timer of an open stream.
    leave_at: float | None = None
    limit: asyncio.Timeout | None = None
    # Set when its pod has changed.
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    # When this process noticed that the pod had ended.
    ended_at: float | None = None
    # Doubled by each try without new output.
    pause_seconds: float = FIRST_PAUSE_SECONDS
    # Why the last try failed.
    problem: str = ""

    def has_begun(self) -> bool:
        """Return whether the pod or the copy of its log ever existed."""
        return self.was_seen or os.path.exists(self.path)

    def is_news(self, problem: str) -> bool:
        """Return whether the last try failed for another reason, and store this one; each problem is logged once."""
        known, self.problem = self.problem, problem
        return problem != known

    async def has_changed(self, seconds: float) -> bool:
        """Wait for a change of the pod; return False after the time-out."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self.changed.wait()
        except TimeoutError:
            return False
        self.changed.clear()
        return True

    def leave(self, seconds: float) -> None:
        """End the open stream in `seconds`; without an open one, the next stream of this try."""
        self.leave_at = asyncio.get_running_loop().time() + seconds
        if self.limit is not None:
            self.limit.reschedule(self.leave_at)


@dataclass(frozen=True, slots=True)
class LogCopy:
    """Copies one stream of a log. A log beyond `most_bytes` is not followed; its last lines are added when the pod
    has ended."""

    log: WantedLog
    source: LogSource
    streams: LogStreams
    writer: LogWriter
    most_bytes: int

    async def run(self) -> None:
        """Store new output and, for an ended pod, the end record. Raise errors of PASSING."""
        self._find_place()
        if self.log.is_drained:
            return
        if self.source.has_started:
            await self._copy_earlier()
            await self._copy_current()
        if self.source.end_word:
            if self.writer.size >= FILE_BYTES and self.source.has_started:
                await self._check_file()
            self._write()
            self.writer.end(self.source.end_word)
            self.log.is_drained = True

    def _find_place(self) -> None:
        """Find the position in the log at which to resume. Read the stored file only if it has changed since this
        process's last write."""
        known = self.log
        if self.writer.size != known.size:
            page = tail(known.path, _TAIL_LINES)
            known.is_drained = page.complete
            known.cursor.take_store(page.lines)
            known.size = known.checked_size = self.writer.size
            if page.lines:
                known.gaps = GapRule(page.lines[-1].time_ms)

    async def _copy_earlier(self) -> None:
        """Copy the rest of the previous container if it was restarted since the last try."""
        known, restarts = self.log, self.source.restarts
        missed = 0 if known.restarts is None else restarts - known.restarts
        if missed > 0:
            try:
                await self._read({"previous": "true"}, is_whole=missed == 1)
            except (ApiError, LogNotThere) as refusal:
                self._write([f"output before the container's restart could not be read: {line(refusal)}"])
            known.cursor, known.gaps = Cursor(), GapRule()
        known.restarts = restarts

    async def _copy_current(self) -> None:
        is_full = self.writer.size >= self.most_bytes
        if self.source.end_word:
            await self._read({"tailLines": str(LAST_LINES)} if is_full else {}, is_whole=True)
        elif not is_full:
            await self._read({"follow": "true"}, is_whole=False)

    async def _read(self, query: dict[str, str], *, is_whole: bool) -> None:
        """Store the new lines of a stream. `is_whole`: the stream ends where the container's output ends."""
        known, lines = self.log, Lines()
        since = known.cursor.since()
        known.cursor.begin()
        asked = {"container": self.source.container, "timestamps": "true", **query}
        if since is not None and "tailLines" not in query:
            asked["sinceTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        opened_at, is_open, is_left = time.monotonic(), False, False

        def now_ms() -> int:
            return self.source.now_ms + int((time.monotonic() - opened_at) * 1000)

        try:
            async with asyncio.timeout_at(known.leave_at) as known.limit:
                async with self.streams.open(self.source.path, asked) as stream:
                    is_open, known.is_followed = True, known.is_followed and is_whole
                    known.gaps.listen(now_ms(), self.source.started_ms)
                    await self._store_stream(stream, lines)
            is_left = not lines.remark
            known.is_followed = known.is_followed or (is_left and not is_whole)
        except TimeoutError:
            is_left = is_open
            # A stream that was asked to end is continued at once, but only that of the present container: of an
            # earlier one the rest must be read first.
            if "follow" not in query or not known.limit or not known.limit.expired():
                raise
            known.pause_seconds = FIRST_PAUSE_SECONDS
        finally:
            known.limit = None
            if is_left:
                known.gaps.leave(now_ms())
        if is_whole:
            self._store(lines.rest())
            self._check_end(lines.remark, is_resumed=since is not None)

    async def _store_stream(self, stream: aiohttp.StreamReader, lines: Lines) -> None:
        known, is_live, size_before = self.log, not self.source.end_word, self.writer.size
        while True:
            is_doubted = is_live and self.writer.size - size_before >= FILE_BYTES
            async with asyncio.timeout(SILENT_SECONDS if is_doubted else None):
                chunk = await stream.readany()
            if not chunk:
                return
            self._store(lines.feed(chunk))
            if is_live and self.writer.size >= self.most_bytes:
                return
            is_much = self.writer.size - known.checked_size >= FILE_BYTES
            if is_much and time.monotonic() - known.checked_at >= FILE_CHECK_SECONDS:
                await self._check_file()

    def _check_end(self, remark: str, *, is_resumed: bool) -> None:
        """Raise LogNotThere if the node has no file of the log (unless the container was removed after its whole
        output was copied); otherwise write a gap record where output may be missing. `remark`: the node's message in
        place of output, "" if none."""
        known, is_seeking = self.log, self.log.cursor.is_seeking
        is_gone = bool(remark) and (is_seeking or known.cursor.since() is None)
        if is_gone and not (known.is_followed and is_removed(remark)):
            raise LogNotThere(remark)
        gaps = known.gaps.judge(is_end=True)
        if not is_gone and (is_seeking or (remark and not is_resumed)):
            gaps += [f"output may be missing here: {remark or 'the node does not have it any more'}"]
        self._write(gaps)

    def _store(self, pieces: list[Piece]) -> None:
        pieces, is_torn = self.log.cursor.take(pieces)
        if pieces:
            self._write(self.log.gaps.take(pieces, is_torn=is_torn), pieces)
            self.log.pause_seconds = FIRST_PAUSE_SECONDS

    async def _check_file(self) -> None:
        """Ask the node when its log file begins, and write a gap record if it is a later file than before."""
        known = self.log
        known.checked_at = time.monotonic()
        try:
            began_ms = await self.streams.file_began_ms(self.source.path, self.source.container)
        except PASSING as error:
            # The check is optional: it must not end a working stream or prevent the end record.
            log.debug("log of %s: when its file began is not known: %s", known.name, error)
            return
        known.checked_size = self.writer.size
        if began_ms is not None:
            self._write(known.gaps.take_file(began_ms))

    def _write(self, gaps: Sequence[str] = (), pieces: Sequence[Piece] = ()) -> None:
        """Append gaps, then lines. Raise LogStoreBusy if another process has written to the log."""
        if self.writer.has_grown():
            raise LogStoreBusy("another process wrote to the log")
        # Until the write succeeds the size is unknown, so that the next try resumes at the end of the file.
        self.log.size = -1
        for gap in gaps:
            self.writer.gap(gap)
        if pieces:
            self.writer.add(pieces)
        self.log.size = self.writer.size
