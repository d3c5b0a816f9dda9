"""Trees that jobs of this machine use before their files are on disk, and how they are known after a power cut.

A flush waits for everything that is written to the disk, also by other programs. The kernel serves what is not yet
written from memory to all processes of the machine, so jobs need not wait for it. After a power cut such files may be
empty or incomplete: a tree that was being used is marked until it is flushed, with the identity of the running kernel.
See docs/decisions/0105-a-cache-is-ready-before-it-is-flushed.md.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from datasets.ingest.nearby import machine_mark
from datasets.storage.files import libc, sync_directory

# f_type of file systems that one machine mounts at a time (statfs(2)): ext2 to 4, XFS, Btrfs, tmpfs. On others, such as
# NFS, a program of another machine would see files that this machine has not written yet as empty.
_OF_ONE_MACHINE = frozenset((0xEF53, 0x58465342, 0x9123683E, 0x01021994))
# More than the size of struct statfs.
_STATFS_BYTES = 256


class UnflushedMarks:
    """The marks, in an existing folder of their own: an empty file `<key>.<kernel>` for each tree."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def may_add(self) -> bool:
        """Return whether trees may be used unflushed here: only this machine mounts the file system, and a restart of
        the kernel is noticed."""
        return machine_mark() != "" and _kind_of(self._folder) in _OF_ONE_MACHINE

    def add(self, key: str) -> None:
        """Mark a tree; the mark is on disk afterwards. Replaces marks of earlier kernels. Raises OSError."""
        own = f"{key}.{machine_mark()}"
        (self._folder / own).touch()
        sync_directory(self._folder)
        for other in self._of(key):
            if other != own:
                (self._folder / other).unlink(missing_ok=True)

    def remove(self, key: str) -> None:
        """Remove the marks of a tree, if it has any."""
        for name in self._of(key):
            (self._folder / name).unlink(missing_ok=True)

    def has(self, key: str) -> bool:
        """Return whether a tree is marked."""
        return any(True for _ in self._of(key))

    def interrupted(self) -> set[str]:
        """Return the keys of the trees that were marked when an earlier kernel of this machine stopped."""
        names, kernel = os.listdir(self._folder), machine_mark()
        marks = (name.rpartition(".") for name in names)
        return {
            key for key, _, made_by in marks if key and made_by != kernel and f"{key}.{kernel}" not in names
        }

    def _of(self, key: str) -> Iterator[str]:
        return (name for name in os.listdir(self._folder) if name.rpartition(".")[0] == key)


def _kind_of(path: Path) -> int:
    """Return the f_type of a file system; 0 if it cannot be read."""
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    with suppress(OSError, AttributeError):
        if libc().statfs(os.fsencode(path), found) == 0:
            return ctypes.c_long.from_buffer(found).value & 0xFFFFFFFF
    return 0
