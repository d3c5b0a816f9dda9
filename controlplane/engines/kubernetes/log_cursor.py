"""Convert the API server's log stream to records of the log store, and find where to resume after a break.

A line of the stream is `<RFC 3339 time> <text>`. The same log is always cut into the same pieces, so the last
stored piece shows which pieces of a repeated stream are new. Pure: no clock, no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from controlplane.logstore.reader import LogLine
from controlplane.logstore.writer import MAX_TEXT_BYTES, STDOUT

# As LogWriter.add takes it: Unix ms, kind, text.
Piece: TypeAlias = tuple[int, bytes, bytes]

# The line goes on in the next piece.
_CUT = STDOUT.upper()
_STAMP_BYTES = 40  # at most
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNSTAMPED = -1
# Clocks that differ by no more count as one.
_SKEW_MS = 3000
# Nodes look every 10 s whether a file is full.
_LATE_MS = 5000
# A node's clock that is put back by no more hides nothing.
_STEP_BACK_SECONDS = 2


def stamp_ms(stamp: bytes) -> int:
    """Convert an RFC 3339 time of any precision to Unix ms. Raises ValueError."""
    time = datetime.fromisoformat(stamp.decode("ascii"))
    if time.tzinfo is None:
        raise ValueError("the time has no zone")
    return (time - _EPOCH) // _MILLISECOND


def time_of(ms: int) -> str:
    """Convert Unix ms to RFC 3339, as logs show it."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Beginning:
    """Estimate whether a node rotated a container's first lines away before we read one; the API does not
    report that.

    Two measures: how long no stream was open, and the rate of output. Unix ms: start and lines by the node's
    clock, the rest by the API server's. If the clocks differ by seconds, the estimate errs towards reporting
    a gap.
    """

    # the time of the first line that we read
    first_ms: int | None = None
    _last_ms: int = 0
    # Bytes of what we read.
    _size: int = 0
    # When its stream was opened.
    _open_ms: int = 0
    # All output before was read: the container's start, then the end of each stream that gave nothing.
    _covered_ms: int | None = None
    # The time without an open stream before `_open_ms`.
    _unseen_ms: int = 0

    def listen(self, now_ms: int, started_ms: int | None) -> None:
        """Note that a stream opens. `started_ms`, the container's start, is in whole seconds."""
        if self._covered_ms is None and started_ms is not None:
            self._covered_ms = started_ms + 999
        self._open_ms = now_ms

    def leave(self, now_ms: int) -> None:
        """Note that the stream ended without an error."""
        if self.first_ms is None and self._covered_ms is not None:
            self._unseen_ms += max(0, self._open_ms - self._covered_ms)
            self._covered_ms = now_ms

    def take(self, pieces: Sequence[Piece]) -> None:
        if self.first_ms is None:
            self.first_ms = pieces[0][0]
        self._last_ms = pieces[-1][0]
        self._size += sum(len(text) for _, _, text in pieces)

    @property
    def seen_ms(self) -> int:
        """Return the time from which on all output was read."""
        if self.first_ms is None:
            return self._open_ms
        is_node_ahead = self._covered_ms is not None and self._covered_ms > self._open_ms + _SKEW_MS
        return self.first_ms if is_node_ahead else min(self.first_ms, self._open_ms)

    def may_be_gone(self, file_size: int, *, is_end: bool = False) -> bool | None:
        """Return whether the container may have filled a file of `file_size` bytes unseen; None if it is too
        early to decide."""
        if self.first_ms is None and not is_end:
            return None
        if self._covered_ms is None:
            return False
        unseen_ms = self._unseen_ms + max(0, self.seen_ms - self._covered_ms)
        if unseen_ms >= _LATE_MS:
            return True
        if self._size < file_size and not is_end:
            return None
        span_ms = max(1000, self._last_ms - (self.first_ms or 0))
        return unseen_ms > 0 and self._size * unseen_ms >= file_size * span_ms


@dataclass(slots=True)
class Lines:
    """Cuts one stream into pieces.

    Lines without a time are no output: the tail of a line that began before the time asked for, or what the node says
    in a log's place. `remark` is the last of them.
    """

    remark: str = ""
    # of a line without its end; without its stamp once `_line_ms` is known
    _rest: bytes = b""
    _line_ms: int | None = None

    def feed(self, chunk: bytes) -> list[Piece]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        pieces: list[Piece] = []
        for line in lines:
            line_ms, text = self._start(line)
            self._line_ms = None
            if line_ms == _UNSTAMPED:
                self.remark = text[:500].decode("utf-8", "replace")
                continue
            if len(text) >= MAX_TEXT_BYTES:
                text = _cut(line_ms, text, pieces)
            pieces.append((line_ms, STDOUT, text))
        if len(self._rest) >= MAX_TEXT_BYTES + _STAMP_BYTES:
            self._line_ms, text = self._start(self._rest)
            self._rest = _cut(self._line_ms, text, pieces)
        return pieces

    def rest(self) -> list[Piece]:
        """Return the last line of a log that has ended without a newline."""
        line_ms, text = self._start(self._rest)
        if line_ms == _UNSTAMPED:
            self.remark = text[:500].decode("utf-8", "replace") or self.remark
        return [(line_ms, _CUT, text)] if text and line_ms != _UNSTAMPED else []

    def _start(self, line: bytes) -> tuple[int, bytes]:
        """Return the time and the text of a line, or of what there is of it."""
        if self._line_ms is not None:
            return self._line_ms, line
        stamp, _, text = line.partition(b" ")
        try:
            return stamp_ms(stamp), text
        except ValueError:
            return _UNSTAMPED, line


def _cut(line_ms: int, text: bytes, pieces: list[Piece]) -> bytes:
    """Append the full pieces of a line to `pieces`; return the rest."""
    # By size and not by chunk of the network, so that a repeat is cut at the same places.
    whole = len(text) - len(text) % MAX_TEXT_BYTES
    if line_ms != _UNSTAMPED:
        pieces += [(line_ms, _CUT, text[at : at + MAX_TEXT_BYTES]) for at in range(0, whole, MAX_TEXT_BYTES)]
    return text[whole:]


@dataclass(slots=True)
class Cursor:
    """Position of the store in a log. After a break the stream is requested again from the second of the last
    piece, and everything before that piece is skipped.

    Timestamps may go backwards (two streams of a pod, a corrected clock), so the position of the last piece
    counts, not its time. The piece is gone only when a time is later than all that were seen.
    """

    # Of the last piece's ms.
    _recent: list[Piece] = field(default_factory=list)
    # Of all pieces.
    _latest_ms: int = 0
    # How many pieces like the last one are still to come before the new ones.
    _sought: int = 0

    def take_store(self, lines: Sequence[LogLine]) -> None:
        """Begin after the store's last lines."""
        self._recent, self._latest_ms = [], 0
        self._note(
            [(line.time_ms, _CUT if line.is_partial else STDOUT, line.text.encode()) for line in lines]
        )

    def since(self) -> datetime | None:
        """Return the time from which to request the stream, in whole seconds; None: from its start."""
        if not self._recent:
            return None
        return _EPOCH + timedelta(seconds=max(0, self._recent[-1][0] // 1000 - _STEP_BACK_SECONDS))

    def begin(self) -> None:
        """Note that a stream from `since` follows."""
        self._sought = sum(_is_same(piece, self._recent[-1]) for piece in self._recent)

    @property
    def is_seeking(self) -> bool:
        """Return whether the stream has not reached the last stored piece yet."""
        return self._sought > 0

    def take(self, pieces: list[Piece]) -> tuple[list[Piece], bool]:
        """Return the new pieces among a stream's next ones, and whether output is missing before them."""
        is_torn = False
        if self._sought:
            pieces, is_torn = self._seek(pieces)
        self._note(pieces)
        return pieces, is_torn

    def _seek(self, pieces: list[Piece]) -> tuple[list[Piece], bool]:
        last = self._recent[-1]
        for i, piece in enumerate(pieces):
            if _is_same(piece, last):
                self._sought -= 1
                if not self._sought:
                    return pieces[i + 1 :], False
            # Later than everything stored, and the last stored piece was not among what came before: the node no
            # longer has it.
            elif piece[0] > self._latest_ms:
                self._sought = 0
                return pieces[i:], True
        return [], False

    def _note(self, pieces: list[Piece]) -> None:
        if not pieces:
            return
        last_ms = pieces[-1][0]
        if not self._recent or self._recent[-1][0] != last_ms:
            self._recent = []
        self._recent += [piece for piece in pieces if piece[0] == last_ms]
        self._latest_ms = max(self._latest_ms, *(piece[0] for piece in pieces))


def _is_same(a: Piece, b: Piece) -> bool:
    """Compare texts as the store returns them: invalid UTF-8 comes back as replacement characters."""
    return a[0] == b[0] and a[1] == b[1] and (a[2] == b[2] or _text(a) == _text(b))


def _text(piece: Piece) -> str:
    return piece[2].decode("utf-8", "replace")
