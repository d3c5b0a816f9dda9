"""The programs that `bench.datasets_kills` kills: a sync, a fill, two snapshots and a restore, on directories.

Each sends SIGKILL to its own process group, with all its processes, when its work has come to a given moment. So
the moment does not depend on the speed of the machine.
"""

import os
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path

from datasets.ingest.engine import sync_tree
from datasets.ingest.reading import Progress
from datasets.manifests import decode
from datasets.storage.cache import CacheStore
from datasets.storage.folder import FolderLake
from datasets.storage.folder_sink import sink_of_folder
from datasets.storage.tree_fill import Progress as Filled
from datasets.storage.volumes import FolderVolumes

NEVER = ""


class Moment:
    """When a program ends itself. `text`: a number is a part of the bytes (above 1: of the second snapshot); another
    text names a call, as module:function#number, at whose begin it ends; NEVER is no moment."""

    def __init__(self, text: str) -> None:
        name, is_call, number = text.partition("#")
        self._part = float("inf") if is_call or text == NEVER else float(text)
        if is_call:
            _replace(name, int(number))

    def passed(self, done: int, total: int, before: float = 0.0) -> None:
        """End the program if this part of its bytes is done. `before`: what to add to the part."""
        if before + done / total >= self._part:
            _end()


def _replace(name: str, number: int) -> None:
    """End the program when the function `name`, module:function, is called for the `number`th time."""
    module, _, path = name.partition(":")
    *above, last = path.split(".")
    owner = import_module(module)
    for part in above:
        owner = getattr(owner, part)
    function, calls = getattr(owner, last), count(1)

    def counted(*values: object, **named: object) -> object:
        if next(calls) == number:
            _end()
        return function(*values, **named)

    setattr(owner, last, counted)


def _end() -> None:
    os.killpg(0, signal.SIGKILL)


def sync(moment: Moment, tree: Path, home: Path) -> None:
    """Store the files below `tree` in the lake of `home`, with the stat index beside the lake."""

    def report(progress: Progress) -> bool:
        moment.passed(progress.bytes_done, progress.size_bytes)
        return True

    home.mkdir(exist_ok=True)
    sink = sink_of_folder(home / "lake")
    FolderLake(home / "lake").close()
    found = sync_tree(tree, sink, index=home / "seen", workers=2, report=report)
    assert found.manifest is not None
    assert not found.failed
    found.remember()
    (home / "manifest").write_bytes(found.manifest.encode())


def fill(moment: Moment, lake: Path, home: Path) -> None:
    """Fill a cache in `home` with the version that `sync` stored in `lake`."""
    manifest = decode((lake / "manifest").read_bytes())
    total = sum(manifest.sizes)

    def report(progress: Filled) -> None:
        moment.passed(progress.bytes_done, total)

    CacheStore(home).fill("v", FolderLake(lake / "lake"), manifest, report=report)


def snapshot(moment: Moment, volumes: Path, home: Path) -> None:
    """Take two snapshots of the volume `v` of `volumes` into `home`; the second shares the files of the first."""
    storage, total = beside(home, "volumes", volumes), size_of(volumes / "v")
    storage.take("s1", "v", None, report=lambda _, done: moment.passed(done, total))
    storage.take("s2", "v", "s1", report=lambda _, done: moment.passed(done, total, before=1.0))


def restore(moment: Moment, snapshots: Path, home: Path) -> None:
    """Create a volume in `home` from the second snapshot of `snapshots`."""
    total = size_of(snapshots / "s2" / "tree")
    storage = beside(home, "snapshots", snapshots)
    storage.restore("w", "s2", report=lambda _, done: moment.passed(done, total))


def beside(home: Path, name: str, whole: Path) -> FolderVolumes:
    """Return a storage in `home` whose directory `name` (`volumes` or `snapshots`) is a link to `whole`, that of
    another storage."""
    home.mkdir(exist_ok=True)
    if not (home / name).is_symlink():
        (home / name).symlink_to(whole)
    return FolderVolumes(home)


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


PROGRAMS: dict[str, Callable[..., None]] = {
    "sync": sync,
    "fill": fill,
    "snapshot": snapshot,
    "restore": restore,
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](Moment(sys.argv[2]), *map(Path, sys.argv[3:]))
