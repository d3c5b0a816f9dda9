"""Write contents as the files of a tree. A child process of a fill runs `main`.

It loads little, since most modules take longer to load than a process to start.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from hashlib import sha256
from itertools import pairwise

from datasets.ingest.messages import read_message, write_message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_DIGEST_BYTES = 32
# Contents that lie behind one another are read at once up to this size.
READ_BYTES = 1 << 20
# First word of an answer that is not empty.
MISSING, DAMAGED, FAILED = "missing", "damaged", "failed"


class FileWriter:
    """Creates files below the directory that is open as `tree`."""

    def __init__(self, tree: int) -> None:
        self._tree = tree
        # Modes from which the umask takes nothing away, so that their files need no chmod.
        self._kept_modes: set[int] = set()

    def write(self, path: bytes, content: bytes | memoryview, mode: int) -> None:
        """Create a file. Raises OSError, also if it exists: under another name, where the file system ignores the case
        of names."""
        file = os.open(path, _NEW, mode, dir_fd=self._tree)
        try:
            if mode not in self._kept_modes and os.fstat(file).st_mode & 0o777 == mode:
                self._kept_modes.add(mode)
            written = os.write(file, content)
            while written < len(content):
                written += os.write(file, content[written:])
            # The umask may take rights away, from all files alike.
            if mode not in self._kept_modes:
                os.fchmod(file, mode)
        finally:
            os.close(file)


def spans(places: Sequence[tuple[int, int]], most_bytes: int = READ_BYTES) -> Iterator[slice]:
    """Group contents of one file, each at (offset, size in bytes), so that one read serves a group: each begins where
    the one before it ends. Yield the index ranges; nothing for no contents. A group has at most `most_bytes`, unless a
    single content is larger."""
    if not places:
        return
    start = 0
    for index, ((offset, size), (following, length)) in enumerate(pairwise(places), 1):
        if offset + size != following or following + length - places[start][0] > most_bytes:
            yield slice(start, index)
            start = index
    yield slice(start, len(places))


def main() -> None:
    """Run a child of datasets.storage.writer_pool.WriterPool: answer messages from standard input until it ends."""
    # It makes no cycles, so looking for them would only take time.
    gc.disable()
    source, target = sys.stdin.buffer, sys.stdout.buffer
    if (head := read_message(source.read)) is None:
        return
    writer = _PackWriter(*head)
    while (message := read_message(source.read)) is not None:
        write_message(target, writer.answer(*message))


class _PackWriter:
    def __init__(self, tree: int) -> None:
        self._files, self._buffer = FileWriter(tree), bytearray(READ_BYTES)

    def answer(self, pack: bytes, mode: int, *columns: bytes) -> tuple[Any, ...]:
        """Create files with `mode` from contents of a pack, in columns: offsets and sizes of eight bytes each, digests,
        and paths below the tree with a zero byte between them. Return the answer that WriterPool.write reads: () if all
        were created, else MISSING, or DAMAGED with the digest, or FAILED with errno and path."""
        try:
            source = os.open(pack, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return (MISSING,)
        try:
            return self._write(source, mode, *columns)
        except OSError as error:
            return FAILED, error.errno or errno.EIO, error.filename or b""
        finally:
            os.close(source)

    def _write(
        self, source: int, mode: int, offsets: bytes, sizes: bytes, digests: bytes, paths: bytes
    ) -> tuple[Any, ...]:
        places = list(zip(memoryview(offsets).cast("Q"), memoryview(sizes).cast("Q")))  # noqa: B905  # strict takes time
        names, write = paths.split(b"\0"), self._files.write
        for span in spans(places):
            first, end = places[span.start][0], sum(places[span.stop - 1])
            data = self._read(source, first, end - first)
            for place in range(span.start, span.stop):
                offset, size = places[place]
                content = data[offset - first : offset - first + size]
                digest = sha256(content).digest()
                if digest != digests[place * _DIGEST_BYTES : (place + 1) * _DIGEST_BYTES]:
                    return DAMAGED, digests[place * _DIGEST_BYTES : (place + 1) * _DIGEST_BYTES]
                write(names[place], content, mode)
        return ()

    def _read(self, source: int, offset: int, size: int) -> memoryview:
        """Return the bytes at `offset`, fewer at the end of the file; valid until the next call."""
        # One buffer for all reads: pages of new memory cost as much as the copy.
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        return view[: os.preadv(source, [view], offset)]
