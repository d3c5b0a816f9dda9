"""Caches of one location: versions as trees of read-only files that share contents by hard link.

    contents/ab/cdef...  one content each, verified against its digest; "x" at the end: executable
    manifests/<key>      of every tree that exists or is being created
    trees/<key>          the files of a version, hard links into `contents`
    staging/<process>/   files before they are renamed; locked by the process that writes them
    removed/<key>        the manifest of a removed tree, until its contents are removed
    locks/<key>          held while a tree is created or removed

A tree is created atomically, by rename after a flush. If a process is killed, its contents remain, and the
next fill verifies and uses them. Fills and removals of different trees run concurrently: a fill detects that
a content was removed and stores it again.
"""

import errno
import fcntl
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from datasets.ingest.reader import hash_file
from datasets.manifests import Manifest, decode
from datasets.storage.base import UNLIMITED, Budget, Lake
from datasets.storage.files import blocked, copy_file, sync_directory, sync_file_system, write_new
from datasets.storage.tree_fill import (
    Report,
    TreeFill,
    content_path,
    contents_of,
    digest_of,
    present,
    silent,
    store_names,
)

PART, LOCK = ".part", ".lock"
_FOLDERS = ("contents", "manifests", "trees", "staging", "removed", "locks")


class CacheStore:
    """The caches of a location, in a directory that this process can write to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._staging: Path | None = None
        self._staging_lock = threading.Lock()
        try:
            for name in _FOLDERS:
                (root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise blocked(error) from error

    def tree(self, key: str) -> Path:
        """Return the directory in which a version's files are once it is filled. It may not exist."""
        return tree_below(self.root, key)

    def keys(self) -> set[str]:
        """Return the keys of all trees, complete or not."""
        return {path.name for path in (self.root / "manifests").iterdir()}

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifests of all complete trees."""
        found = {key: self._manifest(key) for key in self.keys() if self.tree(key).is_dir()}
        return {key: manifest for key, manifest in found.items() if manifest is not None}

    def lacking_bytes(self, manifest: Manifest) -> int:
        """Return the bytes of contents that a fill would have to copy."""
        contents = os.open(self.root / "contents", os.O_RDONLY | os.O_DIRECTORY)
        try:
            sizes = contents_of(manifest)
            return sum(sizes[name] for name in sizes.keys() - present(contents, sizes))
        finally:
            os.close(contents)

    def fill(
        self, key: str, lake: Lake, manifest: Manifest, budget: Budget = UNLIMITED, report: Report = silent
    ) -> None:
        """Create the tree of a version, or repair an existing tree whose damaged contents were removed. Does not copy
        contents that other trees or an earlier fill stored. Raises ContentMissing or ContentDamaged if the lake lacks
        a content or has it damaged, Blocked if the copy cannot be written, and what `budget` raises; copied contents
        stay for the next fill."""
        try:
            with self._locked(key):
                self._remove_leftovers()
                if self.tree(key).is_dir():
                    self._repair(self.tree(key), lake, manifest, budget)
                    return
                # Write the manifest before the contents: a concurrent removal then keeps the contents.
                self._write_manifest(key, manifest)
                self._create(self.tree(key), lake, manifest, budget, report)
        except OSError as error:
            raise blocked(error) from error

    def remove(self, key: str, is_wanted: Callable[[], bool] = lambda: False) -> int:
        """Remove a tree, complete or not, with the contents that no other tree uses. Return the bytes freed.
        `is_wanted` is called while no fill of the tree runs; if it returns True, nothing is removed."""
        with self._locked(key):
            # Called under the tree's lock, so that no fill of it is running.
            if is_wanted():
                return 0
            self._remove_leftovers()
            gone = self._own_staging() / uuid4().hex
            # Rename first, so that the tree disappears at once and is never half removed.
            if self.tree(key).is_dir():
                os.rename(self.tree(key), gone)
            for path in (gone, self.tree(key + PART)):
                shutil.rmtree(path, ignore_errors=True)
            with suppress(FileNotFoundError):
                # Kept until the contents are gone: what a killed process left is found by it.
                os.rename(self.root / "manifests" / key, self.root / "removed" / key)
            return self._finish_removal(key)

    def remove_damaged(self, digests: Iterable[bytes]) -> set[str]:
        """Hash the files of the contents with these digests and remove damaged ones from `contents`. Return the
        keys of the trees that use one of these contents which `contents` lacks now: they keep the damaged file
        until a fill repairs it."""
        named = {digest.hex() + end for digest in digests for end in ("", "x")}
        for name in named:
            if self._is_damaged(name):
                self._content(name).unlink(missing_ok=True)
        lacking = {name for name in named if not self._content(name).exists()}
        return {
            key for key, manifest in self.manifests().items() if not lacking.isdisjoint(contents_of(manifest))
        }

    def _is_damaged(self, name: str) -> bool:
        try:
            with open(self._content(name), "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                return hash_file(file.fileno(), size) != digest_of(name)
        except FileNotFoundError:
            return False

    def trusted(self) -> set[str]:
        """Return the contents that complete trees use: they were verified and flushed."""
        return {name for manifest in self.manifests().values() for name in contents_of(manifest)}

    def content(self, name: str) -> Path:
        """Return the path of a content's file; creates its directory."""
        path = self._content(name)
        path.parent.mkdir(exist_ok=True)
        return path

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """Context manager with the path of a new file in a private folder. The file is removed at the end unless
        it was renamed."""
        fresh = self._own_staging() / uuid4().hex
        try:
            yield fresh
        finally:
            fresh.unlink(missing_ok=True)

    def _create(self, tree: Path, lake: Lake, manifest: Manifest, budget: Budget, report: Report) -> None:
        part = self._filled(tree, lake, manifest, budget, report)
        # The tree appears complete and flushed: jobs may mount it as soon as it has this name.
        os.rename(part, tree)
        sync_directory(tree.parent)

    def _filled(
        self,
        tree: Path,
        lake: Lake,
        manifest: Manifest,
        budget: Budget,
        report: Report = silent,
        suspect: Collection[str] = frozenset(),
    ) -> Path:
        """Return a new directory beside the tree with the files of `manifest`, flushed, from `lake`. `suspect`:
        contents that are verified although trees use them. Raises as `fill`."""
        part = tree.with_name(tree.name + PART)
        # Left by a fill that was killed.
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        with closing(TreeFill(self.root / "contents", part, lake, manifest, budget, report)) as fill:
            fill.run(self.trusted().difference(suspect))
        sync_file_system(self.root)
        return part

    def _repair(self, tree: Path, lake: Lake, manifest: Manifest, budget: Budget) -> None:
        """Replace from `lake`, in all trees, the files whose contents were removed as damaged and that this tree
        uses. Each file is replaced atomically, since running jobs read from them."""
        # What a killed repair left.
        shutil.rmtree(tree.with_name(tree.name + PART), ignore_errors=True)
        stale = {name for name, path in _files(tree, manifest) if not self._is_current(name, path)}
        if not stale:
            return
        # What a killed repair brought may not have reached the disk.
        wanted = _only(manifest, stale)
        part = self._filled(tree, lake, wanted, budget, suspect=stale)
        fresh = dict(_files(part, wanted))
        for key, other in self.manifests().items():
            for name, path in _files(self.tree(key), other):
                if name in fresh and not self._is_current(name, path):
                    self._replace(path, fresh[name])
        sync_file_system(self.root)
        shutil.rmtree(part)

    def _is_current(self, name: str, path: Path) -> bool:
        """Return whether a tree's file is a hard link to its content. False if the content was removed, or removed
        and stored again, and for a copy that was made because the content had too many links."""
        try:
            return path.samefile(self._content(name))
        except FileNotFoundError:
            return False

    def _replace(self, path: Path, content: Path) -> None:
        """Replace a file of a tree by a hard link to `content`, or by a copy if that has too many links. Does
        nothing if the tree's directory is gone."""
        with self.staged() as fresh:
            try:
                os.link(content, fresh)
            except OSError as error:
                # The content has as many links as the file system allows: use a copy.
                if error.errno != errno.EMLINK:
                    raise
                copy_file(os.fsencode(content), fresh)
                fresh.chmod(content.stat().st_mode & 0o777)
            # Gone if the tree is being removed.
            with suppress(FileNotFoundError):
                os.replace(fresh, path)

    def _own_staging(self) -> Path:
        """Return this store's folder below `staging`, created and locked on first use and removed with the
        store."""
        with self._staging_lock:
            while self._staging is None:
                path = self.root / "staging" / uuid4().hex
                path.mkdir()
                if (handle := _lock_unheld(path)) is None:
                    continue
                if not (path / LOCK).exists():
                    # Another process removed it before it was locked.
                    os.close(handle)
                    continue
                self._staging = path
                weakref.finalize(self, _remove_locked, path, handle)
            return self._staging

    def _remove_leftovers(self) -> None:
        """Remove files that killed processes left in `staging`, and contents that they did not get to remove."""
        for path in (self.root / "staging").iterdir():
            if not path.is_dir():
                path.unlink(missing_ok=True)
            elif (handle := _lock_unheld(path)) is not None:
                _remove_locked(path, handle)
        for path in (self.root / "removed").iterdir():
            self._finish_removal(path.name)

    def _content(self, name: str) -> Path:
        return self.root / "contents" / content_path(name)

    def _manifest(self, key: str, folder: str = "manifests") -> Manifest | None:
        try:
            return decode((self.root / folder / key).read_bytes())
        except FileNotFoundError:
            return None

    def _write_manifest(self, key: str, manifest: Manifest) -> None:
        with self.staged() as fresh:
            write_new(fresh, manifest.encode())
            os.rename(fresh, self.root / "manifests" / key)

    def _finish_removal(self, key: str) -> int:
        """Delete the contents that only this removed tree used; return their size in bytes. Safe to repeat, and to
        run in several processes at once."""
        manifest = self._manifest(key, "removed")
        freed = 0 if manifest is None else self._remove_contents(manifest)
        (self.root / "removed" / key).unlink(missing_ok=True)
        return freed

    def _remove_contents(self, manifest: Manifest) -> int:
        # Manifests of running fills too.
        others = (self._manifest(key) for key in self.keys())
        live = {name for other in others if other is not None for name in contents_of(other)}
        freed = 0
        for name, size in contents_of(manifest).items():
            if name not in live:
                self._content(name).unlink(missing_ok=True)
                freed += size
        return freed

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        # Closing the file unlocks it.
        with open(self.root / "locks" / key, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _only(manifest: Manifest, names: Collection[str]) -> Manifest:
    """Return a manifest of the files whose contents have these store names."""
    return manifest.only(place for place, name in enumerate(store_names(manifest)) if name in names)


def _files(tree: Path, manifest: Manifest) -> Iterator[tuple[str, Path]]:
    """Yield the content's store name and the path of each file of a tree; no links."""
    for name, path in zip(store_names(manifest), manifest.paths, strict=True):
        if name:
            yield name, tree / os.fsdecode(path)


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


def tree_below(root: Path, key: str) -> Path:
    """Return the directory of a version's files in the caches below `root`."""
    return root / "trees" / key
