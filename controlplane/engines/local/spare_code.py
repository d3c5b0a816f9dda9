"""Spare copies of code trees, one of which becomes the working directory of a pod by a rename.

To write 2,000 files takes a tenth of a second, for which a pod would wait. So after a pod has got a tree, a thread
writes it once more for the next one. If that has another tree of the project, only the files that differ are written.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from controlplane.engines.base import CodeSource, EngineRefused
from controlplane.engines.local.code import place_code, place_entries
from datasets.code_manifest import Entry
from datasets.code_store import FOLDER, ContentCorrupt, ProjectCode
from datasets.storage.files import make_spread

# Of one project. A larger tree has no copy: it would take the disk's room for little.
KEPT_MOST, LARGEST_BYTES = 2, 100 << 20
# A copy that is written, or changed, for longer was left by a process that was killed.
ABANDONED_SECONDS = 3600.0


class SpareCode:
    """The spare copies below a state directory, which all its processes share. Thread-safe."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._writing = threading.Lock()

    def place(self, code: CodeSource, target: Path) -> None:
        """Write a code tree into the directory `target`, which exists. Raises as `place_code`."""
        store = ProjectCode(self._state_dir / FOLDER, code.project_id)
        if os.listdir(target) or not store.has(code.tree) or not self._took(store, code.tree, target):
            place_code(code, self._state_dir, target)

    def prepare(self, code: CodeSource) -> None:
        """Write a copy of a tree for the next pod, in a thread, unless there is one or another is being written."""
        if self._writing.acquire(blocking=False):
            threading.Thread(target=self._prepare, args=(code,), daemon=True).start()

    def _took(self, store: ProjectCode, tree: str, target: Path) -> bool:
        """Move a copy of the tree, or of a similar one, into the place of `target`, which is empty. Return False if
        there is none."""
        for path in _by_age(store.spare, first=tree):
            own = store.spare / f".{uuid4().hex}"
            try:
                entries = store.entries(tree) if path.name != tree else ()
                before = store.entries(path.name) if entries else ()
                if entries and len(set(before).intersection(entries)) < len(entries) / 2:
                    continue
                # From here on no other process takes it.
                path.rename(own)
                _change(store, own, before, entries)
                own.rename(target)
                return True
            except (OSError, ContentCorrupt):
                # Taken or removed by another process, or its files cannot be written: writing all says why.
                shutil.rmtree(own, ignore_errors=True)
        return False

    def _prepare(self, code: CodeSource) -> None:
        store = ProjectCode(self._state_dir / FOLDER, code.project_id)
        own = store.spare / f".{uuid4().hex}"
        try:
            # It only makes starts faster: without it a pod's start writes all files, and says what is wrong.
            with suppress(OSError, EngineRefused):
                is_small = sum(entry.size for entry in store.entries(code.tree)) <= LARGEST_BYTES
                if is_small and not (store.spare / code.tree).exists():
                    # Apart from each other, few copies meet inodes that were removed of late.
                    make_spread(store.spare)
                    own.mkdir(mode=0o700)
                    place_code(code, self._state_dir, own)
                    own.rename(store.spare / code.tree)
                _remove_old(store.spare)
        finally:
            shutil.rmtree(own, ignore_errors=True)
            self._writing.release()


def _change(store: ProjectCode, root: Path, before: Sequence[Entry], after: Sequence[Entry]) -> None:
    """Make the files of one tree below `root` those of another."""
    same = set(before).intersection(after)
    for entry in before:
        if entry not in same:
            (root / entry.path).unlink()
            _remove_empty(root, entry.path)
    place_entries(store, [entry for entry in after if entry not in same], root)


def _remove_empty(root: Path, path: str) -> None:
    # Of the other tree, so this one may have a file there.
    with suppress(OSError):
        while path := os.path.dirname(path):
            (root / path).rmdir()


def _by_age(folder: Path, first: str = "") -> list[Path]:
    """Return the copies in a folder, the youngest first; before them that with the name `first`."""
    with suppress(OSError):
        paths = [path for path in folder.iterdir() if not path.name.startswith(".")]
        return sorted(paths, key=lambda path: (path.name == first, path.stat().st_mtime), reverse=True)
    return []


def _remove_old(folder: Path) -> None:
    for path in _by_age(folder)[KEPT_MOST:]:
        gone = folder / f".{uuid4().hex}"
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    for path in folder.glob(".*"):
        if path.stat().st_ctime < time.time() - ABANDONED_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
