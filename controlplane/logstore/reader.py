"""Read pods' logs of any engine: pages from a byte offset, the tail, a search.

A log is one file per (job, attempt, rank) in the format of `controlplane.logstore.writer`. Output is data: invalid
UTF-8 becomes replacement characters, and no markup is generated. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from controlplane.logstore.writer import END, GAP, MAX_TEXT_BYTES, STDERR, STDOUT

STREAMS = {STDOUT: "stdout", STDERR: "stderr"}
# The most bytes that one call reads, so that a search in a huge log returns in time.
SCAN_BYTES = 8 * 1024 * 1024
# The end of the year 9999 in Unix milliseconds, datetime's limit.
LATEST_MS = 253_402_300_799_000
_TAIL_BLOCK_BYTES = 64 * 1024
# Below this many bytes a bisection reads record by record, because one read of the file covers them all.
_BISECT_BYTES = 16 * 1024
# The most digits of a record's numbers; a longer one was not written by us, because a pod can write to its own log
# file.
_NUMBER_DIGITS, _TIME_DIGITS = 15, 20
_RECORD_BYTES = MAX_TEXT_BYTES + 64
_DAMAGED = "a damaged record"
# Messages of gaps with this beginning are already complete sentences.
_SAYS_ALL = "output may be missing"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record of output. `n`: its number in the log; `time_ms`: when it was written, Unix milliseconds; `stream`:
    "stdout" or "stderr"; `is_partial`: the line continues in that stream's next record; `next_offset`: the byte offset
    at which to resume reading after it."""

    n: int
    time_ms: int
    stream: str
    text: str
    is_partial: bool = False
    next_offset: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class LogGap:
    """Output is missing, or may be, after the line with number `after_n`, for the reason in `message`. `time_ms`:
    Unix milliseconds, 0 if unknown."""

    after_n: int
    time_ms: int
    message: str

    @property
    def sentence(self) -> str:
        """Return the message as a sentence for users."""
        return (
            self.message if self.message.startswith(_SAYS_ALL) else f"output is missing here: {self.message}"
        )


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines, the gaps among them, and the byte offset at which to continue. `complete`: the pod has ended and these
    are the log's last lines."""

    lines: tuple[LogLine, ...] = ()
    next_offset: int = 0
    complete: bool = False
    gaps: tuple[LogGap, ...] = ()


@dataclass(slots=True)
class _Collector:
    lines: list[LogLine] = field(default_factory=list)
    gaps: list[LogGap] = field(default_factory=list)
    is_ended: bool = False

    def add(self, record: bytes, search: str | None, next_offset: int) -> None:
        fields = record.removesuffix(b"\n").split(b" ", 3)
        numbers = _numbers(fields) if record.endswith(b"\n") else None
        if numbers is None:
            self._add_damage()
            return
        (n, time_ms), kind = numbers, fields[2]
        text = fields[3].decode("utf-8", "replace")
        stream = STREAMS.get(kind.lower())
        if stream is not None:
            if search is None or search.casefold() in text.casefold():
                self.lines.append(LogLine(n, time_ms, stream, text, kind.isupper(), next_offset))
        elif kind == GAP:
            self.gaps.append(LogGap(n, time_ms, text))
        elif kind == END:
            self.is_ended = True

    def _add_damage(self) -> None:
        """Add a gap for a damaged record; several in a row become one gap."""
        gap = LogGap(self.lines[-1].n if self.lines else 0, 0, _DAMAGED)
        if not self.gaps or self.gaps[-1] != gap:
            self.gaps.append(gap)


# Cached, because it is called every second for every running pod.
@lru_cache(maxsize=16384)
def log_path(logs_dir: str | Path, job_id: str, attempt: int, rank: int) -> Path:
    """Return the path of one pod's log, under STATE_DIR/logs."""
    return Path(logs_dir) / job_id / f"{attempt}-{rank}.log"


def read_page(path: str | Path, offset: int = 0, limit: int = 1000, search: str | None = None) -> LogPage:
    """Return at most `limit` lines and gaps from the byte `offset`, 0 or a `next_offset`; with `search` only lines
    that contain it, ignoring case. Raise ValueError for a negative offset or a limit below 1, OSError if `path` is no
    regular file.

    An offset inside a record starts at the next one. One beyond the end, or a missing log, gives an empty page. A
    page may be short or empty without being `complete`, because a call reads SCAN_BYTES at most: continue at
    `next_offset`.
    """
    if offset < 0 or limit < 1:
        raise ValueError("offset must be 0 or more, and limit 1 or more")
    if not os.path.exists(path):
        return LogPage(next_offset=offset)
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        position = _seek_record(file, min(offset, size))
        collector = _Collector()
        stop_at = position + SCAN_BYTES
        for record in _whole_records(file):
            position += len(record)
            collector.add(record, search, position)
            if len(collector.lines) + len(collector.gaps) >= limit or position >= stop_at:
                break
    return _page(collector, position, size)


def tail(path: str | Path, n: int) -> LogPage:
    """Return the last `n` lines and the offset from which to follow the log; an empty page if there is no log. Reads
    backwards, about SCAN_BYTES at most, so very long lines give fewer than `n`. Raise OSError if `path` is no regular
    file."""
    if not os.path.exists(path):
        return LogPage()
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = _tail_start(file, size, n)
        file.seek(start)
        collector, position = _Collector(), start
        for record in _whole_records(file):
            position += len(record)
            collector.add(record, None, position)
    del collector.lines[: max(0, len(collector.lines) - n)]
    return _page(collector, position, size)


def line_before(path: str | Path, time_ms: int) -> int:
    """Return the number of the last line written at or before `time_ms` (Unix milliseconds); 0 if there is no such
    line or no log."""
    if not os.path.exists(path):
        return 0
    with _open(path) as file:
        low, high = 0, os.fstat(file.fileno()).st_size
        while high - low > _BISECT_BYTES:
            middle = _seek_record(file, (low + high) // 2)
            numbers = _numbers(file.readline(_RECORD_BYTES).split(b" ", 3)) if middle < high else None
            if numbers is not None and numbers[1] <= time_ms:
                low = middle
            else:
                high = (low + high) // 2
        file.seek(low)
        return _last_line_until(file, time_ms)


def _last_line_until(file: BinaryIO, time_ms: int) -> int:
    """Return the number of the last line at or before `time_ms`, reading on from the file's position; 0 if there is
    none."""
    last = 0
    for record in _whole_records(file):
        numbers = _numbers(record.split(b" ", 3))
        if numbers is not None and numbers[1] > time_ms:
            break
        last = numbers[0] if numbers is not None else last
    return last


def _open(path: str | Path) -> BinaryIO:
    """Open a log for reading. Raise OSError for anything but a regular file, because opening a pipe would block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def _numbers(fields: Sequence[bytes]) -> tuple[int, int] | None:
    """Return the number and time (Unix ms) in the split fields of a record; None if it is damaged."""
    if len(fields) < 4 or not (fields[0].isdigit() and fields[1].isdigit()):
        return None
    if len(fields[0]) > _NUMBER_DIGITS or len(fields[1]) > _TIME_DIGITS:
        return None
    return int(fields[0]), min(int(fields[1]), LATEST_MS)


def _page(collector: _Collector, position: int, size: int) -> LogPage:
    is_complete = collector.is_ended and position >= size
    return LogPage(tuple(collector.lines), position, is_complete, tuple(collector.gaps))


def _whole_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records from the file's position, without one that is still being written. An overlong record is
    yielded in pieces, which bounds memory."""
    while record := file.readline(_RECORD_BYTES):
        if record.endswith(b"\n") or len(record) == _RECORD_BYTES:
            yield record


def _seek_record(file: BinaryIO, offset: int) -> int:
    """Move the file to the first record that starts at or after `offset`, and return that record's offset."""
    if offset == 0:
        return 0
    file.seek(offset - 1)
    skipped = file.readline(SCAN_BYTES)
    is_skipped = skipped.endswith(b"\n") or len(skipped) == SCAN_BYTES
    return offset - 1 + len(skipped) if is_skipped else offset


def _tail_start(file: BinaryIO, size: int, n: int) -> int:
    """Return the offset of a record after which at least `n` numbered lines follow; if the last SCAN_BYTES or so have
    fewer, the earliest offset that was searched."""
    wanted, position, found = n + 2, size, 0
    limit_bytes = max(SCAN_BYTES, _TAIL_BLOCK_BYTES + 2 * MAX_TEXT_BYTES)
    while position > 0 and size - position < limit_bytes:
        start = max(0, position - _TAIL_BLOCK_BYTES)
        file.seek(start)
        block = file.read(position - start)
        found += block.count(b"\n")
        position = start
        if found > wanted:
            break
    return _seek_record(file, position) if position else 0
