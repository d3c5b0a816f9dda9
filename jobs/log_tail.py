"""The end of one pod's growing log in batches, shared by all its viewers."""

import uuid
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.conf import settings

from controlplane.live.registry import Batch
from controlplane.logstore.reader import LogGap, LogLine, LogPage, log_path, read_page, tail
from jobs.models import Job
from jobs.queries import is_silent

# Lines in the state that a new viewer gets.
SHOWN_LINES = 200
BATCH_LINES = 1000
# If the tail is further behind than this, it jumps to the end; clients detect the gap by the numbers.
BEHIND_BYTES = 512 * 1024
# A log topic's sequence number is attempt * 2**40 + byte offset, so that it also grows from one attempt to
# the next.
ATTEMPT_BITS = 40


@dataclass(slots=True)
class LogTail:
    """Follow the log of the job's newest attempt at one rank. `offset`: the bytes read so far; `lines`, `gaps`: the
    last ones; `is_complete`: the pod will write no more."""

    job_id: str
    rank: int
    attempt: int = 0
    offset: int = 0
    is_complete: bool = False
    lines: "deque[LogLine]" = field(default_factory=lambda: deque(maxlen=SHOWN_LINES))
    gaps: "deque[LogGap]" = field(default_factory=lambda: deque(maxlen=SHOWN_LINES))

    @property
    def seq(self) -> int:
        return (self.attempt << ATTEMPT_BITS) + (self.offset or int(self.is_complete))

    @property
    def path(self) -> Path:
        return log_path(settings.LOG_DIR, self.job_id, self.attempt, self.rank)

    def open(self) -> None:
        """Move to the end of the newest attempt's log and read its last lines."""
        self.attempt = _newest_attempt(self.job_id)
        self._jump()

    def poll(self, *, look_for_attempt: bool) -> Batch | None:
        """Return the lines written since the last call; None if there are none. `look_for_attempt`: also query
        whether a newer attempt has begun. A batch with `is_fresh` means that the tail moved, so that viewers must
        read `state` again."""
        if look_for_attempt and _newest_attempt(self.job_id) != self.attempt:
            self.open()
            return Batch({}, is_fresh=True)
        size = size_of(self.path)
        if size <= self.offset:
            return self._ended_in_silence() if look_for_attempt else None
        if size - self.offset > BEHIND_BYTES:
            self._jump()
            return Batch({}, is_fresh=True)
        page = read_page(self.path, self.offset, BATCH_LINES)
        if page.next_offset == self.offset:
            return None  # half a record
        was_complete = self.is_complete
        self._keep(page)
        return Batch(_collections(page.lines, page.gaps, self if page.complete != was_complete else None))

    def state(self) -> dict[str, dict[str, Any]]:
        """Return the last lines as the state of a live topic."""
        return _collections(tuple(self.lines), tuple(self.gaps), self)

    def _jump(self) -> None:
        self.lines.clear()
        self.gaps.clear()
        self.offset = 0
        self._keep(tail(self.path, SHOWN_LINES))

    def _ended_in_silence(self) -> Batch | None:
        """Return, once, an empty batch that marks the log as complete if the pod can never have a log; else None."""
        if self.is_complete or self.offset or not is_silent(self.job_id, self.attempt, self.rank):
            return None
        self.is_complete = True
        return Batch(_collections((), (), self))

    def _keep(self, page: LogPage) -> None:
        self.lines.extend(page.lines)
        self.gaps.extend(page.gaps)
        self.offset, self.is_complete = page.next_offset, page.complete


def line_record(line: LogLine) -> dict[str, Any]:
    """Return a line in its REST form."""
    return {
        "n": line.n,
        "time": moment(line.time_ms),
        "stream": line.stream,
        "text": line.text,
        "partial": line.is_partial,
    }


def gap_record(gap: LogGap) -> dict[str, Any]:
    return {"after": gap.after_n, "time": moment(gap.time_ms), "message": gap.message}


def moment(time_ms: int) -> datetime:
    """Return the time that is `time_ms` milliseconds after the beginning of 1970 (UTC)."""
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def _collections(
    lines: tuple[LogLine, ...], gaps: tuple[LogGap, ...], log: LogTail | None
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {"lines": {str(line.n): line_record(line) for line in lines}}
    if gaps:
        # One timestamp may have several lines.
        found["gaps"] = {f"{gap.after_n} {gap.time_ms} {gap.message}": gap_record(gap) for gap in gaps}
    if log is not None:
        found["log"] = {"all": {"attempt": log.attempt, "complete": log.is_complete}}
    return found


def _newest_attempt(job_id: str) -> int:
    return Job.objects.filter(pk=uuid.UUID(job_id)).values_list("attempt", flat=True).first() or 0


def size_of(path: Path) -> int:
    """Return the size of a log in bytes; 0 for a missing one."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
