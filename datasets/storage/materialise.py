"""Make the tree of a version from a folder lake. Contents are checked on the way; the tree appears whole, by rename."""

import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from datasets.ingest.reader import hash_file
from datasets.ingest.tree import stays_inside
from datasets.manifests import EXECUTABLE, LINK, Entry, Manifest
from datasets.storage.base import UNLIMITED, Budget, ContentDamaged
from datasets.storage.contents import WHOLE, Located
from datasets.storage.files import Sharing, blocked, copy_file, hard_link, reflink
from datasets.storage.folder import FolderLake

THREADS = 4
# What a tree is called before it is whole.
PART = ".part"
# Contents of one piece of work.
_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Materialised:
    """A finished tree. `shared`: how many files came how to their place."""

    files: int
    size_bytes: int
    shared: dict[Sharing, int]


def materialise(
    lake: FolderLake,
    manifest: Manifest,
    target: Path,
    *,
    is_writable: bool = False,
    budget: Budget = UNLIMITED,
    report: Callable[[int, int], None] = lambda files, size_bytes: None,
) -> Materialised:
    """Write a version's files below `target`, which must not exist. Read-only files share large contents with the lake
    by reflink or hard link; writable ones by reflink alone. Raises ContentMissing, ContentDamaged, Blocked and what
    `budget` raises; then nothing is at `target`."""
    part = target.with_name(target.name + PART)
    shutil.rmtree(part, ignore_errors=True)
    try:
        _make_directories(part, manifest)
        done = _Tree(lake, part, is_writable, budget, report).write(manifest)
        os.rename(part, target)
        return done
    except OSError as error:
        raise blocked(error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _make_directories(root: Path, manifest: Manifest) -> None:
    root.mkdir(parents=True)
    for directory in sorted({path.rpartition(b"/")[0] for path in manifest.paths} - {b""}):
        os.makedirs(os.path.join(os.fsencode(root), directory), exist_ok=True)


class _Tree:
    """One tree that is being written."""

    def __init__(
        self,
        lake: FolderLake,
        root: Path,
        is_writable: bool,
        budget: Budget,
        report: Callable[[int, int], None],
    ) -> None:
        self._lake, self._root, self._is_writable = lake, os.fsencode(root), is_writable
        self._budget, self._report = budget, report

    def write(self, manifest: Manifest) -> Materialised:
        wanted: dict[bytes, list[Entry]] = defaultdict(list)
        for entry in manifest.entries():
            wanted[entry.digest].append(entry)
        located = self._lake.locate(wanted)
        shared: Counter[Sharing] = Counter()
        files = size = 0
        with ThreadPoolExecutor(THREADS) as threads:
            for some in threads.map(lambda piece: self._piece(piece, wanted), _pieces(located)):
                shared += some
                files += sum(some.values())
                size = min(
                    manifest.size_bytes, size + manifest.size_bytes * sum(some.values()) // len(manifest)
                )
                self._report(files, size)
        return Materialised(len(manifest), manifest.size_bytes, dict(shared))

    def _piece(self, located: Sequence[Located], wanted: dict[bytes, list[Entry]]) -> Counter[Sharing]:
        self._budget.check()
        if located[0].pack == WHOLE:
            return sum((self._whole(one, wanted[one.digest]) for one in located), Counter())
        shared: Counter[Sharing] = Counter()
        descriptor = os.open(self._lake.path_of(located[0]), os.O_RDONLY | os.O_CLOEXEC)
        try:
            for one in located:
                content = os.pread(descriptor, one.size_bytes, one.offset)
                if sha256(content).digest() != one.digest:
                    raise ContentDamaged(one.digest)
                for entry in wanted[one.digest]:
                    self._write(entry, content)
                shared[Sharing.COPY] += len(wanted[one.digest])
        finally:
            os.close(descriptor)
        return shared

    def _write(self, entry: Entry, content: bytes) -> None:
        path = os.path.join(self._root, entry.path)
        if entry.kind == LINK:
            _make_link(path, entry, content)
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self._mode(entry))
        try:
            written = os.write(descriptor, content)
            while written < len(content):
                written += os.write(descriptor, content[written:])
        finally:
            os.close(descriptor)

    def _whole(self, located: Located, entries: Sequence[Entry]) -> Counter[Sharing]:
        source = self._lake.path_of(located)
        with open(source, "rb", buffering=0) as file:
            if hash_file(file.fileno(), located.size_bytes) != located.digest:
                raise ContentDamaged(located.digest)
        return Counter(self._share(source, entry) for entry in entries)

    def _share(self, source: Path, entry: Entry) -> Sharing:
        target = Path(os.fsdecode(os.path.join(self._root, entry.path)))
        mode = self._mode(entry)
        if reflink(source, target):
            target.chmod(mode)
            return Sharing.REFLINK
        # a hard link has the mode of the lake's own file: an executable needs another one
        if not self._is_writable and entry.kind != EXECUTABLE and hard_link(source, target):
            return Sharing.HARD_LINK
        copy_file(source, target)
        target.chmod(mode)
        return Sharing.COPY

    def _mode(self, entry: Entry) -> int:
        mode = 0o644 if self._is_writable else 0o444
        return mode | 0o111 if entry.kind == EXECUTABLE else mode


def _make_link(path: bytes, entry: Entry, target: bytes) -> None:
    directory, slash, _ = entry.path.rpartition(b"/")
    if not stays_inside(directory + slash, target):
        raise ContentDamaged(entry.digest)
    os.symlink(target, path)


def _pieces(located: Sequence[Located]) -> Iterator[Sequence[Located]]:
    """Split contents into pieces of work: of one pack each, or some that are files of their own."""
    start = 0
    for place in range(1, len(located) + 1):
        is_end = place == len(located) or located[place].pack != located[start].pack
        if is_end or place - start >= _AT_ONCE:
            yield located[start:place]
            start = place
