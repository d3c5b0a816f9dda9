"""Caches of one location: versions as trees of read-only files that share contents by hard link.

    manifests/<key>      of every tree that exists or is being created
    trees/<key>          the files of a version
    trees/<key>.part     the same while they are created
    damaged/<content>    an empty file for each content that is damaged in a tree, until it is repaired
    staging/<process>/   files before they are renamed, trees while they are removed; locked by the process that uses it
    locks/<key>          held while a tree is created or removed
    unflushed/           marks of trees that jobs use before they are flushed

A tree is created atomically, by rename: after a flush, or before it where `UnflushedMarks` allows that. If a process is
killed, or the machine stops before the flush, the files that were written remain, and the next fill verifies and uses
them. Fills and removals of different trees run concurrently: a fill detects that a tree
from which it links is gone and copies the content again, and a content that two fills copied at the same time
becomes one file when the second of them ends.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from datasets.manifests import DIGEST_BYTES, Manifest, ManifestInvalid, decode
from datasets.storage.base import UNLIMITED, Budget, Lake
from datasets.storage.checks import is_intact
from datasets.storage.files import (
    blocked,
    copy_file,
    make_spread,
    open_directory,
    sync_directory,
    sync_file_system,
    sync_from,
    write_new,
)
from datasets.storage.staging import StagingFolder
from datasets.storage.tree_fill import (
    Report,
    Source,
    Sources,
    TreeFill,
    digest_of,
    is_written,
    silent,
)
from datasets.storage.unflushed import UnflushedMarks

PART = ".part"
# Name of the lock that is held while a tree becomes complete; no key of a version.
_COMPLETION = ".completion"
_FOLDERS = ("manifests", "trees", "damaged", "staging", "locks", "unflushed")
# Of the layout of earlier versions, in which every content had a second name.
_OLD_FOLDERS = ("contents", "removed")
# The file that marks a damaged content: its digest, and "x" if it is executable.
_MARK = re.compile("([0-9a-f]{64})(x?)")


class CacheStore:
    """The caches of a location, in a directory that this process can write to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with _blocked_by_disk():
            for name in _FOLDERS:
                (root / name).mkdir(parents=True, exist_ok=True)
            make_spread(root / "trees")
            self._staging = StagingFolder(root / "staging")
            self._unflushed = UnflushedMarks(root / "unflushed")

    def tree(self, key: str) -> Path:
        """Return the directory in which a version's files are once it is filled. It may not exist."""
        return tree_below(self.root, key)

    def keys(self) -> set[str]:
        """Return the keys of all trees, complete or not. Raises Blocked if the disk does not answer."""
        with _blocked_by_disk():
            return {path.name for path in (self.root / "manifests").iterdir()}

    def manifests(self) -> dict[str, Manifest]:
        """Return the manifests of all complete trees, by key."""
        return self._manifests(self._manifest)

    def _manifests(self, read: Callable[[str], Manifest | None]) -> dict[str, Manifest]:
        found = {key: read(key) for key in self.keys() if self.tree(key).is_dir()}
        return {key: manifest for key, manifest in found.items() if manifest is not None}

    def lacking_bytes(self, manifest: Manifest) -> int:
        """Return the bytes of contents that a fill would have to copy."""
        sizes = manifest.stored_sizes
        keys = self.keys()
        if not keys:
            return sum(sizes.values())
        sources = self._sources(sizes, keys)
        lacking = set(sizes).difference(*(source.paths for source in sources.trusted))
        # Their intact copy, if there is one, is found only by reading.
        damaged = lacking & self._damaged()
        for source in sources.suspect:
            tree = os.fsencode(source.tree)
            lacking -= {
                name
                for name, path in source.paths.items()
                if name in lacking and is_written(os.path.join(tree, path), name, sizes[name])
            }
        return sum(sizes[name] for name in lacking | damaged)

    def fill(
        self,
        key: str,
        lake: Lake,
        manifest: Manifest,
        budget: Budget = UNLIMITED,
        report: Report = silent,
        on_usable: Callable[[], None] | None = None,
    ) -> None:
        """Create the tree of a version, or repair the damaged contents of an existing one. Does not copy contents that
        other trees have or that an earlier fill copied. `on_usable`: called when jobs of this machine may use the tree,
        where possible before it is flushed; without it the tree appears flushed. Raises ContentMissing or
        ContentDamaged if the lake lacks a content or has it damaged, Blocked if the copy cannot be written,
        WorkerFailed if a process that writes it ended early, and what `budget` and `on_usable` raise; copied contents
        stay for the next fill."""
        with _blocked_by_disk():
            self.distrust_interrupted()
            # Opened before anything is written: the kernel reports failed writes only to files that were open by then.
            with self._locked(key) as lock, open_directory(self.root) as disk:
                self._remove_leftovers()
                if not self.tree(key).is_dir():
                    is_early = on_usable is not None and self._unflushed.may_add()
                    self._create(key, lake, manifest, lock, budget, report, is_flushed=not is_early)
                # Also of a new one: a content may have been found damaged after it was linked.
                self._repair(key, lake, manifest, lock, budget)
                if on_usable is not None:
                    on_usable()
                self._flush(key, disk)

    def _flush(self, key: str, disk: int) -> None:
        """Flush a tree that is used already. If that fails it becomes incomplete again."""
        if not self._unflushed.has(key):
            return
        try:
            sync_from(disk)
        except OSError:
            self._distrust(key)
            raise
        self._unflushed.remove(key)

    def interrupted(self) -> set[str]:
        """Return the keys of the trees that were in use, and not flushed, when the machine stopped, and were not filled
        since. Raises Blocked if the disk does not answer."""
        with _blocked_by_disk():
            return self._unflushed.interrupted()

    def distrust_interrupted(self) -> None:
        """Make the trees that `interrupted` returns incomplete: the next fill verifies their files. Safe to repeat;
        waits for no fill. Raises Blocked if the disk cannot be written or does not answer."""
        with _blocked_by_disk():
            for key in self._unflushed.interrupted():
                # What holds the lock has done this before.
                with suppress(BlockingIOError), self._locked(key, fcntl.LOCK_NB):
                    if self.tree(key).is_dir() and key in self._unflushed.interrupted():
                        self._distrust(key)

    def _distrust(self, key: str) -> None:
        shutil.rmtree(self._part(key), ignore_errors=True)
        os.rename(self.tree(key), self._part(key))

    def remove(self, key: str, is_wanted: Callable[[], bool] = lambda: False) -> int:
        """Remove a tree, complete or not. Return the bytes freed, which are those of contents that no other tree
        uses. `is_wanted` is called while no fill of the tree runs; if it returns True, nothing is removed."""
        with self._locked(key):
            # Called under the tree's lock, so that no fill of it is running.
            if is_wanted():
                return 0
            self._remove_leftovers()
            freed, gone = self._only_here(key), []
            # Rename first, so that the tree disappears at once and is never half removed. The next work on the location
            # removes what a killed process left of it.
            for path in (self.tree(key), self._part(key)):
                if path.is_dir():
                    gone.append(self._staging.fresh())
                    os.rename(path, gone[-1])
            (self.root / "manifests" / key).unlink(missing_ok=True)
            self._unflushed.remove(key)
            for path in gone:
                shutil.rmtree(path, ignore_errors=True)
            return freed

    def find_damaged(self, digests: Iterable[bytes]) -> set[str]:
        """Hash the files of the contents with these digests in all trees, and mark the damaged ones. Return the keys of
        the complete trees that use a marked one, which they keep until a fill repairs it. A fill that runs repairs its
        tree once that is complete. Raises Blocked if the disk cannot be written or does not answer."""
        named = {digest + end for digest in digests for end in (b"", b"x")}
        checked, before, read = set[int](), -1, _EachOnce(self.root, self._manifest)
        with _blocked_by_disk():
            # Until no file is new: a fill may link a damaged one from a tree that is removed before it is read here.
            while before != len(checked):
                before = len(checked)
                for name, path in self._written(named, read):
                    if _is_damaged(name, path, checked):
                        self._mark(name).touch()
            marked = self._damaged() & named
            # Read again: a tree that became complete meanwhile may have linked a damaged file before it had a mark.
            trees = self._manifests(read).items() if marked else ()
        return {key for key, manifest in trees if not marked.isdisjoint(manifest.store_names)}

    def _written(
        self, names: Collection[bytes], read: Callable[[str], Manifest | None]
    ) -> Iterator[tuple[bytes, Path]]:
        """Yield the store name and the path of the files of all trees that have one of these contents. Of incomplete
        trees, only files that are written; they come first, so that a tree that becomes complete meanwhile is not
        left out."""
        for key in self.keys():
            part = self._part(key)
            manifest = read(key) if part.is_dir() else None
            sizes = manifest.stored_sizes if manifest is not None else {}
            for name, path in _files(part, manifest, names) if manifest is not None else ():
                if is_written(os.fsencode(path), name, sizes[name]):
                    yield name, path
        for key, manifest in self._manifests(read).items():
            yield from _files(self.tree(key), manifest, names)

    def _create(
        self,
        key: str,
        lake: Lake,
        manifest: Manifest,
        lock: int,
        budget: Budget,
        report: Report,
        *,
        is_flushed: bool,
    ) -> None:
        before = self._whole()
        keys = self.keys() - {key}
        if not is_flushed:
            self._unflushed.add(key)
        self._write_manifest(key, manifest)
        sources = self._sources(manifest.stored_sizes, keys) if keys else Sources()
        own = self._filled(key, lake, manifest, sources, lock, budget, report, is_flushed=is_flushed)
        with self._locked(_COMPLETION):
            # A fill that ended meanwhile may have brought the same contents.
            others = [one for one, at in self._whole().items() if before.get(one) != at]
            if self._share(key, manifest, own, others) and is_flushed:
                sync_file_system(self.root)
            # The tree appears complete: jobs may mount it as soon as it has this name.
            os.rename(self._part(key), self.tree(key))
        if is_flushed:
            sync_directory(self.tree(key).parent)
            self._unflushed.remove(key)

    def _filled(
        self,
        key: str,
        lake: Lake,
        manifest: Manifest,
        sources: Sources,
        lock: int,
        budget: Budget,
        report: Report = silent,
        *,
        is_flushed: bool = True,
    ) -> set[bytes]:
        """Create the files of a manifest in the directory of an incomplete tree. `lock`: a descriptor that holds the
        tree's lock. Return the contents that no trusted tree shares."""
        part = self._part(key)
        # May be there: left by a fill that was killed.
        part.mkdir(exist_ok=True)
        with closing(TreeFill(part, lake, manifest, lock, budget, report)) as fill:
            return fill.run(sources, is_flushed=is_flushed)

    def _share(self, key: str, manifest: Manifest, own: set[bytes], others: Iterable[str]) -> bool:
        """Make the contents `own` of an incomplete tree hard links of those in other trees; return whether one was."""
        found = {
            name: source.tree / os.fsdecode(path)
            for source in self._sources(own, others).trusted
            for name, path in source.paths.items()
        }
        for name, path in _files(self._part(key), manifest, found) if found else ():
            # Its tree is being removed.
            with suppress(FileNotFoundError):
                self._replace(path, found[name])
        return bool(found)

    def _sources(self, names: Collection[bytes], keys: Iterable[str]) -> Sources:
        """Return those of the trees, complete or not, that have some of these contents."""
        damaged = self._damaged()
        trusted, suspect = [], []
        for key in keys:
            is_whole = self.tree(key).is_dir()
            tree = self.tree(key) if is_whole else self._part(key)
            manifest = self._manifest(key) if is_whole or tree.is_dir() else None
            if manifest is None:
                continue
            pairs = zip(manifest.store_names, manifest.paths, strict=True)
            paths = {name: path for name, path in pairs if name in names}
            unsafe = damaged.intersection(paths) if is_whole else set(paths)
            suspect.append(Source(tree, {name: paths.pop(name) for name in unsafe}))
            trusted.append(Source(tree, paths))
        return Sources(
            [source for source in trusted if source.paths], [source for source in suspect if source.paths]
        )

    def _repair(self, key: str, lake: Lake, manifest: Manifest, lock: int, budget: Budget) -> None:
        """Replace the damaged contents that a tree uses, in all trees. Each file is replaced atomically, since running
        jobs read from them."""
        # What a killed repair left.
        shutil.rmtree(self._part(key), ignore_errors=True)
        damaged = self._damaged()
        stale = damaged.intersection(manifest.stored_sizes) if damaged else damaged
        if not stale:
            return
        wanted = _only(manifest, stale)
        self._filled(key, lake, wanted, self._sources(stale, self.keys()), lock, budget)
        fresh = dict(_files(self._part(key), wanted, stale))
        # Under this lock, so that no tree becomes complete meanwhile.
        with self._locked(_COMPLETION):
            for other, known in self.manifests().items():
                for name, path in _files(self.tree(other), known, fresh):
                    if not _is_same(path, fresh[name]):
                        self._replace(path, fresh[name])
            sync_file_system(self.root)
            # A running fill may have linked the damaged file: it repairs its tree when that is complete.
            filling = {name for other in self._filling() for name in other.stored_sizes}
            for name in stale - filling:
                self._mark(name).unlink(missing_ok=True)
        shutil.rmtree(self._part(key))

    def _filling(self) -> Iterator[Manifest]:
        found = (self._manifest(key) for key in self.keys() if not self.tree(key).is_dir())
        return (manifest for manifest in found if manifest is not None)

    def _replace(self, path: Path, content: Path) -> None:
        """Replace a file of a tree by a hard link to `content`, or by a copy if that has too many links. Does nothing
        if the tree's directory is gone. Raises FileNotFoundError if `content` is."""
        with self._staging.staged() as fresh:
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

    def _remove_leftovers(self) -> None:
        """Remove files that killed processes left in `staging`, and those of an earlier layout."""
        if any((self.root / name).exists() for name in _OLD_FOLDERS):
            self._leave_old_layout()
        self._staging.remove_leftovers()

    def _leave_old_layout(self) -> None:
        # Otherwise another process would find `contents` gone, and mark everything.
        with self._locked(_COMPLETION):
            contents = self.root / "contents"
            names = {name for one in self.manifests().values() for name in one.stored_sizes}
            # Damaged contents were removed there until their trees were repaired.
            for name in names if contents.is_dir() else ():
                mark = self._mark(name)
                if not (contents / mark.name[:2] / mark.name[2:]).exists():
                    mark.touch()
            for folder in _OLD_FOLDERS:
                with suppress(FileNotFoundError):
                    os.rename(self.root / folder, self.root / "staging" / uuid4().hex)

    def _part(self, key: str) -> Path:
        return self.root / "trees" / (key + PART)

    def _whole(self) -> Mapping[str, int]:
        """Return the change times of all complete trees' directories by their keys: a tree that was removed and made
        again has another one."""
        found = {}
        for key in self.keys():
            with suppress(FileNotFoundError):
                found[key] = self.tree(key).stat().st_ctime_ns
        return found

    def _mark(self, name: bytes) -> Path:
        return self.root / "damaged" / (digest_of(name).hex() + name[DIGEST_BYTES:].decode())

    def _damaged(self) -> set[bytes]:
        # Others may have left files there, such as an NFS client its `.nfs...`.
        marks = filter(None, map(_MARK.fullmatch, os.listdir(self.root / "damaged")))
        return {bytes.fromhex(mark[1]) + mark[2].encode() for mark in marks}

    def _manifest(self, key: str) -> Manifest | None:
        try:
            return decode((self.root / "manifests" / key).read_bytes())
        except (FileNotFoundError, ManifestInvalid):
            # The manifest of an incomplete tree is not flushed: it may be empty after a power cut.
            return None

    def _write_manifest(self, key: str, manifest: Manifest) -> None:
        with self._staging.staged() as fresh:
            write_new(fresh, manifest.encode())
            os.rename(fresh, self.root / "manifests" / key)

    def _only_here(self, key: str) -> int:
        """Return the bytes of those of the tree's contents that no other tree uses; 0 if it has no manifest."""
        manifest = self._manifest(key)
        if manifest is None:
            return 0
        sizes = manifest.stored_sizes
        others = (self._manifest(other) for other in self.keys() - {key})
        used = {name for other in others if other is not None for name in other.stored_sizes if name in sizes}
        return sum(sizes.values()) - sum(sizes[name] for name in used)

    @contextmanager
    def _locked(self, key: str, how: int = 0) -> Iterator[int]:
        """Context manager that holds the lock of a tree. `how`: fcntl.LOCK_NB to raise BlockingIOError if another
        process holds it."""
        # Closing the file unlocks it, unless a child process of a fill that was killed has it open.
        with open(self.root / "locks" / key, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | how)
            yield file.fileno()


class _EachOnce:
    """Reads the manifests of a store by key, each file only once as long as it is the same file."""

    def __init__(self, root: Path, read: Callable[[str], Manifest | None]) -> None:
        self._folder, self._read = root / "manifests", read
        self._known: dict[str, tuple[tuple[int, int], Manifest | None]] = {}

    def __call__(self, key: str) -> Manifest | None:
        # Before it is read: a file that comes in between is then read again.
        try:
            status = (self._folder / key).stat()
        except FileNotFoundError:
            return None
        at = status.st_ino, status.st_mtime_ns
        if self._known.get(key, ((), None))[0] != at:
            self._known[key] = at, self._read(key)
        return self._known[key][1]


def _only(manifest: Manifest, names: Collection[bytes]) -> Manifest:
    """Return a manifest of the files whose contents have these store names."""
    return manifest.only(place for place, name in enumerate(manifest.store_names) if name in names)


@contextmanager
def _blocked_by_disk() -> Iterator[None]:
    """Context manager that raises Blocked for errors of the disk; see `blocked`."""
    try:
        yield
    except OSError as error:
        raise blocked(error) from error


def _is_damaged(name: bytes, path: Path, checked: set[int]) -> bool:
    """Return whether a file differs from its content. False for a file that is gone, and for one whose inode number is
    in `checked`, to which it is added."""
    try:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if status.st_ino in checked:
                return False
            checked.add(status.st_ino)
            return not is_intact(file.fileno(), status.st_size, digest_of(name))
    except FileNotFoundError:
        # The tree is being removed.
        return False


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


def _files(tree: Path, manifest: Manifest, names: Container[bytes]) -> Iterator[tuple[bytes, Path]]:
    """Yield the store name and the path of the files of a tree that have one of these contents; no links."""
    for name, path in zip(manifest.store_names, manifest.paths, strict=True):
        # Before the path is built, which takes longer than all else that is done for a file that is not wanted.
        if name in names:
            yield name, tree / os.fsdecode(path)


def tree_below(root: Path, key: str) -> Path:
    """Return the directory of a version's files in the caches below `root`."""
    return root / "trees" / key
