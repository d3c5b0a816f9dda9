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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from uuid import uuid4

from datasets.ingest.reader import FileChanged, hash_file
from datasets.ingest.tree import stays_inside
from datasets.manifests import EXECUTABLE, LINK, Entry, Manifest, decode
from datasets.storage.base import UNLIMITED, Budget, ContentDamaged, ContentMissing, Lake
from datasets.storage.contents import WHOLE, Located
from datasets.storage.files import (
    READ_ONLY,
    blocked,
    copy_file,
    sync_directory,
    sync_file_system,
    write_new,
)

THREADS = 4
PART, LOCK = ".part", ".lock"
# Contents per unit of work of a thread.
_AT_ONCE = 200
_FOLDERS = ("contents", "manifests", "trees", "staging", "removed", "locks")


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a fill: files and bytes of the version that are present, and bytes that were copied."""

    files: int
    bytes_done: int
    bytes_moved: int


Report = Callable[[Progress], None]


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
        """Return the directory of a version's files once it is filled."""
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
        return sum(size for name, size in contents_of(manifest).items() if not self._content(name).exists())

    def fill(
        self,
        key: str,
        lake: Lake,
        manifest: Manifest,
        budget: Budget = UNLIMITED,
        report: Report = lambda progress: None,
    ) -> None:
        """Create the tree of a version, unless it exists. Does not copy contents that other trees or an earlier fill
        stored. Raises ContentMissing or ContentDamaged if the lake lacks a content or has it damaged, Blocked if the
        copy cannot be written, and what `budget` raises; copied contents stay for the next fill."""
        try:
            with self._locked(key):
                self._remove_leftovers()
                if not self.tree(key).is_dir():
                    # Write the manifest before the contents: a concurrent removal then keeps the contents.
                    self._write_manifest(key, manifest)
                    _Fill(self, lake, manifest, budget, report).run(self.tree(key))
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
        """Yield a path for a new file, which is removed afterwards unless it was renamed."""
        fresh = self._own_staging() / uuid4().hex
        try:
            yield fresh
        finally:
            fresh.unlink(missing_ok=True)

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
        return self.root / "contents" / name[:2] / name[2:]

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
        """Remove the contents of a removed tree that no other one names; return their bytes. May be repeated, also
        beside another process that does the same."""
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


class _Fill:
    """The creation of one version's tree: copies missing contents, then links them."""

    def __init__(
        self, store: CacheStore, lake: Lake, manifest: Manifest, budget: Budget, report: Report
    ) -> None:
        self._store, self._lake, self._manifest = store, lake, manifest
        self._budget, self._report = budget, report
        self._sizes = contents_of(manifest)
        self._files: dict[str, int] = {}
        for entry in manifest.entries():
            if entry.kind != LINK:
                self._files[_name(entry)] = self._files.get(_name(entry), 0) + 1
        self._done = Progress(0, 0, 0)

    def run(self, tree: Path) -> None:
        part = tree.with_name(tree.name + PART)
        shutil.rmtree(part, ignore_errors=True)
        lacking = self._lacking()
        self._bring(lacking)
        sync_file_system(self._store.root)
        self._link(part)
        sync_file_system(self._store.root)
        os.rename(part, tree)
        sync_directory(tree.parent)

    def _lacking(self) -> list[str]:
        """Return the contents to copy. Includes those left by a killed fill, which may not have reached the
        disk: they are verified by reading."""
        trusted, lacking = self._store.trusted(), []
        for name, size in self._sizes.items():
            self._budget.check()
            if name in trusted or self._is_intact(name, size):
                self._note([name], 0)
            else:
                lacking.append(name)
        return lacking

    def _is_intact(self, name: str, size: int) -> bool:
        path = self._store.content(name)
        try:
            with open(path, "rb", buffering=0) as file:
                if hash_file(file.fileno(), size) == _digest(name):
                    return True
        except FileNotFoundError:
            return False
        except FileChanged:
            pass
        path.unlink(missing_ok=True)
        return False

    def _bring(self, names: Iterable[str]) -> None:
        wanted: dict[bytes, list[str]] = {}
        for name in names:
            wanted.setdefault(_digest(name), []).append(name)
        located = self._lake.locate(wanted)
        with ThreadPoolExecutor(THREADS) as threads:
            try:
                for brought in threads.map(lambda piece: self._piece(piece, wanted), _pieces(located)):
                    self._note(brought, sum(self._sizes[name] for name in brought))
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _piece(self, located: Sequence[Located], wanted: dict[bytes, list[str]]) -> list[str]:
        self._budget.check()
        try:
            self._store_contents(located, wanted)
        except ContentMissing:
            # A collection of the lake may have moved contents to other packs: locate them again.
            moved = self._lake.locate(one.digest for one in located)
            # The locations did not change, so the contents are missing.
            if moved == list(located):
                raise
            for some in _pieces(moved):
                self._piece(some, wanted)
        return [name for one in located for name in wanted[one.digest]]

    def _store_contents(self, located: Sequence[Located], wanted: dict[bytes, list[str]]) -> None:
        if located[0].pack == WHOLE:
            for name in wanted[located[0].digest]:
                with self._store.staged() as fresh:
                    self._lake.place(located[0], fresh, _mode(name))
                    os.rename(fresh, self._store.content(name))
        else:
            for digest, content in self._lake.contents(located):
                if sha256(content).digest() != digest:
                    raise ContentDamaged(digest)
                for name in wanted[digest]:
                    self._write(name, content)

    def _write(self, name: str, content: bytes) -> None:
        with self._store.staged() as fresh:
            write_new(fresh, content, mode=_mode(name))
            fresh.chmod(_mode(name))
            os.rename(fresh, self._store.content(name))

    def _note(self, names: Sequence[str], moved: int) -> None:
        done = self._done
        self._done = Progress(
            done.files + sum(self._files[name] for name in names),
            done.bytes_done + sum(self._files[name] * self._sizes[name] for name in names),
            done.bytes_moved + moved,
        )
        self._report(self._done)

    def _link(self, part: Path) -> None:
        root = os.fsencode(part)
        part.mkdir()
        for directory in sorted({path.rpartition(b"/")[0] for path in self._manifest.paths} - {b""}):
            os.makedirs(os.path.join(root, directory), exist_ok=True)
        for place, entry in enumerate(self._manifest.entries()):
            if place % _AT_ONCE == 0:
                self._budget.check()
            target = os.path.join(root, entry.path)
            if entry.kind == LINK:
                _make_link(target, entry, self._lake.read(entry.digest))
            else:
                self._link_file(_name(entry), target)

    def _link_file(self, name: str, target: bytes) -> None:
        source = self._store.content(name)
        try:
            os.link(source, target)
        except FileNotFoundError:
            # Removed with another tree at this moment.
            self._bring([name])
            os.link(source, target)
        except OSError as error:
            # The content has as many links as the file system allows: use a copy.
            if error.errno != errno.EMLINK:
                raise
            copy_file(source, Path(os.fsdecode(target)))
            os.chmod(target, source.stat().st_mode & 0o777)


def _make_link(path: bytes, entry: Entry, target: bytes) -> None:
    directory, slash, _ = entry.path.rpartition(b"/")
    if sha256(target).digest() != entry.digest or not stays_inside(directory + slash, target):
        raise ContentDamaged(entry.digest)
    os.symlink(target, path)


def _name(entry: Entry) -> str:
    return entry.digest.hex() + ("x" if entry.kind == EXECUTABLE else "")


def _mode(name: str) -> int:
    return READ_ONLY | 0o111 if name.endswith("x") else READ_ONLY


def _digest(name: str) -> bytes:
    return bytes.fromhex(name.removesuffix("x"))


def contents_of(manifest: Manifest) -> dict[str, int]:
    """Return the contents of a version, store name -> size in bytes."""
    return {_name(entry): entry.size_bytes for entry in manifest.entries() if entry.kind != LINK}


def _pieces(located: Sequence[Located]) -> Iterator[Sequence[Located]]:
    """Split contents into units of work: contents of one pack each, or one content with its own file."""
    for pack, group in groupby(located, key=lambda one: one.pack):
        contents = list(group)
        step = 1 if pack == WHOLE else _AT_ONCE
        yield from (contents[start : start + step] for start in range(0, len(contents), step))
