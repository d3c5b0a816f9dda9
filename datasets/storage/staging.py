"""The folder in which each process has a private one for files that are not complete, or that it removes."""

import fcntl
import os
import shutil
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

LOCK = ".lock"


class StagingFolder:
    """The private folder of one user of `root`, created and locked on first use and removed with this object."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._own: Path | None = None
        self._own_lock = threading.Lock()

    def fresh(self) -> Path:
        """Return a path in the private folder that does not exist."""
        return self._folder() / uuid4().hex

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Context manager with the path of a new file in a private folder. The file is removed at the end unless
        it was renamed."""
        fresh = self.fresh()
        try:
            yield fresh
        finally:
            fresh.unlink(missing_ok=True)

    def remove_leftovers(self) -> None:
        """Remove what killed processes left."""
        for path in self._root.iterdir():
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif (handle := _lock_unheld(path)) is not None:
                _remove_locked(path, handle)

    def _folder(self) -> Path:
        with self._own_lock:
            while self._own is None:
                path = self._root / uuid4().hex
                path.mkdir()
                if (handle := _lock_unheld(path)) is None:
                    continue
                if not (path / LOCK).exists():
                    # Another process removed it before it was locked.
                    os.close(handle)
                    continue
                self._own = path
                weakref.finalize(self, _remove_locked, path, handle)
            return self._own


def _lock_unheld(folder: Path) -> int | None:
    """Return a descriptor that holds a folder's lock; None if another process holds it or the folder is
    gone."""
    try:
        # NFS locks only files opened for writing, and not directories.
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _remove_locked(folder: Path, handle: int) -> None:
    # A process that locks the folder afterwards finds it removed and creates its own.
    gone = folder.with_name(uuid4().hex)
    with suppress(OSError):
        os.rename(folder, gone)
    # NFS keeps the names of open files.
    os.close(handle)
    shutil.rmtree(gone, ignore_errors=True)
