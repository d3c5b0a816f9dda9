"""Decide whether a node may have deleted output of a container before it was read. No I/O and no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.engines.kubernetes.log_cursor import Piece, time_of

MAY_BE_GONE = "the node may have begun a new file before this was read"
NEW_FILE = "the node began a new file then"
# The smallest file that a kubelet rotates.
FILE_BYTES = 1 << 20
# Clocks that differ by at most this are treated as equal.
_SKEW_MS = 3000
# Nodes check every 10 s whether a file is full.
_LATE_MS = 5000


@dataclass(slots=True)
class GapRule:
    """Decides where output of a container may be missing in its copied log. Nothing is missing while the node's log
    file does not begin later than the file that was read before.

    The node keeps only its newest file (about 10 MiB), and a stream that continues in a new file loses the last
    moment of the old one. The API does not report whether the first file that we read is the container's first. That
    is estimated by how long no stream was open, and by the rate of output. Times in Unix ms: the container's start
    and lines by the node's clock, all others by the API server's. If the clocks differ by seconds, the estimate errs
    towards reporting a gap.
    """

    # The time of the first line of the node's file; after a restart of this process, the time of the last stored
    # line; None before any line.
    file_began_ms: int | None = None
    # The time of the first line that we read, unless the first file was judged before.
    first_ms: int | None = None
    _last_ms: int = 0
    # The number of bytes that we have read, from which the rate of the output is estimated.
    _size: int = 0
    # When the present stream was opened.
    _open_ms: int = 0
    # All output before this time was read: first the container's start, then the end of each stream without output.
    _covered_ms: int | None = None
    # How long no stream was open before `_open_ms`: output of this time may be missing.
    _unseen_ms: int = 0
    # Whether the first file needs no judgement any more.
    is_judged: bool = False

    def listen(self, now_ms: int, started_ms: int | None) -> None:
        """Record that a stream was opened at `now_ms`. `started_ms`: the container's start, None if unknown."""
        if self.first_ms is None:
            self._open_ms = now_ms
            if self._covered_ms is None and started_ms is not None:
                # Whole seconds, rounded down: the container may have begun 999 ms later.
                self._covered_ms = started_ms + 999

    def leave(self, now_ms: int) -> None:
        """Record that the stream ended at `now_ms` without an error."""
        if self.first_ms is None and self._covered_ms is not None:
            self._unseen_ms += max(0, self._open_ms - self._covered_ms)
            self._covered_ms = now_ms

    def take(self, pieces: Sequence[Piece], *, is_torn: bool = False) -> list[str]:
        """Record `pieces`, at least one, that were read, and return the messages of gaps before them. `is_torn`: the
        node no longer has the piece that was read before them."""
        if not self.is_judged:
            self.first_ms = pieces[0][0] if self.first_ms is None else self.first_ms
            self._last_ms = pieces[-1][0]
            self._size += sum(len(text) for _, _, text in pieces)
        is_new = is_torn or self.file_began_ms is None
        return (self.take_file(pieces[0][0]) if is_new else []) + self.judge()

    def take_file(self, began_ms: int) -> list[str]:
        """Record that the node's file begins at `began_ms`. Return the message of the gap before it if it is a later
        file than the one read before, else []."""
        known_ms, self.file_began_ms = self.file_began_ms, began_ms
        is_later = known_ms is not None and began_ms > known_ms
        return [f"output may be missing before {time_of(began_ms)}: {NEW_FILE}"] if is_later else []

    def judge(self, *, is_end: bool = False) -> list[str]:
        """Return the message of the gap before the first file that was read, once that can be decided; [] before, if
        nothing is missing, and in later calls. `is_end`: the container's output is complete, so decide now."""
        may_be_gone = None if self.is_judged else self.may_be_gone(is_end=is_end)
        self.is_judged = self.is_judged or may_be_gone is not None
        return [f"output may be missing before {time_of(self.seen_ms)}: {MAY_BE_GONE}"] if may_be_gone else []

    @property
    def seen_ms(self) -> int:
        """The time, Unix ms, since which all output was read."""
        if self.first_ms is None:
            return self._open_ms
        is_node_ahead = self._covered_ms is not None and self._covered_ms > self._open_ms + _SKEW_MS
        return self.first_ms if is_node_ahead else min(self.first_ms, self._open_ms)

    def may_be_gone(self, *, is_end: bool = False) -> bool | None:
        """Return whether the container may have filled a file before we read its log; None if it is too early to
        decide. `is_end`: its output is complete, so decide now."""
        if self.first_ms is None and not is_end:
            return None
        if self._covered_ms is None:
            return False
        unseen_ms = self._unseen_ms + max(0, self.seen_ms - self._covered_ms)
        if unseen_ms >= _LATE_MS:
            return True
        if self._size < FILE_BYTES and not is_end:
            return None
        span_ms = max(1000, self._last_ms - (self.first_ms or 0))
        return unseen_ms > 0 and self._size * unseen_ms >= FILE_BYTES * span_ms
