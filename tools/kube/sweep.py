"""Remove what clusters left whose outer process was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from tools.kube import cell

PREFIX = "trainyard-kube-"


def sweep() -> list[Path]:
    """Remove the state directories and control groups of dead clusters below the machine's temporary directory."""
    found = sorted(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    dead = [directory for directory in found if is_dead(directory)]
    for directory in dead:
        remove(directory)
    return dead


def is_dead(state_dir: Path) -> bool:
    """True when a cluster was here and no process of it is left: its lock is held by all of them."""
    try:
        lock = os.open(state_dir / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False  # its starter has made it and not begun yet
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def remove(state_dir: Path) -> None:
    """A dead cluster's directory and control groups. Its processes, mounts and interfaces ended with it."""
    cell.remove_cgroups(cell.cgroup_of(state_dir))
    shutil.rmtree(state_dir, ignore_errors=True)
