"""Write the files of a tree in several processes.

Threads that write small files wait for Python's lock after each system call. The kernel creates files in different
directories at the same time.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from datasets.ingest.worker import Child
from datasets.storage import tree_writer
from datasets.storage.base import ContentDamaged, ContentMissing
from datasets.storage.contents import Located


class WriterPool:
    """Child processes that write contents of local packs as files below the directory that is open as `tree`. They
    start with `start`, or when they are needed: one for each thread that calls `write` at the same time. `held`: a
    descriptor that they keep open, so that a lock on its file lasts until the last of them ended. Safe for several
    threads."""

    def __init__(self, tree: int, held: int) -> None:
        self._tree, self._held = tree, held
        self._children: list[Child] = []
        self._idle: SimpleQueue[Child] = SimpleQueue()

    def start(self, count: int) -> None:
        """Start this many processes, so that they are ready when they are needed."""
        for _ in range(count):
            self._idle.put(self._new_child())

    def write(self, pack: Path, located: Sequence[Located], paths: Sequence[bytes], mode: int) -> None:
        """Verify contents of a pack, at least one and sorted by offset, and create a file with `mode` for each, at
        `paths`. Raises ContentMissing if the pack is not there, ContentDamaged, OSError if a file cannot be written,
        and WorkerFailed if a child process ended."""
        _, offsets, sizes, digests = zip(*located, strict=True)
        # In columns: a tuple for each content would have to be made, sent and read.
        columns = (
            array("Q", offsets).tobytes(),
            array("Q", sizes).tobytes(),
            b"".join(digests),
            b"\0".join(paths),
        )
        child = self._child()
        child.send((os.fsencode(pack), mode, *columns))
        answer = child.received()
        self._idle.put(child)
        match answer:
            case (tree_writer.MISSING,):
                raise ContentMissing(f"The lake has lost content {digests[0].hex()}.")
            case (tree_writer.DAMAGED, bytes() as digest):
                raise ContentDamaged(digest)
            case (tree_writer.FAILED, int() as number, path):
                raise OSError(number, os.strerror(number), path)

    def close(self) -> None:
        """End the processes."""
        for child in self._children:
            child.kill()

    def _child(self) -> Child:
        with suppress(Empty):
            return self._idle.get_nowait()
        return self._new_child()

    def _new_child(self) -> Child:
        self._children.append(Child(tree_writer.__name__, (self._tree,), (self._tree, self._held)))
        return self._children[-1]
