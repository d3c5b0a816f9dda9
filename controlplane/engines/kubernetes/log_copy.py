"""Copy one stream of a pod's log into the log store: resume at the last stored time, drop what was seen, show gaps.

One rule decides on gaps: output is whole while the node's file begins no later than the file that was read
before. The node keeps only its newest file (about 10 MiB), and a stream that moves on to a new file loses the
last moment of the old one. `log_cursor.Beginning` applies the rule to the first file that is read (decision 49).
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import aiohttp

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes.log_cursor import Beginning, Cursor, Lines, Piece, time_of
from controlplane.engines.kubernetes.log_streams import LogNotThere, LogStreams, StreamRefused, is_removed
from controlplane.engines.kubernetes.log_target import FIRST_PAUSE_SECONDS, LogSource, WantedLog
from controlplane.logstore.reader import tail
from controlplane.logstore.writer import LogWriter

log = logging.getLogger(__name__)

MAY_BE_GONE = "the node may have begun a new file before this was read"
_NEW_FILE = "the node began a new file then"
# Of a log that is too long, only these are kept of what follows, when the pod has ended.
LAST_LINES = 5000
# The smallest file at which a kubelet rotates.
ROTATED_BYTES = 1 << 20
FILE_CHECK_SECONDS = 2.0
# A kubelet that rotates quickly may send nothing more until the container ends: a silent stream is opened again.
SILENT_SECONDS = 10.0
_TAIL_LINES = 2000


class LogStoreBusy(Exception):
    """Another process wrote to the file since the last read; its end must be read again."""


# Errors after which the copy is tried again; the last two: a token that cannot be had.
PASSING = (
    aiohttp.ClientError, StreamRefused, OSError, TimeoutError, LogStoreBusy, LogNotThere,
    EngineUnreachable, EngineRefused,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogCopy:
    """A log beyond `most_bytes` is not followed; its last lines are added when the pod has ended."""

    entry: WantedLog
    source: LogSource
    streams: LogStreams
    writer: LogWriter
    most_bytes: int

    async def run(self) -> None:
        """Write what is new; for an ended pod also the end. Raises errors of PASSING."""
        if self._is_complete():
            return
        if self.source.has_started:
            await self._copy_earlier()
            await self._copy_current()
        if self.source.end_word:
            if self.writer.size >= ROTATED_BYTES and self.source.has_started:
                await self._check_file()
            self._check_alone()
            self.writer.end(self.source.end_word)
            self.entry.is_drained = True

    def _is_complete(self) -> bool:
        """Find where to resume. The file is read only if it is not as this process left it."""
        entry = self.entry
        if self.writer.size != entry.size:
            page = tail(entry.path, _TAIL_LINES)
            entry.is_drained = page.complete
            entry.cursor.take_store(page.lines)
            entry.size = entry.checked_size = self.writer.size
            if page.lines:
                entry.file_began_ms, entry.beginning = page.lines[-1].time_ms, None
        return entry.is_drained

    async def _copy_earlier(self) -> None:
        """Copy the rest of the previous container, if it was restarted since the last look."""
        entry, restarts = self.entry, self.source.restarts
        missed = 0 if entry.restarts is None else restarts - entry.restarts
        entry.restarts = restarts
        if missed <= 0:
            return
        try:
            await self._read({"previous": "true"}, is_whole=missed == 1)
        except (StreamRefused, LogNotThere) as refusal:
            self.writer.gap(f"output before the container's restart could not be read: {refusal}")
        entry.cursor, entry.size, entry.file_began_ms = Cursor(), self.writer.size, None
        entry.beginning = Beginning()

    async def _copy_current(self) -> None:
        is_full = self.writer.size >= self.most_bytes
        if self.source.end_word:
            await self._read({"tailLines": str(LAST_LINES)} if is_full else {}, is_whole=True)
        elif not is_full:
            await self._read({"follow": "true"}, is_whole=False)

    async def _read(self, query: dict[str, str], *, is_whole: bool) -> None:
        """Write the new lines of a stream. `is_whole`: its end is the end of a container's output."""
        entry, lines = self.entry, Lines()
        since = entry.cursor.since()
        entry.cursor.begin()
        asked = {"container": self.source.container, "timestamps": "true", **query}
        if since is not None and "tailLines" not in query:
            asked["sinceTime"] = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        async with self.streams.open(self.source.path, asked) as stream:
            entry.note_open(self.source)
            entry.is_followed = entry.is_followed and is_whole
            try:
                await self._store_stream(stream, lines)
            except TimeoutError:
                entry.note_left()
                raise
        if not lines.remark:
            entry.note_left()
            entry.is_followed = entry.is_followed or not is_whole
        if is_whole:
            self._store(lines.rest())
            self._check_end(lines.remark, is_resumed=since is not None)

    async def _store_stream(self, stream: aiohttp.StreamReader, lines: Lines) -> None:
        entry, is_live, size_before = self.entry, not self.source.end_word, self.writer.size
        while True:
            is_doubted = is_live and self.writer.size - size_before >= ROTATED_BYTES
            async with asyncio.timeout(SILENT_SECONDS if is_doubted else None):
                chunk = await stream.readany()
            if not chunk:
                return
            self._store(lines.feed(chunk))
            if is_live and self.writer.size >= self.most_bytes:
                return
            is_much = self.writer.size - entry.checked_size >= ROTATED_BYTES
            if is_much and time.monotonic() - entry.checked_at >= FILE_CHECK_SECONDS:
                await self._check_file()

    def _check_end(self, remark: str, *, is_resumed: bool) -> None:
        """Raise LogNotThere, or write gaps, if a whole stream lacked what it should hold. `remark`: of the node."""
        entry, cursor = self.entry, self.entry.cursor
        is_gone = bool(remark) and (cursor.is_seeking or cursor.since() is None)
        if is_gone and not (entry.is_followed and is_removed(remark)):
            raise LogNotThere(remark)
        self._check_beginning(is_end=True)
        if not is_gone and (cursor.is_seeking or (remark and not is_resumed)):
            self._gap(f"output may be missing here: {remark or 'the node does not have it any more'}")

    def _store(self, pieces: list[Piece]) -> None:
        entry = self.entry
        pieces, is_torn = entry.cursor.take(pieces)
        if not pieces:
            return
        if entry.beginning is not None:
            entry.beginning.take(pieces)
        self._check_alone()
        if is_torn or entry.file_began_ms is None:
            self._take_file(pieces[0][0])
        self._check_beginning()
        self.writer.add(pieces)
        entry.size, entry.pause_seconds = self.writer.size, FIRST_PAUSE_SECONDS

    async def _check_file(self) -> None:
        """Read when the node's file began, and apply the rule of gaps to it."""
        entry = self.entry
        entry.checked_at = time.monotonic()
        try:
            began_ms = await self.streams.file_began_ms(self.source.path, self.source.container)
        except PASSING as error:
            # Neither a healthy stream nor the end of a whole log is given up for it.
            log.debug("log of %s: when its file began is not known: %s", entry.name, error)
            return
        entry.checked_size = self.writer.size
        if began_ms is not None:
            self._take_file(began_ms)

    def _take_file(self, began_ms: int) -> None:
        known_ms, self.entry.file_began_ms = self.entry.file_began_ms, began_ms
        if known_ms is not None and began_ms > known_ms:
            self._gap(f"output may be missing before {time_of(began_ms)}: {_NEW_FILE}")

    def _check_beginning(self, *, is_end: bool = False) -> None:
        """Write a gap, once, if the node may have begun a new file before the first was read."""
        beginning = self.entry.beginning
        may_be_gone = beginning and beginning.may_be_gone(ROTATED_BYTES, is_end=is_end)
        if beginning is None or may_be_gone is None:
            return
        self.entry.beginning = None
        if may_be_gone:
            self._gap(f"output may be missing before {time_of(beginning.seen_ms)}: {MAY_BE_GONE}")

    def _gap(self, message: str) -> None:
        self._check_alone()
        self.writer.gap(message)
        self.entry.size = self.writer.size

    def _check_alone(self) -> None:
        if self.writer.has_grown():
            raise LogStoreBusy("another process wrote to the log")
