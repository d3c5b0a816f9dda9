"""Create the tree of a version beside the contents of a cache location.

A missing content is written as a file of the new tree, which no one else uses, and then linked into `contents`: that
costs one file and one link, and a content gets its name once it is complete.
"""

import errno
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import groupby
from pathlib import Path

from datasets.ingest.reader import FileChanged, hash_file
from datasets.manifests import DIGEST_BYTES, EXECUTABLE, LINK, Entry, Manifest, stays_inside
from datasets.storage.base import Budget, ContentDamaged, ContentMissing, Lake
from datasets.storage.contents import WHOLE, Located, Sharing, chunks
from datasets.storage.files import READ_ONLY, copy_file

# Two thirds of the time are spent in the kernel and in hashing, where threads run at the same time. With more threads
# than cores they wait for Python's lock: 4 on 2 cores take a quarter more CPU time than 2.
THREADS = min(4, os.cpu_count() or 1)
# Contents per unit of work of a thread.
_AT_ONCE = 200
_SHELF = 2  # characters of a content's name


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a fill. `files`, `bytes_done`: files and bytes of the version that are present. `bytes_moved`:
    bytes copied from the lake by this fill. `sharing`: the cheapest way in which a content was duplicated, None if
    none was; small ones come out of packs and are always copied."""

    files: int
    bytes_done: int
    bytes_moved: int
    sharing: Sharing | None = None


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Report nothing: the default of calls that report progress."""


def store_names(manifest: Manifest) -> list[str]:
    """Return the name in `contents` of each file's content, in the order of the manifest; "" for links."""
    digits, width = manifest.digests.hex(), 2 * DIGEST_BYTES
    names = [digits[at : at + width] for at in range(0, len(digits), width)]
    if any(manifest.kinds):
        for place, kind in enumerate(manifest.kinds):
            if kind:
                names[place] = names[place] + "x" if kind == EXECUTABLE else ""
    return names


def contents_of(manifest: Manifest) -> dict[str, int]:
    """Return the contents of a version: size in bytes by store name. Links have none."""
    found = dict(zip(store_names(manifest), manifest.sizes, strict=True))
    found.pop("", None)
    return found


def content_path(name: str) -> str:
    """Return the path of a content, by its store name, below the directory `contents`."""
    return f"{name[:_SHELF]}/{name[_SHELF:]}"


def present(contents: int, names: Collection[str]) -> set[str]:
    """Return those of the contents that have a file, complete or not, in the directory with the descriptor
    `contents`."""
    # A location's first fill would look up each of its contents in empty directories.
    used = {shelf for shelf in {name[:_SHELF] for name in names} if _has_files(contents, shelf)}
    if not used:
        return set()
    return {
        name
        for name in names
        if name[:_SHELF] in used and os.access(content_path(name), os.F_OK, dir_fd=contents)
    }


def _has_files(contents: int, shelf: str) -> bool:
    try:
        descriptor = os.open(shelf, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=contents)
    except FileNotFoundError:
        return False
    try:
        with os.scandir(descriptor) as entries:
            return next(entries, None) is not None
    finally:
        os.close(descriptor)


class TreeFill:
    """The creation of one version's files in the empty directory `part`, which no other process uses."""

    def __init__(
        self, contents: Path, part: Path, lake: Lake, manifest: Manifest, budget: Budget, report: Report
    ) -> None:
        self._part, self._lake, self._manifest = part, lake, manifest
        self._budget, self._report = budget, report
        self._sizes = contents_of(manifest)
        self._paths: dict[str, list[bytes]] = {}
        for name, path in zip(store_names(manifest), manifest.paths, strict=True):
            if name:
                self._paths.setdefault(name, []).append(path)
        self._done = Progress(0, 0, 0)
        # Threads add to it.
        self._ways: set[Sharing] = set()
        # Modes from which the umask takes nothing away.
        self._kept_modes: set[int] = set()
        self._contents = os.open(contents, os.O_RDONLY | os.O_DIRECTORY)
        self._tree = os.open(part, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        """Close the descriptors of the directories."""
        os.close(self._contents)
        os.close(self._tree)

    def run(self, trusted: set[str]) -> None:
        """Create all files. `trusted`: contents that other trees use, and that are therefore intact. Raises
        ContentMissing or ContentDamaged if the lake lacks a content or has it damaged, OSError if a file cannot be
        written, and what `budget` raises."""
        self._make_directories()
        lacking = self._link_present(trusted)
        self._bring(lacking)
        for entry in self._links():
            _make_link(
                os.path.join(os.fsencode(self._part), entry.path), entry, self._lake.read(entry.digest)
            )

    def _make_directories(self) -> None:
        root = os.fsencode(self._part)
        for directory in sorted({path.rpartition(b"/")[0] for path in self._manifest.paths} - {b""}):
            os.makedirs(os.path.join(root, directory), exist_ok=True)
        for shelf in {name[:_SHELF] for name in self._sizes}:
            # The fills of all trees share these directories.
            with suppress(FileExistsError):
                os.mkdir(shelf, dir_fd=self._contents)

    def _link_present(self, trusted: set[str]) -> list[str]:
        """Link the contents that are present; return the others. `trusted`: intact ones. Those left by a killed fill
        may not have reached the disk: they are verified by reading."""
        lacking = []
        there = present(self._contents, self._sizes.keys() - trusted)
        for names in chunks(self._sizes, _AT_ONCE):
            self._budget.check()
            linked = [
                name
                for name in names
                if (name in trusted or (name in there and self._is_intact(name))) and self._is_linked(name)
            ]
            if linked:
                self._note(linked, 0)
            if len(linked) != len(names):
                lacking += sorted(set(names).difference(linked))
        return lacking

    def _is_linked(self, name: str) -> bool:
        first, *others = self._paths[name]
        try:
            os.link(content_path(name), first, src_dir_fd=self._contents, dst_dir_fd=self._tree)
        except FileNotFoundError:
            # Removed with another tree at this moment.
            return False
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            self._copy(content_path(name), self._contents, first)
        self._repeat(first, others)
        return True

    def _is_intact(self, name: str) -> bool:
        # It may be large.
        self._budget.check()
        try:
            file = os.open(content_path(name), os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._contents)
        except FileNotFoundError:
            return False
        try:
            if hash_file(file, self._sizes[name]) == digest_of(name):
                return True
        except FileChanged:
            pass
        finally:
            os.close(file)
        with suppress(FileNotFoundError):
            os.unlink(content_path(name), dir_fd=self._contents)
        return False

    def _bring(self, names: Iterable[str]) -> None:
        wanted: dict[bytes, list[str]] = {}
        for name in names:
            wanted.setdefault(digest_of(name), []).append(name)
        located = self._lake.locate(wanted)
        with ThreadPoolExecutor(THREADS) as threads:
            try:
                for brought in threads.map(lambda piece: self._piece(piece, wanted), _pieces(located)):
                    self._note(brought, sum(self._sizes[name] for name in brought))
                    self._budget.check()
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
            for path in (
                path for one in located for name in wanted[one.digest] for path in self._paths[name]
            ):
                self._remove(path)
            for some in _pieces(moved):
                self._piece(some, wanted)
        return [name for one in located for name in wanted[one.digest]]

    def _store_contents(self, located: Sequence[Located], wanted: dict[bytes, list[str]]) -> None:
        if located[0].pack == WHOLE:
            for name in wanted[located[0].digest]:
                self._keep(name, partial(self._place, located[0], name))
        else:
            self._ways.add(Sharing.COPY)
            for digest, content in self._lake.contents(located):
                if sha256(content).digest() != digest:
                    raise ContentDamaged(digest)
                for name in wanted[digest]:
                    self._keep(name, partial(self._write, self._paths[name][0], content, _mode(name)))

    def _place(self, located: Located, name: str) -> None:
        first = self._paths[name][0]
        self._ways.add(self._lake.place(located, self._part / os.fsdecode(first), _mode(name)))

    def _write(self, path: bytes, content: bytes, mode: int) -> None:
        # Fails if the name is taken: by another one, where the file system ignores the case of names.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(path, flags, mode, dir_fd=self._tree)
        try:
            if mode not in self._kept_modes and os.fstat(file).st_mode & 0o777 == mode:
                self._kept_modes.add(mode)
            written = os.write(file, content)
            while written < len(content):
                written += os.write(file, content[written:])
            # The umask may take rights away, from all files alike.
            if mode not in self._kept_modes:
                os.fchmod(file, mode)
        finally:
            os.close(file)

    def _keep(self, name: str, create: Callable[[], None]) -> None:
        """Create a content's first file in the tree, link it into `contents`, then create the content's other files
        in the tree. If another fill stored the content meanwhile, share that file."""
        first, *others = self._paths[name]
        while True:
            create()
            try:
                os.link(first, content_path(name), src_dir_fd=self._tree, dst_dir_fd=self._contents)
            except FileExistsError:
                # Another fill stored it meanwhile: share its file.
                self._remove(first)
                if self._is_linked(name):
                    return None
                continue
            except OSError as error:
                # A hard link of a file in the lake that has as many links as the file system allows.
                if error.errno != errno.EMLINK:
                    raise
            return self._repeat(first, others)

    def _repeat(self, first: bytes, others: Iterable[bytes]) -> None:
        for path in others:
            try:
                os.link(first, path, src_dir_fd=self._tree, dst_dir_fd=self._tree)
            except OSError as error:
                # The content has as many links as the file system allows: use a copy.
                if error.errno != errno.EMLINK:
                    raise
                self._copy(first, self._tree, path)

    def _copy(self, source: str | bytes, folder: int, path: bytes) -> None:
        target = self._part / os.fsdecode(path)
        copy_file(os.fsencode(f"/proc/self/fd/{folder}/{os.fsdecode(source)}"), target)
        target.chmod(os.stat(source, dir_fd=folder).st_mode & 0o777)

    def _remove(self, path: bytes) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path, dir_fd=self._tree)

    def _note(self, names: Sequence[str], moved: int) -> None:
        done = self._done
        counts = [(len(self._paths[name]), self._sizes[name]) for name in names]
        self._done = Progress(
            done.files + sum(count for count, _ in counts),
            done.bytes_done + sum(count * size for count, size in counts),
            done.bytes_moved + moved,
            next((way for way in Sharing if way in self._ways), None),
        )
        self._report(self._done)

    def _links(self) -> Iterator[Entry]:
        kinds = self._manifest.kinds
        return (self._manifest.entry(place) for place, kind in enumerate(kinds) if kind == LINK)


def _make_link(path: bytes, entry: Entry, target: bytes) -> None:
    if sha256(target).digest() != entry.digest or not stays_inside(entry.path, target):
        raise ContentDamaged(entry.digest)
    os.symlink(target, path)


def _mode(name: str) -> int:
    return READ_ONLY | 0o111 if name.endswith("x") else READ_ONLY


def digest_of(name: str) -> bytes:
    """Return the digest of a content by its store name: the digest in hex, with "x" appended if executable."""
    return bytes.fromhex(name.removesuffix("x"))


def _pieces(located: Sequence[Located]) -> Iterator[Sequence[Located]]:
    """Split contents, sorted by file, into units of work: at most _AT_ONCE contents of one pack, or one content
    with its own file."""
    for pack, group in groupby(located, key=lambda one: one.pack):
        contents = list(group)
        step = 1 if pack == WHOLE else _AT_ONCE
        yield from (contents[start : start + step] for start in range(0, len(contents), step))
