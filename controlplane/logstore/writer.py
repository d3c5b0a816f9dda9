r"""Write a pod's log: one record per line, append only.

    <n> <unix_ms> <kind> <text>\n

`n` numbers the records from 1. `kind` is `o` (stdout) or `e` (stderr), in capitals (`O`, `E`) if the line continues
in that stream's next record, so that the exact bytes can be restored; `g` means that output is missing here and `x`
is the end of the log, both without a number of their own. `text` is the unchanged output, any bytes but a newline.
A job cannot forge a record, because its output always follows the three fields.

The shim imports this file at every start of a pod, so it imports almost nothing; reading is in
`controlplane.logstore.reader`.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Longer lines are split into several records, so that readers need bounded memory.
MAX_TEXT_BYTES = 64 * 1024
STDOUT, STDERR = b"o", b"e"
GAP, END = b"g", b"x"


class LogWriter:
    """Appends records to one log file; a reopened file continues its numbers. If a write fails, for example on a full
    disk, OSError is raised, and file, numbers and unfinished lines are as before."""

    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # The size of the file in bytes after our last write, to which it is truncated if a write fails.
        self.size = os.fstat(self._fd).st_size
        self._last_number = self._repair()
        self._partial: dict[bytes, bytes] = {}

    def feed(self, kind: bytes, data: bytes) -> None:
        """Take output of the stream `kind`, STDOUT or STDERR. Complete lines are written at once, the rest when its
        newline arrives or after MAX_TEXT_BYTES."""
        *lines, rest = (self._partial.get(kind, b"") + data).split(b"\n")
        records = [record for line in lines for record in self._split(kind, line, is_whole=True)]
        while len(rest) >= MAX_TEXT_BYTES:
            records.append((kind.upper(), rest[:MAX_TEXT_BYTES]))
            rest = rest[MAX_TEXT_BYTES:]
        self._append(records)
        self._partial[kind] = rest

    def add(self, records: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Write output records: (Unix ms, kind, text of at most MAX_TEXT_BYTES), with the next numbers."""
        first = self._last_number + 1
        self._write(b"".join(b"%d %d %b %b\n" % (first + i, *record) for i, record in enumerate(records)))
        self._last_number += len(records)

    def has_grown(self) -> bool:
        """Return whether the file's size is not what this writer left: another writer appended, or the file was
        truncated."""
        return os.fstat(self._fd).st_size != self.size

    def has_partial(self) -> bool:
        return any(self._partial.values())

    def flush(self) -> None:
        """Write lines that have no newline yet, such as a prompt, as records that are continued."""
        self._append([(kind.upper(), rest) for kind, rest in self._partial.items() if rest])
        self._partial.clear()

    def gap(self, message: str) -> None:
        """Record that output is missing here. `message`: why, for users."""
        self._append_unnumbered(GAP, message)

    def end(self, message: str) -> None:
        """Flush, mark the log as complete, and sync it to disk. `message`: how the pod ended, for users."""
        self.flush()
        self._append_unnumbered(END, message)
        # An end record that a crash lost would let the log seem incomplete for ever.
        os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _split(self, kind: bytes, line: bytes, is_whole: bool) -> list[tuple[bytes, bytes]]:
        pieces = [line[at : at + MAX_TEXT_BYTES] for at in range(0, len(line), MAX_TEXT_BYTES)] or [b""]
        kinds = [kind.upper()] * (len(pieces) - 1) + [kind if is_whole else kind.upper()]
        return list(zip(kinds, pieces, strict=True))

    def _append(self, records: list[tuple[bytes, bytes]]) -> None:
        if records:
            now_ms = time.time_ns() // 1_000_000
            self.add([(now_ms, kind, text) for kind, text in records])

    def _append_unnumbered(self, kind: bytes, message: str) -> None:
        stamp = time.time_ns() // 1_000_000
        self._write(b"%d %d %b %b\n" % (self._last_number, stamp, kind, message.replace("\n", " ").encode()))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            # The incomplete record is removed, because it would merge with the next one.
            os.ftruncate(self._fd, self.size)
            raise
        self.size += len(data)

    def _repair(self) -> int:
        """End a record that a crash cut off with a newline. Return the number of the last record, 0 in a new or
        damaged file."""
        size = os.fstat(self._fd).st_size
        if size == 0:
            return 0
        block = os.pread(self._fd, 3 * MAX_TEXT_BYTES, max(0, size - 3 * MAX_TEXT_BYTES))
        if not block.endswith(b"\n"):
            self._write(b"\n")
            block += b"\n"
        last_line = block[:-1].rpartition(b"\n")[2]
        number = last_line.partition(b" ")[0]
        # A longer number was not written by us.
        return int(number) if number.isdigit() and len(number) <= 15 else 0
