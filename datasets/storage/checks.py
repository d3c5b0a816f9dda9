"""Read and verify the contents of packs and objects from the files alone, without the index."""

import errno
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from datasets.ingest.packs import TAIL_BYTES, PackInvalid, index_bytes, read_index
from datasets.ingest.reader import FileChanged, hash_file
from datasets.storage.contents import WHOLE, Located, located_in


def places_in(path: Path, pack: str) -> list[Located]:
    """Return the locations of the contents in a file that is the pack with this name. Raises PackInvalid if the pack's
    index is incomplete or wrong."""
    size = path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        if size < TAIL_BYTES:
            raise PackInvalid("The pack is truncated.")
        tail = index_bytes(os.pread(file.fileno(), TAIL_BYTES, size - TAIL_BYTES))
        entries, _ = read_index(os.pread(file.fileno(), tail, max(0, size - tail)))
    return located_in(pack, entries)


def damaged_in(path: Path, located: Sequence[Located]) -> list[Located]:
    """Return those of `located`, which are in the one file `path`, whose bytes do not match their digests or cannot be
    read from the disk."""
    with open(path, "rb", buffering=0) as file:
        return [one for one in located if not _is_intact(file.fileno(), one)]


def _is_intact(descriptor: int, located: Located) -> bool:
    if located.pack == WHOLE:
        return is_intact(descriptor, located.size_bytes, located.digest)
    found = b""
    with read_errors_suppressed():
        found = sha256(os.pread(descriptor, located.size_bytes, located.offset)).digest()
    return found == located.digest


def is_intact(descriptor: int, size: int, digest: bytes) -> bool:
    """Return whether an open file has this digest and `size` bytes. False too for one that the disk cannot read."""
    with read_errors_suppressed(), suppress(FileChanged):
        return hash_file(descriptor, size) == digest
    return False


@contextmanager
def read_errors_suppressed() -> Iterator[None]:
    """Context manager that ends its block at an error of the disk in one place, as of a bad sector; raises others."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise


def require_answer(path: Path) -> None:
    """Read the beginning of a file from the disk. Raises OSError if the disk does not answer."""
    try:
        # Past the page cache, which would answer for a disk that does not.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    except OSError as error:
        # Some file systems have no direct reads.
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.open(path, os.O_RDONLY)
    with open(descriptor, "rb", buffering=0) as file, mmap.mmap(-1, mmap.PAGESIZE) as block:
        file.readinto(block)
