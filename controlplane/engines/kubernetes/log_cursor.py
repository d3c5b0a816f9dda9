"""From the log stream of the Kubernetes API to records of the log store, and where to go on after a break.

A line of the stream is `<RFC 3339 time> <text>`. The same log is always cut into the same pieces, so the last piece
that the store has says which of a repeated stream are new. Pure: no clock, no file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from controlplane.logstore.reader import LogLine
from controlplane.logstore.writer import MAX_TEXT_BYTES, STDOUT

Piece: TypeAlias = tuple[int, bytes, bytes]  # as LogWriter.add takes it: Unix ms, kind, text

_CUT = STDOUT.upper()  # the line goes on in the next piece
_STAMP_BYTES = 40  # at most
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNSTAMPED = -1
_SKEW_MS = 3000  # clocks that differ by no more count as one
_LATE_MS = 5000  # nodes look every 10 s whether a file is full
_STEP_BACK_SECONDS = 2  # a node's clock that is put back by no more hides nothing


def stamp_ms(stamp: bytes) -> int:
    """Unix ms of an RFC 3339 time of any precision. Raises ValueError."""
    time = datetime.fromisoformat(stamp.decode("ascii"))
    if time.tzinfo is None:
        raise ValueError("the time has no zone")
    return (time - _EPOCH) // _MILLISECOND


def time_of(ms: int) -> str:
    """Unix ms -> RFC 3339, as logs show it."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class Beginning:
    """Whether a node may have put away a container's first lines before we read one: it gives no sign of that.

    Two signs are ours: how long nobody listened, and the pace of what is there. Unix ms: by the node's clock its start
    and its lines, by the API server's the rest; where they differ by seconds a gap is told rather than hidden.
    """

    first_ms: int | None = None  # the time of the first line that we read
    _last_ms: int = 0
    _size: int = 0  # bytes of what we read
    _open_ms: int = 0  # when its stream was opened
    _heard_ms: int | None = (
        None  # until then a stream was open and gave nothing; at first: when the container began
    )
    _unheard_ms: int = 0  # how long, before that, none was

    def listen(self, now_ms: int, started_ms: int | None) -> None:
        """A stream begins. `started_ms`, the container's start, is in whole seconds."""
        if self._heard_ms is None and started_ms is not None:
            self._heard_ms = started_ms + 999
        self._open_ms = now_ms

    def leave(self, now_ms: int) -> None:
        """The stream ends in good order."""
        if self.first_ms is None and self._heard_ms is not None:
            self._unheard_ms += max(0, self._open_ms - self._heard_ms)
            self._heard_ms = now_ms

    def take(self, pieces: Sequence[Piece]) -> None:
        """The log's first lines, or the next ones."""
        if self.first_ms is None:
            self.first_ms = pieces[0][0]
        self._last_ms = pieces[-1][0]
        self._size += sum(len(text) for _, _, text in pieces)

    @property
    def seen_ms(self) -> int:
        """From when on nothing went unseen."""
        if self.first_ms is None:
            return self._open_ms
        is_node_ahead = self._heard_ms is not None and self._heard_ms > self._open_ms + _SKEW_MS
        return self.first_ms if is_node_ahead else min(self.first_ms, self._open_ms)

    def may_be_gone(self, file_size: int, *, is_end: bool = False) -> bool | None:
        """Whether the container may have filled a file of `file_size` bytes unseen; None: too early to say."""
        if self.first_ms is None and not is_end:
            return None
        if self._heard_ms is None:
            return False
        unseen_ms = self._unheard_ms + max(0, self.seen_ms - self._heard_ms)
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
    _rest: bytes = b""  # of a line without its end; without its stamp once `_line_ms` is known
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
        """The last line of a log that has ended without a newline."""
        line_ms, text = self._start(self._rest)
        if line_ms == _UNSTAMPED:
            self.remark = text[:500].decode("utf-8", "replace") or self.remark
        return [(line_ms, _CUT, text)] if text and line_ms != _UNSTAMPED else []

    def _start(self, line: bytes) -> tuple[int, bytes]:
        """The time and the text of a line, or of what there is of it."""
        if self._line_ms is not None:
            return self._line_ms, line
        stamp, _, text = line.partition(b" ")
        try:
            return stamp_ms(stamp), text
        except ValueError:
            return _UNSTAMPED, line


def _cut(line_ms: int, text: bytes, pieces: list[Piece]) -> bytes:
    """Cut full pieces off a line; what is left of it."""
    whole = len(text) - len(text) % MAX_TEXT_BYTES
    if line_ms != _UNSTAMPED:
        pieces += [(line_ms, _CUT, text[at : at + MAX_TEXT_BYTES]) for at in range(0, whole, MAX_TEXT_BYTES)]
    return text[whole:]


@dataclass(slots=True)
class Cursor:
    """How far the store has a log. After a break the stream is asked for again from the second of the last piece, and
    what comes before that piece is known.

    Stamps may step back (two streams of a pod, a clock that is put right), so what counts is the place of the last
    piece, not its time: only a time after all that were seen says that the piece is not there any more.
    """

    _recent: list[Piece] = field(default_factory=list)  # of the last piece's ms
    _latest_ms: int = 0  # of all pieces
    _sought: int = 0  # how many pieces like the last one are still to come before the new ones

    def take_store(self, lines: Sequence[LogLine]) -> None:
        """Begin behind the store's last lines."""
        self._recent, self._latest_ms = [], 0
        self._note(
            [(line.time_ms, _CUT if line.is_partial else STDOUT, line.text.encode()) for line in lines]
        )

    def since(self) -> datetime | None:
        """From when the stream is to be asked for, in whole seconds; None: from its start."""
        if not self._recent:
            return None
        return _EPOCH + timedelta(seconds=max(0, self._recent[-1][0] // 1000 - _STEP_BACK_SECONDS))

    def begin(self) -> None:
        """A stream from `since` follows."""
        self._sought = sum(_is_same(piece, self._recent[-1]) for piece in self._recent)

    @property
    def latest_ms(self) -> int:
        """The latest time of all pieces, 0 before the first."""
        return self._latest_ms

    @property
    def is_seeking(self) -> bool:
        """The last known piece was not found yet."""
        return self._sought > 0

    def take(self, pieces: list[Piece]) -> tuple[list[Piece], bool]:
        """The new ones of a stream's next pieces, and whether output is missing before them."""
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
    """By what the store's readers see of it: bytes that are no text come back from it as replacement characters."""
    return a[0] == b[0] and a[1] == b[1] and (a[2] == b[2] or _text(a) == _text(b))


def _text(piece: Piece) -> str:
    return piece[2].decode("utf-8", "replace")
