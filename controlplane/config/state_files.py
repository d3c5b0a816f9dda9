"""The state directory belongs to one user: only its owner may list, read or write anything below it."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from controlplane.config.environment import SettingInvalid

OTHERS = 0o077
UMASK = 0o077  # of every process of the control plane
WORK = "work"  # jobs' own files: modes below a pod's directory are the job's to choose
WORK_DEPTH = 2  # work/<job>/<rank>
SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


def make_private(directory: Path) -> None:
    """Set the process's umask and close the directory, made if it is missing, to other users. What is below it needs
    `close_below`. Raises OSError, or SettingInvalid for one that several users write to, such as /tmp."""
    os.umask(UMASK)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & stat.S_ISVTX:
        raise SettingInvalid(
            f"TRAINYARD_STATE_DIR={directory} is shared by the users of this machine; name a directory of its own."
        )
    _close(directory)


def close_below(directory: Path) -> None:
    """Take other users' rights from all files and directories below, which an earlier version, a restored backup or
    another umask may have left open. Symbolic links are not followed."""
    for path in _below(directory, directory / WORK):
        _close(path)


def close_database(name: str) -> None:
    """Take other users' rights from an SQLite file and what SQLite keeps beside it, which copies the file's mode."""
    for suffix in SQLITE_SUFFIXES:
        _close(Path(f"{name}{suffix}"))


def _below(directory: Path, work: Path) -> Iterator[Path]:
    """Every path that is no symbolic link. Stops at the pods' own directories: those are private, and the files in
    them can be millions."""
    for folder, directories, files in os.walk(directory):
        inside = Path(folder)
        directories[:] = [name for name in directories if not (inside / name).is_symlink()]
        yield from (inside / name for name in directories)
        if inside.is_relative_to(work) and len(inside.relative_to(work).parts) >= WORK_DEPTH - 1:
            directories.clear()
        yield from (inside / name for name in files)


def _close(path: Path) -> None:
    """Files of other users, such as a mounted volume's root, stay as they are; so does what is gone meanwhile."""
    try:
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
    except (FileNotFoundError, PermissionError):
        return
