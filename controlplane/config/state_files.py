"""Make the state directory private: only its owner may list, read or write anything below it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from controlplane.config.environment import SettingInvalid

OTHERS = 0o077
# The umask of every process of the control plane, because its files contain credentials and users' data.
UMASK = 0o077
# Jobs' own directories, in which the job chooses the modes of files.
WORK = "work"
WORK_DEPTH = 2  # work/<job>/<rank>
# Closed themselves, which is enough: containers of `make kube` run as other users in what lies below, and the modes of
# volumes' files are the jobs' to choose.
CLOSED_AT_TOP = ("kube", "volumes")
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


def make_private(directory: Path) -> None:
    """Set the process's umask, create the directory if missing, and remove other users' permissions on it,
    but not below (see `close_below`).

    Raise OSError, or SettingInvalid for a shared directory such as /tmp.
    """
    os.umask(UMASK)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & stat.S_ISVTX:
        raise SettingInvalid(
            f"TRAINYARD_STATE_DIR={directory} is shared by the users of this machine; name a directory of its own."
        )
    _close(directory)


def close_below(directory: Path) -> None:
    """Remove other users' permissions from all files and directories below, which an earlier version, a restored
    backup or another umask may have left. Does not follow symbolic links."""
    for path in _below(directory, directory / WORK):
        _close(path)


def close_database(name: str) -> None:
    """Remove other users' permissions from an SQLite file and its existing side files. New side files get the
    mode of the database from SQLite."""
    for suffix in SQLITE_SUFFIXES:
        _close(Path(f"{name}{suffix}"))


def _below(directory: Path, work: Path) -> Iterator[Path]:
    """Yield every path except symbolic links. Skips the content of pods' own directories, which are private and can
    contain millions of files."""
    for folder, directories, files in os.walk(directory):
        inside = Path(folder)
        directories[:] = [name for name in directories if not (inside / name).is_symlink()]
        yield from (inside / name for name in directories)
        if inside == directory:
            directories[:] = [name for name in directories if name not in CLOSED_AT_TOP]
        if inside.is_relative_to(work) and len(inside.relative_to(work).parts) >= WORK_DEPTH - 1:
            directories.clear()
        yield from (inside / name for name in files)


def _close(path: Path) -> None:
    """Remove other users' permissions from one path. Ignores files of other users, such as a mounted volume's root,
    and files deleted meanwhile."""
    try:
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except (FileNotFoundError, PermissionError):
        return
