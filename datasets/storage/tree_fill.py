"""Create the tree of a version: link the contents that other trees have, and write the others.

A content gets no name besides those in trees. Most of the time of a fill is the kernel's for names and inodes, and a
second name cost as much as the file.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from datasets.manifests import DIGEST_BYTES, LINK, Entry, Manifest, stays_inside
from datasets.storage.base import Blocked, Budget, ContentDamaged, ContentMissing, Lake
from datasets.storage.checks import is_intact
from datasets.storage.contents import WHOLE, Located, Sharing, chunks
from datasets.storage.files import READ_ONLY, EarlyFlush, copy_file, make_spread, sync_from
from datasets.storage.tree_writer import FileWriter
from datasets.storage.writer_pool import WriterPool

# Two thirds of the time are spent in the kernel and in hashing, where threads run at the same time. With more threads
# than cores they wait for Python's lock: 4 on 2 cores take a quarter more CPU time than 2.
THREADS = min(4, os.cpu_count() or 1)
# Contents per unit of work of a thread, alone and with a child process.
_AT_ONCE, _AT_ONCE_PARTED = 200, 1000
_EXECUTABLE_MODE = READ_ONLY | 0o111
# Fewer contents are written before a child process has started.
PARTED_FILES = 2000
# Interval of reports while one large file is written, during which no other progress is made.
WATCH_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a fill. `files`, `bytes_done`: files and bytes of the version that are present, with the parts of
    files that are being written. `bytes_moved`: bytes copied from the lake by this fill. `sharing`: the cheapest way in
    which a content was duplicated, None if none was; small ones come out of packs and are always copied."""

    files: int
    bytes_done: int
    bytes_moved: int
    sharing: Sharing | None = None


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report nothing: the default of calls that report progress."""


@dataclass(frozen=True, slots=True)
class Source:
    """Another tree that has some contents: its directory, and the path of a file for each of them (store name ->
    path)."""

    tree: Path
    paths: dict[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a fill finds contents. `trusted`: trees whose contents are intact and on disk; those in `suspect` are
    verified by reading."""

    trusted: Sequence[Source] = ()
    suspect: Sequence[Source] = ()


class TreeFill:
    """The creation of one version's files in the directory `part`, which no other process writes to. It may have
    files that a killed fill left. `lock`: a descriptor that holds a lock against other fills of it."""

    def __init__(
        self, part: Path, lake: Lake, manifest: Manifest, lock: int, budget: Budget, report: Report
    ) -> None:
        self._part, self._lake, self._manifest = part, lake, manifest
        self._budget, self._report = budget, report
        self._tree = os.open(part, os.O_RDONLY | os.O_DIRECTORY)
        self._writer, self._pool = FileWriter(self._tree), WriterPool(self._tree, lock)
        if len(manifest) >= PARTED_FILES:
            # While this process finds out what they write.
            self._pool.start(THREADS)
        names, self._sizes = manifest.store_names, manifest.stored_sizes
        # One of the paths of each content; few contents have several.
        self._path = dict(zip(names, manifest.paths, strict=True))
        self._path.pop(b"", None)
        self._others = {} if len(self._path) == len(names) else self._repeated(names)
        self._done = Progress(0, 0, 0)
        self._is_parted = False
        # Threads add to both. `_begun`: bytes done of the files that are being written, by store name.
        self._ways: set[Sharing] = set()
        self._begun: dict[bytes, int] = {}

    def _repeated(self, names: Sequence[bytes]) -> dict[bytes, list[bytes]]:
        """Return, by store name, the paths of contents besides the one in `_path`."""
        found: dict[bytes, list[bytes]] = {}
        left = dict(self._path)
        for name, path in zip(reversed(names), reversed(self._manifest.paths), strict=True):
            if name and left.pop(name, None) is None:
                found.setdefault(name, []).append(path)
        return found

    def close(self) -> None:
        """Close the directory, and end the processes that write into it."""
        self._pool.close()
        os.close(self._tree)

    def run(self, sources: Sources, *, is_flushed: bool = True) -> set[bytes]:
        """Create all files, and flush them if `is_flushed`. Return the contents that no trusted tree shares. Raises
        ContentMissing or ContentDamaged if the lake lacks a content or has it damaged, OSError if a file cannot be
        written, WorkerFailed if a child process ended early, and what `budget` raises."""
        left = self._prepare()
        lacking = list(self._sizes)
        for source in sources.trusted:
            lacking = self._shared(source, lacking, left)
        own = set(lacking)
        if left:
            lacking = self._accepted(lacking, lambda name: self._is_left(name, left))
        for source in sources.suspect:
            lacking = self._shared(source, lacking, set(), is_trusted=False)
        self._bring(lacking, is_flushed)
        for entry in self._links():
            _make_link(
                os.path.join(os.fsencode(self._part), entry.path), entry, self._lake.read(entry.digest)
            )
        if is_flushed:
            sync_from(self._tree)
        return own

    def _prepare(self) -> set[bytes]:
        """Create all directories. Of what a killed fill left, keep the first file of each content and return the paths
        of these; remove everything else."""
        root = os.fsencode(self._part)
        directories = self._directories()
        first = set(self._path.values()) if os.listdir(root) else set()
        left: set[bytes] = set()
        for folder, below, names in os.walk(root):
            path = folder[len(root) + 1 :]
            prefix = path + b"/" if path else b""
            for name in names:
                if prefix + name in first:
                    left.add(prefix + name)
                else:
                    self._remove(prefix + name)
            for name in [name for name in below if prefix + name not in directories]:
                below.remove(name)
                _remove_folder(os.path.join(folder, name))
        parents = {directory.rpartition(b"/")[0] for directory in directories}
        for directory in sorted({b"", *directories}):
            path = os.path.join(root, directory)
            # Before what is below it. Apart, few of them meet inodes that were removed of late.
            if directory in parents:
                make_spread(path)
            else:
                os.makedirs(path, exist_ok=True)
        return left

    def _directories(self) -> set[bytes]:
        """Return all directories of the version, without its root."""
        found = {path.rpartition(b"/")[0] for path in self._manifest.paths} - {b""}
        above = found
        while above := {path.rpartition(b"/")[0] for path in above} - found - {b""}:
            found |= above
        return found

    def _shared(
        self, source: Source, names: Sequence[bytes], left: set[bytes], *, is_trusted: bool = True
    ) -> list[bytes]:
        """Link those of the contents `names` that another tree has; return those that it lacks. `left`: paths of files
        of a killed fill, which are replaced. `is_trusted`: if False, each is read and verified first."""
        try:
            tree = os.open(source.tree, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return list(names)
        try:
            return self._accepted(
                names,
                lambda name: name in source.paths and self._is_linked(tree, source.paths[name], name, left),
                is_trusted=is_trusted,
            )
        finally:
            os.close(tree)

    def _accepted(
        self, names: Sequence[bytes], is_there: Callable[[bytes], bool], *, is_trusted: bool = False
    ) -> list[bytes]:
        """Complete the contents whose first file exists according to `is_there`, after reading it unless
        `is_trusted`; return the others."""
        lacking = []
        for some in chunks(names, _AT_ONCE):
            self._budget.check()
            found = [name for name in some if is_there(name) and (is_trusted or self._is_intact(name))]
            self._repeat(found)
            if found:
                self._note(found)
            if len(found) != len(some):
                there = set(found)
                lacking += [name for name in some if name not in there]
        return lacking

    def _is_left(self, name: bytes, left: set[bytes]) -> bool:
        first = self._path[name]
        is_left = first in left
        # Once only: a second content that finds its file there has the same name, where case is ignored.
        left.discard(first)
        return is_left

    def _is_linked(self, tree: int, path: bytes, name: bytes, left: set[bytes]) -> bool:
        first = self._path[name]
        if self._is_left(name, left):
            self._remove(first)
        try:
            os.link(path, first, src_dir_fd=tree, dst_dir_fd=self._tree)
        except FileNotFoundError:
            # Its tree is being removed at this moment.
            return False
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            self._copy(tree, path, first)
        return True

    def _is_intact(self, name: bytes) -> bool:
        """Return whether a content's first file, which is read, is complete and undamaged; remove it if it is not."""
        # It may be large.
        self._budget.check()
        path = self._path[name]
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self._tree)
        try:
            is_complete = os.fstat(file).st_mode & 0o777 == _mode(name)
            if is_complete and is_intact(file, self._sizes[name], digest_of(name)):
                return True
        finally:
            os.close(file)
        self._remove(path)
        return False

    def _bring(self, names: Sequence[bytes], is_flushed: bool) -> None:
        wanted = _Wanted(names)
        self._is_parted = len(wanted.digests) >= PARTED_FILES
        at_once = _AT_ONCE_PARTED if self._is_parted else _AT_ONCE
        with ThreadPoolExecutor(THREADS) as threads, EarlyFlush(self._part) as flush:
            try:
                # The first ones are written while the others are located.
                pieces = [
                    threads.submit(self._piece, piece, wanted)
                    for some in self._lake.locate_many(wanted.digests)
                    for piece in _pieces(some, at_once)
                ]
                for piece in pieces:
                    self._watch(piece)
                    brought = piece.result()
                    self._note(brought, is_moved=True)
                    # Otherwise the kernel may write while nothing waits for it.
                    if is_flushed:
                        flush.advance(self._done.bytes_moved)
                    self._budget.check()
            except BaseException:
                threads.shutdown(cancel_futures=True)
                raise

    def _watch(self, piece: Future[list[bytes]]) -> None:
        """Wait until a piece of work has ended, and report the bytes within its files meanwhile."""
        # Not by the threads: what reports has a connection to the database for this thread only.
        while not piece.done() and wait([piece], WATCH_SECONDS).not_done:
            done, begun = self._done, sum(list(self._begun.values()))
            if begun:
                self._report(
                    replace(done, bytes_done=done.bytes_done + begun, bytes_moved=done.bytes_moved + begun)
                )

    def _piece(self, located: Sequence[Located], wanted: "_Wanted") -> list[bytes]:
        self._budget.check()
        names = [name for _, _, some in wanted.of(located) for name in some]
        try:
            self._store_contents(located, wanted)
            self._repeat(names)
        except (ContentMissing, ContentDamaged):
            # A collection of the lake may have moved contents to other packs, or a damaged one is there again.
            moved = self._lake.locate(one.digest for one in located)
            if moved == list(located):
                raise
            for name in names:
                self._remove(self._path[name])
            for some in _pieces(moved, _AT_ONCE):
                self._piece(some, wanted)
        return names

    def _store_contents(self, located: Sequence[Located], wanted: "_Wanted") -> None:
        if located[0].pack == WHOLE:
            for name in wanted.names(located[0].digest):
                self._place(located[0], name)
            return
        self._ways.add(Sharing.COPY)
        if self._is_parted and (pack := self._lake.path_of(located[0])):
            for mode, some, names in wanted.of(located):
                self._pool.write(pack, some, list(map(self._path.__getitem__, names)), mode)
        else:
            for digest, content in self._lake.contents(located):
                if sha256(content).digest() != digest:
                    raise ContentDamaged(digest)
                for name in wanted.names(digest):
                    self._writer.write(self._path[name], content, _mode(name))

    def _place(self, located: Located, name: bytes) -> None:
        target = self._part / os.fsdecode(self._path[name])

        def advanced(done: int) -> None:
            self._budget.check()
            self._begun[name] = done

        self._ways.add(self._lake.place(located, target, _mode(name), advanced))

    def _repeat(self, names: Iterable[bytes]) -> None:
        """Create the other files of the contents with these store names, of which one file exists each, as hard links
        to it; as a copy where it can have no more links."""
        for name in names if self._others else ():
            for path in self._others.get(name, ()):
                try:
                    os.link(self._path[name], path, src_dir_fd=self._tree, dst_dir_fd=self._tree)
                except OSError as error:
                    # The content has as many links as the file system allows: use a copy.
                    if error.errno != errno.EMLINK:
                        raise
                    self._copy(self._tree, self._path[name], path)

    def _copy(self, tree: int, source: bytes, path: bytes) -> None:
        target = self._part / os.fsdecode(path)
        copy_file(os.fsencode(f"/proc/self/fd/{tree}/") + source, target)
        target.chmod(os.stat(source, dir_fd=tree).st_mode & 0o777)

    def _remove(self, path: bytes) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path, dir_fd=self._tree)

    def _note(self, names: Sequence[bytes], *, is_moved: bool = False) -> None:
        """Count and report the files of the contents with these store names. `is_moved`: if they came from the lake."""
        done, size = self._done, sum(map(self._sizes.__getitem__, names))
        for name in names if self._begun else ():
            self._begun.pop(name, None)
        others = [name for name in names for _ in self._others.get(name, ())] if self._others else []
        self._done = Progress(
            done.files + len(names) + len(others),
            done.bytes_done + size + sum(map(self._sizes.__getitem__, others)),
            done.bytes_moved + (size if is_moved else 0),
            next((way for way in Sharing if way in self._ways), None),
        )
        self._report(self._done)

    def _links(self) -> Iterator[Entry]:
        kinds = self._manifest.kinds
        return (self._manifest.entry(place) for place, kind in enumerate(kinds) if kind == LINK)


class _Wanted:
    """Contents that are brought, by their store names. `digests`: of all of them, each once."""

    def __init__(self, names: Sequence[bytes]) -> None:
        self._executables = {name for name in names if len(name) > DIGEST_BYTES}
        self._plain = set(names) - self._executables
        # In the order of the files: neighbours are in the same pack.
        self.digests = list(dict.fromkeys(map(digest_of, names))) if self._executables else names

    def names(self, digest: bytes) -> list[bytes]:
        """Return the store names with this digest."""
        found = [digest] if digest in self._plain else []
        return [*found, digest + b"x"] if digest + b"x" in self._executables else found

    def of(self, located: Sequence[Located]) -> Iterator[tuple[int, Sequence[Located], list[bytes]]]:
        """Yield the files to make of contents at these locations, for each mode: the mode, locations and store
        names. Most versions have one mode only."""
        plain = [one for one in located if one.digest in self._plain] if self._executables else located
        if plain:
            yield READ_ONLY, plain, [one.digest for one in plain]
        names = [one.digest + b"x" for one in located] if self._executables else []
        found = [place for place, name in enumerate(names) if name in self._executables]
        if found:
            yield _EXECUTABLE_MODE, [located[place] for place in found], [names[place] for place in found]


def _remove_folder(path: bytes) -> None:
    if os.path.islink(path):
        os.unlink(path)
    else:
        shutil.rmtree(path)


def _make_link(path: bytes, entry: Entry, target: bytes) -> None:
    if sha256(target).digest() != entry.digest:
        raise ContentDamaged(entry.digest)
    # A sync leaves such links out; a program that commits versions by REST may not.
    if not stays_inside(entry.path, target):
        name = entry.path.decode(errors="replace")
        words = f"{name} is a link that leads out of the version; commit a version without it."
        raise Blocked("link_leaves_tree", words, is_passing=False)
    os.symlink(target, path)


def _mode(name: bytes) -> int:
    return _EXECUTABLE_MODE if len(name) > DIGEST_BYTES else READ_ONLY


def is_written(path: bytes, name: bytes, size: int) -> bool:
    """Return whether a file has the size and the mode of a content, as it has once it is written. Does not read it."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return status.st_size == size and status.st_mode & 0o777 == _mode(name)


def digest_of(name: bytes) -> bytes:
    """Return the digest of a content by its store name."""
    return name[:DIGEST_BYTES]


def _pieces(located: Sequence[Located], most: int) -> Iterator[Sequence[Located]]:
    """Split contents, sorted by file, into units of work: at most `most` contents of one pack, or one content
    with its own file."""
    for pack, group in groupby(located, key=lambda one: one.pack):
        contents = list(group)
        step = 1 if pack == WHOLE else most
        yield from (contents[start : start + step] for start in range(0, len(contents), step))
