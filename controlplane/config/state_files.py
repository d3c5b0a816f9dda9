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
    """Set the umask of this process, create the directory if missing, and remove other users' permissions on it, but
    not on its contents (see `close_below`). Raise SettingInvalid for a shared directory such as /tmp, OSError if the
    system refuses."""
    os.umask(UMASK)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & stat.S_ISVTX:
        raise SettingInvalid(
            f"TRAINYARD_STATE_DIR={directory} is shared by the users of this machine; name a directory of its own."
        )
    _close(directory)


def close_below(directory: Path) -> None:
    """Remove other users' permissions from everything below the directory, except inside pods' directories and
    volumes. An earlier version, a restored backup or another umask may have left some. Symbolic links are not
    followed."""
    for path in _below(directory, directory / WORK):
        _close(path)


def close_database(name: str) -> None:
    """Remove other users' permissions from an SQLite file and its existing side files; SQLite gives new side files
    the mode of the database."""
    for suffix in SQLITE_SUFFIXES:
        _close(Path(f"{name}{suffix}"))


def _below(directory: Path, work: Path) -> Iterator[Path]:
    """Yield the paths below `directory`, without symbolic links. Skips the contents of pods' directories (below
    `work`) and of CLOSED_AT_TOP, which are private already and can contain millions of files."""
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
    """Remove other users' permissions from one path. Does nothing for a file that another user owns or that was
    deleted."""
    try:
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except (FileNotFoundError, PermissionError):
        return
