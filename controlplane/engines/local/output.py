"""Store a pod's output in the log. Missing output is marked and never stops the job.

Output is lost on a full disk, and for jobs that print endlessly: once the log has `most_bytes`, only the last
part is kept in memory, because it contains the reason of a failure, and written when the pod ends.

Imported by the shim, so it must import almost nothing.
"""

from __future__ import annotations

from controlplane.logstore.writer import LogWriter

# Enough output to contain the reason of a failure, in little memory per pod.
KEPT_BYTES = 1 << 20
CHUNK_BYTES = 64 * 1024


class Output:
    """Stores one pod's output in its log. Once the log has `most_bytes`, the last KEPT_BYTES are kept in memory
    instead."""

    def __init__(self, path: str, most_bytes: int) -> None:
        self._log = LogWriter(path)
        self._most_bytes = most_bytes
        self._lost_bytes = 0
        self._kept: list[tuple[bytes, bytes]] = []

    def store(self, kind: bytes, data: bytes) -> None:
        if self._kept or self._log.size >= self._most_bytes:
            self._keep(kind, data)
        else:
            self._write(kind, data)

    def flush(self) -> None:
        """Write output that has no newline yet, such as a prompt; call it after a moment without output. On a full
        disk it stays in memory."""
        try:
            self._log.flush()
        except OSError:
            # The disk is full; the lines are kept in memory.
            return

    @property
    def has_partial(self) -> bool:
        return self._log.has_partial()

    def end(self, message: str, cut: str = "") -> None:
        """Write what is kept in memory, and the end record with `message`. `cut`: why output is missing at the end,
        "" if none is. Raise OSError on a full disk; call it again later."""
        kept, self._kept = self._kept, []
        self._trim(kept, KEPT_BYTES)
        for kind, data in kept:
            self._write(kind, data)
        if self._lost_bytes:
            self._record_loss()
        if cut:
            self._log.gap(cut)
        self._log.end(message)

    def _write(self, kind: bytes, data: bytes) -> None:
        try:
            if self._lost_bytes:
                self._record_loss()
            self._log.feed(kind, data)
        except OSError:
            self._lost_bytes += len(data)

    def _keep(self, kind: bytes, data: bytes) -> None:
        if self._kept and self._kept[-1][0] == kind and len(self._kept[-1][1]) < CHUNK_BYTES:
            data = self._kept.pop()[1] + data
        self._kept.append((kind, data))
        # At twice the size, so that the list is not trimmed for every chunk.
        if sum(len(chunk) for _, chunk in self._kept) > 2 * KEPT_BYTES:
            self._trim(self._kept, KEPT_BYTES)

    def _trim(self, kept: list[tuple[bytes, bytes]], most_bytes: int) -> None:
        """Drop the oldest chunks of `kept` until at most `most_bytes` remain, and count the bytes dropped."""
        size, first = sum(len(chunk) for _, chunk in kept), 0
        while size > most_bytes:
            size -= len(kept[first][1])
            self._lost_bytes += len(kept[first][1])
            first += 1
        del kept[:first]

    def _record_loss(self) -> None:
        self._log.flush()
        self._log.gap(f"{self._lost_bytes} bytes of output were not kept")
        self._lost_bytes = 0
