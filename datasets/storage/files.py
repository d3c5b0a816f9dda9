"""Copying, sharing and flushing files: what a file system can do, found out by trying."""

import ctypes
import errno
import fcntl
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path

from datasets.storage.base import Blocked

_FICLONE = 0x40049409
# What a file system answers that cannot share extents, or not between these two files.
_CANNOT_CLONE = frozenset(
    (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS, errno.EINVAL, errno.EAGAIN)
)
_CHUNK_BYTES = 4 << 20
# Between two tries to get a lock that is waited for until a deadline.
_LOCK_POLL_SECONDS = 0.05
READ_ONLY = 0o444


@contextmanager
def locked(path: Path, kind: int, seconds: float | None = None) -> Iterator[None]:
    """Hold a lock of this kind (fcntl.LOCK_SH or LOCK_EX) on a file, which is made when it is not there. Waits without
    end, or `seconds`, after which it raises Blocked."""
    # Closing it unlocks.
    with open(path, "a") as file:
        if seconds is None:
            fcntl.flock(file, kind)
        else:
            _lock_within(file.fileno(), kind, seconds)
        yield


def _lock_within(handle: int, kind: int, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= ends:
                words = "Content that nothing names is being removed from this storage, which takes minutes at most."
                raise Blocked("in_use", words) from None
        time.sleep(_LOCK_POLL_SECONDS)


def is_locked(path: Path) -> bool:
    """Return whether LOCK_EX of `locked` is held on a file."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


class Sharing(StrEnum):
    """How bytes came to a second place: reflink, hard link or copy."""

    REFLINK = "reflink"
    HARD_LINK = "hard_link"
    COPY = "copy"


def reflink(source: Path | bytes, target: Path) -> bool:
    """Make `target` share the extents of `source`; False when the file system cannot. Raises OSError for the rest."""
    if os.stat(source).st_dev in _no_reflink:
        return False
    with open(source, "rb") as old, open(target, "xb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
            return True
        except OSError as error:
            if error.errno not in _CANNOT_CLONE:
                raise
            if error.errno in (errno.ENOTSUP, errno.ENOTTY, errno.ENOSYS):
                _no_reflink.add(os.fstat(old.fileno()).st_dev)
    os.unlink(target)
    return False


_no_reflink: set[int] = set()


def hard_link(source: Path | bytes, target: Path) -> bool:
    """Make `target` a hard link to `source`; return False across file systems, at the limit of links or
    without permission."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.EACCES):
            return False
        raise
    return True


def share_file(source: Path, target: Path, mode: int) -> Sharing:
    """Make `target` a file with the bytes of `source`: shared where the file system can. A hard link only where the
    mode stays."""
    shared = Sharing.COPY
    if reflink(source, target):
        shared = Sharing.REFLINK
    elif mode == READ_ONLY and hard_link(source, target):
        shared = Sharing.HARD_LINK
    else:
        copy_file(source, target)
    if target.stat().st_mode & 0o777 != mode:
        target.chmod(mode)
    return shared


def copy_file(source: Path | bytes, target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Copy bytes inside the kernel; holes stay holes, so that a sparse file takes no more than its data. What `check`
    raises ends the copy."""
    with open(source, "rb") as old, open(target, "xb") as new:
        size = os.fstat(old.fileno()).st_size
        for start, end in _data(old.fileno(), size):
            _copy_range(old.fileno(), new.fileno(), start, end, check)
        os.ftruncate(new.fileno(), size)


def _copy_range(old: int, new: int, start: int, end: int, check: Callable[[], None]) -> None:
    os.lseek(new, start, os.SEEK_SET)
    while start < end:
        check()
        sent = os.sendfile(new, old, start, min(_CHUNK_BYTES, end - start))
        if not sent:
            # cut off since
            return
        start += sent


def _data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a file that are no holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                # only a hole is left
                return
            raise
        end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        yield start, end


def write_new(path: Path, *pieces: bytes | memoryview, mode: int = READ_ONLY) -> None:
    """Write a new file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[os.write(descriptor, left) :]
    finally:
        os.close(descriptor)


def write_flushed(staged: Path, target: Path, data: bytes) -> None:
    """Write a file that is at `target` whole, and survives a power cut, once this returns. Waits for this file alone:
    a flush of the file system waits for all that other programs wrote."""
    write_new(staged, data)
    descriptor = os.open(staged, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(staged, target)
    sync_directory(target.parent)


def remove_tree(root: Path) -> None:
    """Remove a directory and all it holds, directories without permission to write included, however deep it is. Raises
    OSError."""
    try:
        shutil.rmtree(root)
    except PermissionError:
        _permit(root)
        shutil.rmtree(root)
    except (OSError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno != errno.EMFILE:
            raise
        # rmtree holds a call and a descriptor for each level.
        subprocess.run(["rm", "-rf", "--", os.fspath(root)], check=False)
        if os.path.lexists(root):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(root)) from error


def _permit(root: Path) -> None:
    os.chmod(root, 0o700)
    for _, names, _, descriptor in os.fwalk(root):
        for name in names:
            if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                os.chmod(name, 0o700, dir_fd=descriptor)


def sync_file_system(path: Path) -> None:
    """Return once all that was written to the file system of `path` is on disk: one wait for thousands of files, where
    an fsync of each waits for the journal every time."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if _libc().syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Return once the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def blocked(error: OSError) -> Blocked | OSError:
    """Return what a person can do about an error of the file system, or the error itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Blocked(
            "disk_full", "The disk of this storage is full; make room, then repeat: what was stored is kept."
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return Blocked("not_writable", f"The folder of this storage cannot be written: {error.strerror}.")
    if error.errno in (errno.EIO, errno.ESTALE, errno.ENOTCONN):
        return Blocked("unreachable", f"The file system of this storage does not answer: {error.strerror}.")
    return error


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def changed_at(path: Path) -> float:
    """Return the change time of a file's inode, 0.0 when it is not there."""
    try:
        return path.stat().st_ctime
    except FileNotFoundError:
        return 0.0


def renew_file(path: Path) -> bool:
    """Set the change time to now and nothing else; False when the file is not there."""
    try:
        path.chmod(path.stat().st_mode & 0o777)
    except FileNotFoundError:
        return False
    return True
