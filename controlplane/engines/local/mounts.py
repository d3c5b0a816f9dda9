"""Mount directories for one pod, in a mount namespace of its own. Used by the shim, so it imports only fast
modules."""

from __future__ import annotations

import ctypes
import errno
import os

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC = 0x1, 0x20, 0x1000, 0x4000
MS_UNBINDABLE, MS_PRIVATE, MS_RELATIME = 0x20000, 0x40000, 0x200000
MNT_DETACH = 2
# The flags nosuid, nodev, noexec, noatime and nodiratime, which a remount in a user namespace must not clear. They have
# the same numbers in statvfs and in mount.
KEPT_FLAGS, ST_RELATIME = 0xC0E, 0x1000
# The most entries of a directory that is rebuilt around a new mount point, because each entry is a mount.
ENTRIES_MOST = 5000

Mounts = list[tuple[str, str, bool]]

libc = ctypes.CDLL(None, use_errno=True)


def bind(mounts: Mounts, work_dir: str, scratch: str) -> None:
    """Mount each (source, place, is_read_only) for this process and its children only. Raise OSError if the system
    refuses one.

    A missing place is created in this process's view only: no directory is added to the machine's file system, except
    below the pod's own `work_dir` or another mount. `scratch`: a directory to create, in which a new root is
    assembled. Without root rights a user namespace is used.
    """
    if not mounts:
        return
    _unshare()
    # Otherwise the mounts would propagate to the machine's own namespace.
    _mount(b"none", "/", MS_REC | MS_PRIVATE)
    ours = [work_dir]
    # Outer places first: mounted later, they would hide the places below them.
    for source, place, is_read_only in sorted(mounts, key=lambda mount: mount[1].count("/")):
        if not os.path.isdir(place):
            _make_place(place, ours, scratch)
        _mount(os.fsencode(source), place, MS_BIND | MS_REC)
        if is_read_only:
            # A second call, because the kernel ignores MS_RDONLY when it makes a bind mount.
            _mount(b"none", place, MS_BIND | MS_REMOUNT | MS_RDONLY | _flags(place))
        ours.append(place)


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    if uid == 0:
        _check(libc.unshare(CLONE_NEWNS))
        return
    _check(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
    # Without this the kernel refuses to map groups.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _make_place(place: str, ours: list[str], scratch: str) -> None:
    above = place
    while not os.path.lexists(above):
        above = os.path.dirname(above)
    if not os.path.isdir(above):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), above)
    if not any(f"{above}/".startswith(f"{own}/") for own in ours):
        if above == "/":
            _cover_root(scratch)
        else:
            _cover(above)
    os.makedirs(place)


def _cover(directory: str) -> None:
    """Mount a tmpfs over a directory and bind the directory's entries into it, so that entries can be added that only
    this mount namespace has."""
    mode = os.stat(directory).st_mode & 0o7777
    # Opened before the mount, which hides the entries.
    old = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    _mount(b"tmpfs", directory, 0, b"tmpfs")
    os.chmod(directory, mode)
    _show(f"/proc/self/fd/{old}", directory)
    os.close(old)


def _cover_root(scratch: str) -> None:
    os.makedirs(scratch, exist_ok=True)
    _mount(b"tmpfs", scratch, 0, b"tmpfs")
    # Otherwise the new root would contain itself.
    _mount(b"none", scratch, MS_UNBINDABLE)
    os.chmod(scratch, 0o755)
    _show("/", scratch)
    os.chdir(scratch)
    # With one directory for both, the old root lies on top of the new one until it is detached.
    _check(libc.pivot_root(b".", b"."))
    _check(libc.umount2(b".", MNT_DETACH))
    os.chdir("/")


def _show(source: str, target: str) -> None:
    """Bind-mount every entry of `source` into the empty directory `target`; symbolic links are copied. Raise OSError
    for more than ENTRIES_MOST entries."""
    with os.scandir(source) as found:
        entries = list(found)
    if len(entries) > ENTRIES_MOST:
        raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
    for entry in entries:
        place = f"{target}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), place)
            continue
        if entry.is_dir(follow_symlinks=False):
            os.mkdir(place)
        else:
            # A file can be mounted only on an existing file.
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o600))
        _mount(os.fsencode(entry.path), place, MS_BIND | MS_REC)


def _flags(place: str) -> int:
    """Return the present mount flags of a place; a remount in a user namespace must not clear them."""
    found = os.statvfs(place).f_flag
    return found & KEPT_FLAGS | (MS_RELATIME if found & ST_RELATIME else 0)


def _mount(source: bytes, place: str, flags: int, kind: bytes | None = None) -> None:
    _check(libc.mount(source, os.fsencode(place), kind, flags, None))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
