"""Convert the API server's log stream to records of the log store, and find where to resume after a break.

A line of the stream is `<RFC 3339 time> <text>`. The same log is always cut into the same pieces, so the last
stored piece shows which pieces of a repeated stream are new. No I/O and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from controlplane.logstore.reader import LogLine
from controlplane.logstore.writer import MAX_TEXT_BYTES, STDOUT

# A piece of output as LogWriter.add accepts it: (Unix ms, kind, text).
Piece: TypeAlias = tuple[int, bytes, bytes]

# The kind of a piece whose line continues in the next piece.
_CUT = STDOUT.upper()
_STAMP_BYTES = 40  # at most
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNSTAMPED = -1
# A stream is requested from this much before the last piece, because the node's clock may have been set back.
_STEP_BACK_SECONDS = 2


def stamp_ms(stamp: bytes) -> int:
    """Return an RFC 3339 time of any precision as Unix ms, rounded down. Raise ValueError if it is none."""
    time = datetime.fromisoformat(stamp.decode("ascii"))
    if time.tzinfo is None:
        raise ValueError("the time has no zone")
    return (time - _EPOCH) // _MILLISECOND


def time_of(ms: int) -> str:
    """Return Unix ms as RFC 3339 in UTC with milliseconds, as logs show times."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Lines:
    """Cuts the chunks of one stream into pieces: lines, or parts of long lines.

    Lines without a time are not output: they are the rest of a line that began before the requested time, or a
    message of the node in place of the log. `remark`: the last of these lines.
    """

    remark: str = ""
    # The beginning of an incomplete line; without its timestamp once `_line_ms` is known.
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
        """Return the last line, if the log ended without a newline, as a list with one piece; else []."""
        line_ms, text = self._start(self._rest)
        if line_ms == _UNSTAMPED:
            self.remark = text[:500].decode("utf-8", "replace") or self.remark
        return [(line_ms, _CUT, text)] if text and line_ms != _UNSTAMPED else []

    def _start(self, line: bytes) -> tuple[int, bytes]:
        """Return (Unix ms, text) of a line, which may be incomplete; (_UNSTAMPED, line) if it has no time."""
        if self._line_ms is not None:
            return self._line_ms, line
        stamp, _, text = line.partition(b" ")
        try:
            return stamp_ms(stamp), text
        except ValueError:
            return _UNSTAMPED, line


def _cut(line_ms: int, text: bytes, pieces: list[Piece]) -> bytes:
    """Append the parts of MAX_TEXT_BYTES of a long line to `pieces`, and return the remaining text."""
    # Cut by size instead of by network chunk, so that a repeated stream is cut at the same places.
    whole = len(text) - len(text) % MAX_TEXT_BYTES
    if line_ms != _UNSTAMPED:
        pieces += [(line_ms, _CUT, text[at : at + MAX_TEXT_BYTES]) for at in range(0, whole, MAX_TEXT_BYTES)]
    return text[whole:]


@dataclass(slots=True)
class Cursor:
    """The position in a log up to which the store has it. After an interruption the stream is requested again from
    some seconds before the last stored piece, and everything up to that piece is skipped.

    Timestamps may go backwards (two streams of a pod, a corrected clock), so the position is found by the last piece,
    not by its time. The piece is missing only if a time is later than all that were stored.
    """

    # The pieces with the millisecond of the last one, since equal lines of one millisecond can only be counted.
    _recent: list[tuple[int, bytes, str]] = field(default_factory=list)
    # The latest time of all pieces: a later one shows that the sought piece is gone.
    _latest_ms: int = 0
    # How many pieces equal to the last one must still be skipped, because a resumed stream repeats them.
    _sought: int = 0

    def take_store(self, lines: Sequence[LogLine]) -> None:
        """Set the position to the end of the stored log. `lines`: its last lines."""
        self._recent, self._latest_ms = [], 0
        self._note(
            [(line.time_ms, _CUT if line.is_partial else STDOUT, line.text.encode()) for line in lines]
        )

    def since(self) -> datetime | None:
        """Return the time, in whole seconds, from which to request the stream; None: from the beginning."""
        if not self._recent:
            return None
        return _EPOCH + timedelta(seconds=max(0, self._recent[-1][0] // 1000 - _STEP_BACK_SECONDS))

    def begin(self) -> None:
        """Prepare for a stream that was requested from `since`. Call it before `take`."""
        # Counted, because equal lines of one millisecond cannot be told apart.
        self._sought = self._recent.count(self._recent[-1]) if self._recent else 0

    @property
    def is_seeking(self) -> bool:
        """Return whether the stream has not yet reached the last stored piece."""
        return self._sought > 0

    def take(self, pieces: list[Piece]) -> tuple[list[Piece], bool]:
        """Return the new ones among the stream's next pieces, and whether output before them is missing."""
        is_torn = False
        if self._sought:
            pieces, is_torn = self._seek(pieces)
        self._note(pieces)
        return pieces, is_torn

    def _seek(self, pieces: list[Piece]) -> tuple[list[Piece], bool]:
        last = self._recent[-1]
        for i, piece in enumerate(pieces):
            if piece[0] == last[0] and _seen(piece) == last:
                self._sought -= 1
                if not self._sought:
                    return pieces[i + 1 :], False
            # The piece is later than everything stored, and the last stored piece did not occur before it, so the
            # node no longer has that piece.
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
        self._recent += [_seen(piece) for piece in pieces if piece[0] == last_ms]
        self._latest_ms = max(self._latest_ms, *(piece[0] for piece in pieces))


def _seen(piece: Piece) -> tuple[int, bytes, str]:
    """Return a piece as the store has it: invalid UTF-8 has become replacement characters."""
    return piece[0], piece[1], piece[2].decode("utf-8", "replace")
