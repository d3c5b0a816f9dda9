"""List, read and measure the files of volumes that are directories of this machine. Jobs can create links at
any time: none is followed."""

import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from datasets.storage.base import Blocked, Budget, ContentMissing, DeadlineExceeded
from datasets.storage.files import blocked, remove_tree
from datasets.storage.trees import OWN, TreeSize, walk

_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Measured(TreeSize):
    """Content of a volume. `is_partial`: the measurement reached its limit."""

    is_partial: bool


@dataclass(frozen=True, slots=True)
class Child:
    """An entry of a volume's directory. `kind`: file, directory, link or other; `mtime`: Unix time."""

    name: bytes
    kind: str
    size_bytes: int
    mtime: float


def is_mounted(path: Path, root: Path) -> bool:
    """Return whether a directory is on another file system than the mount root: an unmounted mount point is
    an ordinary directory."""
    try:
        # The trailing dot makes autofs mount a directory that is only listed.
        return os.stat(f"{path}/.").st_dev != root.resolve().parent.stat().st_dev
    except OSError:
        return False


def wait_until_mounted(path: Path, root: Path, seconds: float, budget: Budget, words: str) -> None:
    """Wait until the volume at `path` is mounted below the mount root `root`. Raises Blocked with the message
    `words` after `seconds`, and what `budget` raises."""
    ends = time.monotonic() + seconds
    while not is_mounted(path, root):
        budget.check()
        if time.monotonic() > ends:
            raise Blocked("not_mounted", words)
        time.sleep(_PAUSE_SECONDS)


def remove_own(volume: Path) -> None:
    """Remove the quiesce files from a volume that the storage has copied whole. Raises Blocked if they cannot be
    removed."""
    # Otherwise programs would wait for a snapshot that is never taken.
    own = volume / os.fsdecode(OWN)
    try:
        if own.is_dir() and not own.is_symlink():
            remove_tree(own)
        else:
            own.unlink(missing_ok=True)
    except OSError as error:
        raise blocked(error) from error


class VolumeFiles(ABC):
    """Volumes that are directories below a path of this machine."""

    @abstractmethod
    def path(self, volume: str) -> Path:
        """Return the directory of a volume, which jobs mount."""

    def measure(self, volume: str, budget: Budget, most_files: int) -> Measured:
        """Return the number and size of a volume's files; partial beyond `most_files`, after the deadline of
        `budget`, or at a directory that cannot be read. Raises ContentMissing if there is no such volume, and
        Cancelled."""
        files = size = 0
        try:
            for _, names, descriptor in walk(self.path(volume)):
                budget.check()
                for name in names:
                    with suppress(FileNotFoundError):
                        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                        if not stat.S_ISDIR(found.st_mode):
                            files, size = files + 1, size + found.st_size
                if files > most_files:
                    return Measured(files, size, is_partial=True)
        except FileNotFoundError as error:
            raise ContentMissing(f"The directory of the volume {volume} is not there.") from error
        except (DeadlineExceeded, PermissionError, RecursionError):
            return Measured(files, size, is_partial=True)
        return Measured(files, size, is_partial=False)

    def is_there(self, volume: str, path: bytes) -> bool:
        """Return whether the volume has exactly this path, which leads through no link; a link itself counts."""
        try:
            # Opens nothing, so that a pipe or a link is found too.
            with self._opened(volume, path, os.O_PATH):
                return True
        except ContentMissing:
            return False

    def children(self, volume: str, directory: bytes, after: bytes, limit: int) -> list[Child]:
        """Return at most `limit` entries of a directory, sorted by name, beginning after the name `after`. Raises
        ContentMissing if there is no such directory, or its path leads through a link."""
        with self._opened(volume, directory, os.O_DIRECTORY) as descriptor, os.scandir(descriptor) as entries:
            names = (os.fsencode(entry.name) for entry in entries)
            wanted = sorted(name for name in names if name > after and (directory or name != OWN))
            found = (_child(descriptor, name) for name in wanted[:limit])
            return [child for child in found if child is not None]

    def open(self, volume: str, path: bytes) -> tuple[BinaryIO, int]:
        """Return a regular file for reading, and its size in bytes. Raises ContentMissing if there is none, or its
        path leads through a link."""
        with self._opened(volume, path, 0) as descriptor:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise ContentMissing("This is not a file.")
            # A duplicate, because the block closes its own descriptor.
            return os.fdopen(os.dup(descriptor), "rb"), found.st_size

    @contextmanager
    def _opened(self, volume: str, path: bytes, flags: int) -> Iterator[int]:
        """Context manager that opens a path with `flags` of os.open, component by component, so that no link is
        followed, even one that a job creates meanwhile. Raises ContentMissing if there is no such path or it
        leads through a link."""
        # O_NONBLOCK, because opening a named pipe would wait for its other end.
        wanted = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        steps = [step for step in path.split(b"/") if step]
        if any(step in (b".", b"..") for step in steps) or steps[:1] == [OWN] or b"\0" in path:
            raise ContentMissing("There is no such path in the volume.")
        descriptor = -1
        try:
            descriptor = os.open(self.path(volume), wanted | os.O_DIRECTORY)
            for place, step in enumerate(steps):
                is_last = place == len(steps) - 1
                below = os.open(step, wanted | (flags if is_last else os.O_DIRECTORY), dir_fd=descriptor)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        except OSError as error:
            raise ContentMissing("There is no such path in the volume.") from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _child(descriptor: int, name: bytes) -> Child | None:
    try:
        found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except FileNotFoundError:
        return None
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    kind = next((word for is_kind, word in kinds if is_kind(found.st_mode)), "other")
    return Child(name, kind, found.st_size if kind == "file" else 0, found.st_mtime)
