"""Copy, share and flush files. What the file system supports is found out by trying."""

import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import stat
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Self

from datasets.storage.base import DISK_FULL, Blocked
from datasets.storage.contents import Sharing

_FICLONE = 0x40049409
# Error numbers of file systems that cannot share extents, or not between these two files.
_CANNOT_CLONE = frozenset(
    (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS, errno.EINVAL, errno.EAGAIN)
)
_CHUNK_BYTES = 4 << 20
# Interval of attempts to get a lock within a time limit, which flock itself does not have.
_LOCK_POLL_SECONDS = 0.05
READ_ONLY = 0o444
# Limit on the pieces of one writev (IOV_MAX of Linux and macOS).
_IOV_MOST = 1024
# Files from this size on are written past the page cache: to get new memory for it costs more than all else in a sync.
_DIRECT_FROM_BYTES = 128 << 10
# Size of a direct write. Its address, offset and size must be multiples of the device's block.
_DIRECT_BYTES, _BLOCK_BYTES = 4 << 20, 4096
# New bytes from which on a flush begins while more is written.
_EARLY_BYTES = 64 << 20
# Of <linux/fs.h>: ioctls for the flags of a file, and the flag that `chattr +T` sets.
_GET_FLAGS, _SET_FLAGS, _TOP_DIRECTORY = 0x80086601, 0x40086602, 0x00020000
# `renew_file` leaves a file as it is whose change time is this old at most: a version that was just written may have
# ten thousands, which are removed only after days.
RENEWED_SECONDS = 60.0
# Error numbers of a full disk, or of a user's full quota.
FULL_DISK = frozenset((errno.ENOSPC, errno.EDQUOT))


@contextmanager
def locked(path: Path, kind: int, seconds: float | None = None) -> Iterator[None]:
    """Context manager that holds a lock (fcntl.LOCK_SH or LOCK_EX) on a file, which is created if missing. Waits
    without limit, or for `seconds` and then raises Blocked."""
    # Closing the file unlocks it.
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
                words = "Unused content is being removed from this storage; try again in some minutes."
                raise Blocked("in_use", words) from None
        time.sleep(_LOCK_POLL_SECONDS)


def is_locked(path: Path) -> bool:
    """Return whether a process holds an exclusive lock (see `locked`) on a file, which is created if missing."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def reflink(source: Path | bytes, target: Path | str) -> bool:
    """Make `target` share the extents of `source`; return False if the file system cannot. Raises OSError for
    other errors."""
    if os.stat(source).st_dev in _no_reflink:
        return False
    with open(source, "rb") as old, open(target, "xb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
            return True
        except OSError as error:
            if error.errno not in _CANNOT_CLONE:
                raise
            # These concern the whole file system, the others only these two files.
            if error.errno in (errno.ENOTSUP, errno.ENOTTY, errno.ENOSYS):
                _no_reflink.add(os.fstat(old.fileno()).st_dev)
    os.unlink(target)
    return False


_no_reflink: set[int] = set()


def hard_link(source: Path | bytes, target: Path | str) -> bool:
    """Make `target` a hard link to `source`; return False across file systems, at the limit of links or without
    permission. Raises OSError for other errors."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.EACCES):
            return False
        raise
    return True


def share_file(
    source: Path, target: Path, mode: int, copied: Callable[[int], None] = lambda _: None
) -> Sharing:
    """Create `target` with the bytes of `source` and the mode `mode`, by reflink, else by hard link if its mode is
    READ_ONLY, else by copy. Return which it was. `copied`: as the `check` of `copy_file`. Raises OSError if `target`
    exists."""
    shared = Sharing.COPY
    if reflink(source, target):
        shared = Sharing.REFLINK
    elif mode == READ_ONLY and hard_link(source, target):
        shared = Sharing.HARD_LINK
    else:
        copy_file(source, target, copied)
    if target.stat().st_mode & 0o777 != mode:
        target.chmod(mode)
    return shared


def copy_file(source: Path | bytes, target: Path, check: Callable[[int], None] = lambda _: None) -> None:
    """Copy a file's bytes to the new file `target`. Keeps holes, so that a sparse copy takes no more space than
    its data. `check` is called before each piece with the number of bytes before it; its exception ends the copy.
    Raises OSError if `target` exists."""
    with open(source, "rb") as old, open(target, "xb") as new:
        size = os.fstat(old.fileno()).st_size
        for start, end in _data(old.fileno(), size):
            _copy_range(old.fileno(), new.fileno(), start, end, check)
        # A hole at the end has no data that would have extended the file.
        os.ftruncate(new.fileno(), size)


def _copy_range(old: int, new: int, start: int, end: int, check: Callable[[int], None]) -> None:
    os.lseek(new, start, os.SEEK_SET)
    while start < end:
        check(start)
        sent = os.sendfile(new, old, start, min(_CHUNK_BYTES, end - start))
        if not sent:
            # The file was truncated since.
            return
        start += sent


def _data(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, length) of the ranges of a file that are not holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                # Only a hole is left.
                return
            raise
        end = min(os.lseek(file, start, os.SEEK_HOLE), size)
        yield start, end


def write_new(path: Path | str, *pieces: bytes | memoryview, mode: int = READ_ONLY) -> None:
    """Create a file with `mode` and write all pieces to it. Raises OSError if it exists or cannot be written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        if sum(map(len, pieces)) >= _DIRECT_FROM_BYTES and _set_direct(descriptor, True):
            return _write_direct(descriptor, pieces)
        for start in range(0, len(pieces), _IOV_MOST):
            _write_all(descriptor, pieces[start : start + _IOV_MOST])
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, pieces: Sequence[bytes | memoryview]) -> None:
    # Not joined first: that copies the bytes once more.
    written = os.writev(descriptor, pieces)
    if written == sum(map(len, pieces)):
        return
    # Interrupted by a signal, or more than one call may write (2 GiB on Linux).
    left = memoryview(b"".join(pieces))[written:]
    while left:
        left = left[os.write(descriptor, left) :]


class _Buffer(threading.local):
    """A buffer of each thread, aligned to pages. Its memory is used again and again: new memory costs more than the
    copy."""

    def __init__(self) -> None:
        self.view = memoryview(mmap.mmap(-1, _DIRECT_BYTES))


_buffer = _Buffer()


def _set_direct(descriptor: int, is_direct: bool) -> bool:
    """Make writes bypass the page cache, or not; return False if the file system has no such writes."""
    direct = getattr(os, "O_DIRECT", 0)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~direct
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | direct if is_direct else flags)
    except OSError:
        return False
    return bool(direct)


def _write_direct(descriptor: int, pieces: Sequence[bytes | memoryview]) -> None:
    """Write all pieces to a file that is set to direct writes, from where they are or by way of a buffer. What does not
    fill a block at the end is written through the page cache: cutting a longer file would read its last block."""
    if len(pieces) == 1 and _is_aligned(pieces[0]):
        _write_end(descriptor, memoryview(pieces[0]))
        return
    buffer, filled = _buffer.view, 0
    for piece in pieces:
        left = memoryview(piece)
        while left:
            count = min(len(left), _DIRECT_BYTES - filled)
            buffer[filled : filled + count] = left[:count]
            left, filled = left[count:], filled + count
            if filled == _DIRECT_BYTES:
                _write_view(descriptor, buffer)
                filled = 0
    _write_end(descriptor, buffer[:filled])


def _is_aligned(piece: bytes | memoryview) -> bool:
    """Return whether a direct write may read a piece from where it is."""
    # Python gives no address of read-only memory, and places none of it at a page.
    if isinstance(piece, bytes) or piece.readonly:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(piece)) % _BLOCK_BYTES == 0


def _write_end(descriptor: int, rest: memoryview) -> None:
    whole = len(rest) - len(rest) % _BLOCK_BYTES
    _write_view(descriptor, rest[:whole])
    _set_direct(descriptor, False)
    _write_view(descriptor, rest[whole:])


def _write_view(descriptor: int, left: memoryview) -> None:
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except OSError as error:
            # A device with larger blocks, or a file system that reports only here that it has no direct writes.
            if error.errno != errno.EINVAL or not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise
            _set_direct(descriptor, False)


def write_flushed(staged: Path | str, target: Path, data: bytes) -> None:
    """Write a file atomically and durably, by way of the temporary file `staged`: when this returns, `target` is
    complete and survives a power cut. Flushes this file alone: flushing the file system waits for the writes of
    all programs."""
    write_new(staged, data)
    _fsync(staged, os.O_RDONLY)
    os.rename(staged, target)
    sync_directory(target.parent)


def remove_tree(root: Path) -> None:
    """Remove a directory tree of any depth, including directories without write permission. Raises OSError if a file
    cannot be removed."""
    try:
        shutil.rmtree(root)
    except PermissionError:
        _permit(root)
        shutil.rmtree(root)
    except (OSError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno != errno.EMFILE:
            raise
        # shutil.rmtree needs a stack frame and a descriptor for each level.
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
    """Block until all writes to the file system of `path` are on disk. Raises OSError if a write failed."""
    with open_directory(path) as descriptor:
        sync_from(descriptor)


@contextmanager
def open_directory(path: Path | bytes) -> Iterator[int]:
    """Context manager with a descriptor of a directory. Raises OSError if it cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_from(descriptor: int) -> None:
    """Block until all writes to the file system of an open file are on disk. Raises OSError if a write failed since
    the file was opened, also if another flush met the error first, which the kernel reports to a file that is opened
    later no more."""
    # This waits for the journal once; an fsync of each of thousands of files would wait for it every time.
    if libc().syncfs(descriptor) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make_spread(directory: Path | bytes) -> None:
    """Create a directory, unless it exists, below which ext4 puts each new directory into another part of the disk. By
    default they lie together, where others were removed of late, and to create a file takes ten times as long there:
    ext4 passes over all inodes that were removed within five minutes. Other file systems are left as they are."""
    os.makedirs(directory, exist_ok=True)
    # The file system, or the operating system, may have no such flag.
    with open_directory(directory) as descriptor, suppress(OSError):
        [flags] = struct.unpack("i", fcntl.ioctl(descriptor, _GET_FLAGS, bytes(4)))
        if not flags & _TOP_DIRECTORY:
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("i", flags | _TOP_DIRECTORY))


class EarlyFlush:
    """Flushes the file system of `path` while much is written to it, so that the flush at the end has little left.
    Context manager. Reports no errors: the flush at the end must be a `sync_from` a file that was opened before."""

    def __init__(self, path: Path) -> None:
        self._path, self._flushed = path, 0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread:
            self._thread.join()

    def advance(self, written: int) -> None:
        """Begin a flush, unless one is under way or few of the `written` bytes are new since the last began."""
        if written - self._flushed < _EARLY_BYTES or (self._thread and self._thread.is_alive()):
            return
        self._flushed = written
        self._thread = threading.Thread(target=self._flush)
        self._thread.start()

    def _flush(self) -> None:
        with suppress(OSError):
            sync_file_system(self._path)


def sync_directory(path: Path) -> None:
    """Flush a directory, so that the names of its files are on disk. Raises OSError if that fails."""
    _fsync(path, os.O_RDONLY | os.O_DIRECTORY)


def _fsync(path: Path | str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def blocked(error: OSError) -> Blocked | OSError:
    """Return Blocked with advice for operators if the file system is full, does not answer or forbids writing; any
    other error unchanged."""
    if error.errno in FULL_DISK:
        return Blocked(
            DISK_FULL, "The disk of this storage is full; free space, then repeat: what was stored is kept."
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return Blocked("not_writable", f"The folder of this storage cannot be written: {error.strerror}.")
    if error.errno in (errno.EIO, errno.ESTALE, errno.ENOTCONN):
        return Blocked("unreachable", f"The file system of this storage does not answer: {error.strerror}.")
    return error


@cache
def libc() -> ctypes.CDLL:
    """Return the C library of this process."""
    return ctypes.CDLL(None, use_errno=True)


def has_entries(folder: Path) -> bool:
    """Return whether a directory exists and is not empty."""
    return folder.is_dir() and any(folder.iterdir())


def changed_at(path: Path) -> float:
    """Return the inode's change time (Unix time); 0.0 if the file does not exist."""
    try:
        return path.stat().st_ctime
    except FileNotFoundError:
        return 0.0


def renew_file(path: Path | str) -> bool:
    """Set the file's change time, and nothing else, to now, unless it is at most RENEWED_SECONDS old. Return False if
    the file does not exist."""
    try:
        status = os.stat(path)
        if time.time() - status.st_ctime > RENEWED_SECONDS:
            # Only for its effect on the change time, which a chmod sets even if the mode stays the same.
            os.chmod(path, stat.S_IMODE(status.st_mode))
    except FileNotFoundError:
        return False
    return True
