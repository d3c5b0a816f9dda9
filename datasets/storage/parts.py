"""The file of a large content that is arriving: parts are appended by one request at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path


@contextmanager
def locked_part(path: Path) -> Iterator[FileIO]:
    """Open the file of parts, created if missing, and lock it against other requests."""
    while True:
        with open(path, "ab", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Completed or removed by the request that held the lock.
            if not _is_at(path, file):
                continue
            yield file
            return


def append(file: FileIO, offset: int, data: memoryview, size: int) -> int:
    """Append the bytes that the file lacks of a content of `size` bytes; return the file's length. A file
    longer than its content has wrong parts and is restarted."""
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
