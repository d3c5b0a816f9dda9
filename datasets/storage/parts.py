"""The file of a large content that is arriving: parts are appended by one request at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path


@contextmanager
def locked_part(path: Path) -> Iterator[FileIO]:
    """Context manager with the open file of parts, created if missing and locked against other requests. Waits
    for the lock without limit."""
    while True:
        with open(path, "ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Completed or removed by the request that held the lock.
            if not _is_at(path, file):
                continue
            yield file
            return


def append(file: FileIO, offset: int, data: memoryview, size: int) -> int:
    """Append to the file, which has the beginning of a content of `size` bytes, what it lacks of `data`, which
    begins at `offset`. Return the file's length. Data after a gap or beyond `size` is ignored; a file longer than
    `size` is emptied first."""
    held = os.fstat(file.fileno()).st_size
    if held > size:
        file.truncate(held := 0)
    skip = held - offset
    if skip < 0 or skip >= len(data) or offset + len(data) > size:
        return held
    left = data[skip:]
    while left:
        left = left[file.write(left) :]
    return os.fstat(file.fileno()).st_size


def _is_at(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
