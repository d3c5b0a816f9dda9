"""Copy one log into the log store: resume at the last stored time, drop what was seen, show gaps (decision 49)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes.log_cursor import Cursor, Lines, Piece
from controlplane.engines.kubernetes.log_gaps import FILE_BYTES, GapRule
from controlplane.engines.kubernetes.log_streams import LogNotThere, LogStreams, is_removed
from controlplane.kubernetes_api.errors import ApiError
from controlplane.logstore.reader import tail
from controlplane.logstore.writer import LogWriter

log = logging.getLogger(__name__)

# The pause after a try with new output: short, because more is likely to follow.
PAUSE_SECONDS = 0.1
# The largest size of one log, so that one job does not fill the disk of all. Beyond it, only the last lines of the
# output are added when the pod has ended.
MOST_BYTES = 1 << 30
LAST_LINES = 5000
FILE_CHECK_SECONDS = 2.0
# After a quick rotation a kubelet may send nothing more until the container ends, so a silent stream is opened
# again.
SILENT_SECONDS = 10.0
_TAIL_LINES = 2000


class LogStoreBusy(Exception):
    """Another process has written to the log's file, so its end must be read again before writing."""


# Errors after which the copy is retried; the last two occur when no token can be obtained.
PASSING = (
    aiohttp.ClientError, ApiError, OSError, TimeoutError, LogStoreBusy, LogNotThere,
    EngineUnreachable, EngineRefused,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where a pod's log is, and whether it is complete. `path`: the pod's path in the API, up to `/log`.
    `started_ms`: when the container began, Unix ms in whole seconds, None if unknown; `end_word`: the text of the end
    record, such as "exit 0", or "" while the pod runs."""

    path: str
    has_started: bool
    end_word: str = ""
    started_ms: int | None = None


@dataclass(slots=True)
class LogCopy:
    """The copy of one log in the file at `path`, and its progress. Fields `_at` are of time.monotonic(), fields `_ms`
    are Unix ms by the cluster's clock."""

    path: str
    most_bytes: int = MOST_BYTES
    cursor: Cursor = field(default_factory=Cursor)
    gaps: GapRule = field(default_factory=GapRule)
    # Whether the end record was written.
    is_drained: bool = False
    # True if its stream continued until the node ended it normally: then all output was copied.
    is_followed: bool = False
    # Doubled by each try without new output, so that a log that cannot be read costs few requests.
    pause_seconds: float = PAUSE_SECONDS
    # The size of our file after this process's last write; -1: the file must be read.
    _size: int = -1
    # When the node was last asked for the beginning of its file, and the size of ours then: each question is a request,
    # so it is asked at most once per FILE_BYTES of output.
    _checked_at: float = 0.0
    _checked_size: int = 0
    # Of the present try.
    _source: LogSource = field(init=False)
    _streams: LogStreams = field(init=False)
    _writer: LogWriter = field(init=False)

    async def read(self, source: LogSource, streams: LogStreams) -> None:
        """Read the log once and store its new output; if the pod has ended, also the end record. For a running pod,
        wait until the stream ends. Raise one of the PASSING errors, after which the caller repeats the call."""
        self._source, self._streams = source, streams
        with contextlib.closing(LogWriter(self.path)) as self._writer:
            self._find_place()
            if self.is_drained:
                return
            if source.has_started:
                await self._read_current()
            if source.end_word:
                self._write()
                self._writer.end(source.end_word)
                self.is_drained = True

    def give_up(self, gap: str, end_word: str) -> None:
        """Close a log whose rest cannot be read, with a gap and an end record. Raise OSError on a full disk; the
        caller then repeats the call."""
        with contextlib.closing(LogWriter(self.path)) as writer:
            if not tail(self.path, 1).complete:
                writer.gap(gap)
                writer.end(end_word)
        self.is_drained = True

    def _find_place(self) -> None:
        """Find where in the log to resume. The stored file is read only if it changed since this process's last
        write."""
        if self._writer.size != self._size:
            page = tail(self.path, _TAIL_LINES)
            self.is_drained = page.complete
            self.cursor.take_store(page.lines)
            self._size = self._checked_size = self._writer.size
            if page.lines:
                self.gaps = GapRule(page.lines[-1].time_ms, is_judged=True)

    async def _read_current(self) -> None:
        is_full = self._writer.size >= self.most_bytes
        if self._source.end_word:
            await self._read_stream({"tailLines": str(LAST_LINES)} if is_full else {})
            if self._writer.size >= FILE_BYTES:
                await self._check_file()
        elif not is_full:
            await self._read_stream({"follow": "true"})

    async def _read_stream(self, query: Mapping[str, str]) -> None:
        """Open the log and store its new lines until the stream ends. For an ended pod, also check whether output is
        missing."""
        lines, since = Lines(), self.cursor.since()
        self.cursor.begin()
        if since is not None and "tailLines" not in query:
            # `sinceTime` has whole seconds; the cursor skips what was read before.
            query = {**query, "sinceTime": since.strftime("%Y-%m-%dT%H:%M:%SZ")}
        async with self._streams.open(self._source.path, query) as stream:
            self.is_followed = self.is_followed and bool(self._source.end_word)
            self.gaps.listen(self._streams.now_ms(), self._source.started_ms)
            try:
                await self._store_stream(stream, lines)
            except (TimeoutError, asyncio.CancelledError):
                # A silent stream, or one that makes room for others: nothing was missed until now.
                self.gaps.leave(self._streams.now_ms())
                raise
            if not lines.remark:
                self.gaps.leave(self._streams.now_ms())
        if self._source.end_word:
            self._store(lines.rest())
            self._check_end(lines.remark, is_resumed=since is not None)
        else:
            self.is_followed = not lines.remark

    async def _store_stream(self, stream: aiohttp.StreamReader, lines: Lines) -> None:
        is_live, size_before = not self._source.end_word, self._writer.size
        while True:
            is_doubted = is_live and self._writer.size - size_before >= FILE_BYTES
            async with asyncio.timeout(SILENT_SECONDS if is_doubted else None):
                chunk = await stream.readany()
            if not chunk:
                return
            self._store(lines.feed(chunk))
            if is_live and self._writer.size >= self.most_bytes:
                return
            is_much = self._writer.size - self._checked_size >= FILE_BYTES
            if is_much and time.monotonic() - self._checked_at >= FILE_CHECK_SECONDS:
                await self._check_file()

    def _check_end(self, remark: str, *, is_resumed: bool) -> None:
        """Write a gap record if output at the end may be missing. Raise LogNotThere if the node has no file of the
        log, unless the container was removed after its whole output was copied. `remark`: what the node sent in place
        of output, "" if nothing. `is_resumed`: output was copied before this try."""
        is_seeking = self.cursor.is_seeking
        is_gone = bool(remark) and (is_seeking or self.cursor.since() is None)
        if is_gone and not (self.is_followed and is_removed(remark)):
            raise LogNotThere(remark)
        gaps = self.gaps.judge(is_end=True)
        if not is_gone and (is_seeking or (remark and not is_resumed)):
            gaps += [f"output may be missing here: {remark or 'the node does not have it any more'}"]
        self._write(gaps)

    def _store(self, pieces: list[Piece]) -> None:
        pieces, is_torn = self.cursor.take(pieces)
        if pieces:
            self._write(self.gaps.take(pieces, is_torn=is_torn), pieces)
            self.pause_seconds = PAUSE_SECONDS

    async def _check_file(self) -> None:
        """Ask the node when its log file begins, and write a gap record if that is a later file than before. Errors
        are ignored."""
        self._checked_at = time.monotonic()
        try:
            began_ms = await self._streams.file_began_ms(self._source.path)
        except PASSING as error:
            # The check is optional: it must not end a working stream or prevent the end record.
            log.debug("%s: when its file began is not known: %s", self._source.path, error)
            return
        self._checked_size = self._writer.size
        if began_ms is not None:
            self._write(self.gaps.take_file(began_ms))

    def _write(self, gaps: Sequence[str] = (), pieces: Sequence[Piece] = ()) -> None:
        """Append gap records, then lines. Raise LogStoreBusy if another process has written to the file."""
        if self._writer.has_grown():
            raise LogStoreBusy("another process wrote to the log")
        # Until the write succeeds the size is unknown, so that the next try resumes at the end of the file.
        self._size = -1
        for gap in gaps:
            self._writer.gap(gap)
        if pieces:
            self._writer.add(pieces)
        self._size = self._writer.size
