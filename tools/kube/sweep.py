"""Remove what is left of clusters whose outer process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from tools.kube import cell

PREFIX = "trainyard-kube-"
SECONDS_TO_BEGIN = (
    600  # a directory without a lock is one that was just made, or one whose maker died at once
)


def sweep() -> list[Path]:
    """Remove the state directories and control groups of dead clusters below the machine's temporary
    directory; return these directories."""
    found = sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    dead = [directory for directory in found if is_dead(directory)]
    for directory in dead:
        remove(directory)
    return dead


def is_dead(state_dir: Path) -> bool:
    """Return whether no process of the cluster in this directory is left: while one runs, the lock file is
    locked. A directory without one counts as dead only after SECONDS_TO_BEGIN."""
    try:
        lock = os.open(state_dir / "lock", os.O_RDWR)
    except FileNotFoundError:
        # A cluster that is starting has no lock file yet.
        return _age_seconds(state_dir) > SECONDS_TO_BEGIN
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _age_seconds(directory: Path) -> float:
    """Return the age of a directory in seconds; 0 if it does not exist."""
    try:
        return time.time() - directory.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def remove(state_dir: Path) -> None:
    """Remove a dead cluster's directory and control groups; nothing else of it is left."""
    cell.remove_cgroups(cell.cgroup_of(state_dir))
    shutil.rmtree(state_dir, ignore_errors=True)
