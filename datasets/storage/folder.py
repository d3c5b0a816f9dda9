"""The lake as a folder.

    objects/ab/cdef...   one content each, of those above WHOLE_BYTES
    packs/ab/cdef....    many small contents each
    manifests/ab/cdef... encoded manifests
    parts/               large contents that are arriving
    staging/ab/          files before they are renamed
    quarantine/          contents that were found damaged
    index.sqlite         location of each content; rebuilt from the packs if missing

Files get their final name by rename, and the index names a content only after a flush. A process killed at
any moment leaves files that the index does not name; the next sync writes them again, or `collect` removes
them.

The age of a file is its inode's change time: a file that shares its inode with a user's file has that file's
modification time, which `renew` must not change.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from io import FileIO
from itertools import accumulate, islice, repeat
from pathlib import Path

from datasets.ingest.packs import (
    PackInvalid,
    checked_contents,
    pack_index,
    pack_name,
)
from datasets.ingest.reader import UNSETTLED, Content, FileChanged, hash_file
from datasets.storage.base import NOT_MOUNTED, UNLIMITED, Blocked, Budget, ContentDamaged, ContentMissing
from datasets.storage.checks import damaged_in, places_in, read_errors_suppressed, require_answer
from datasets.storage.contents import WHOLE, ContentIndex, Files, Located, Sharing
from datasets.storage.files import (
    FULL_DISK,
    READ_ONLY,
    blocked,
    changed_at,
    hard_link,
    make_spread,
    reflink,
    renew_file,
    share_file,
    sync_file_system,
    write_flushed,
    write_new,
)
from datasets.storage.indexed import INDEX, IndexedLake
from datasets.storage.parts import append, locked_part
from datasets.storage.tree_writer import spans

# Objects removed under one lock, which blocks flushes.
_REMOVED_AT_ONCE = 200
# Contents that are looked up to find the packs of many. In a pack's index, reading this many of its rows takes as long
# as one look-up.
_ASKED_AT_ONCE, _ROWS_PER_FOUND = 100, 10
_ABSENT = object()
# Larger contents have their own file, which can be shared by link.
WHOLE_BYTES = 256 << 10
_FOLDERS = ("objects", "packs", "manifests", "parts", "staging", "quarantine")


class FolderLake(IndexedLake[ContentIndex]):
    """A lake in a folder that this process can write to; implements datasets.storage.base.Lake."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, _FOLDERS, ContentIndex)

    def _renew_files(self, files: Files) -> None:
        for name in files.packs:
            renew_file(self._place("packs", name))
        for digest in files.alone:
            renew_file(self._place("objects", digest.hex()))

    def put_pack(self, pack: memoryview) -> None:
        contents = [Content(digest, bytes(data)) for digest, data in checked_contents(pack)]
        lacking = self.keep(content.digest for content in contents)
        self.flush(self.put_contents([content for content in contents if content.digest in lacking]))

    def put_contents(self, contents: Sequence[Content], adopt: Sharing = Sharing.REFLINK) -> list[Located]:
        """Write contents whose digests were computed in this process; pass the result to `flush` to index them.
        `adopt` HARD_LINK allows a large content to share the file it was read from; use it only if the owner agrees,
        since editing one file edits both. Raises Blocked if the disk refuses."""
        small = [content for content in contents if len(content.data) <= WHOLE_BYTES]
        large = [content for content in contents if len(content.data) > WHOLE_BYTES]
        try:
            written = self._write_pack(small) if small else []
            return written + [self._write_object(content, adopt) for content in large]
        except OSError as error:
            raise blocked(error) from error

    def put_file(
        self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int, adopt: Sharing = Sharing.REFLINK
    ) -> Located:
        """Write a large local file that had this digest, `size_bytes` and `mtime_ns` (as in Content); pass the
        result to `flush` to index it. `adopt`: as in `put_contents`. Raises FileChanged if the file differs now,
        Blocked if the disk is full, and OSError for errors that may be those of the file."""
        try:
            with self._staged() as fresh:
                if not self._shares(path, mtime_ns, fresh, adopt):
                    self._copy(digest, path, size_bytes, fresh)
                self._publish(fresh, "objects", digest.hex())
        except OSError as error:
            if error.errno in FULL_DISK:
                raise blocked(error) from error
            raise
        return Located(WHOLE, 0, size_bytes, digest)

    def flush(self, written: Sequence[Located]) -> None:
        """Flush written contents to disk, then index them. Pass only what the caller itself wrote before the
        call: concurrent writes of other threads may not be on disk when this returns. Raises Blocked if
        `collect` removed a file meanwhile: write it again."""
        if not written:
            return
        try:
            sync_file_system(self.root)
        except OSError as error:
            raise blocked(error) from error
        # Shared lock: requests that store do not wait for each other, only for a removal.
        with self._lock("removal", fcntl.LOCK_SH):
            # A small set, since most contents share a pack.
            files = {_file_key(one): one for one in written}
            gone = {key for key, one in files.items() if not os.path.exists(self._place(*_file_of(one)))}
            self._index.add([one for one in written if _file_key(one) not in gone] if gone else written)
        if gone:
            raise Blocked(
                "in_use", "Old content was removed while the same content was being stored; send it again."
            )

    def put_part(self, digest: bytes, offset: int, data: memoryview, size_bytes: int) -> int:
        path = self.root / "parts" / digest.hex()
        try:
            with locked_part(path) as file:
                # Checked under the lock: another request may have completed it.
                if self._is_stored(digest):
                    path.unlink()
                    self.renew([digest])
                    return size_bytes
                arrived = append(file, offset, data, size_bytes)
                if arrived == size_bytes:
                    self._finish_parts(digest, path, size_bytes)
                return arrived
        except OSError as error:
            raise blocked(error) from error

    def read(self, digest: bytes, offset: int = 0, length: int | None = None) -> bytes:
        located, length = self._range(digest, offset, length)
        with open(self.path_of(located), "rb", buffering=0) as file:
            return os.pread(file.fileno(), length, located.offset + offset)

    def contents(self, located: Sequence[Located]) -> Iterator[tuple[bytes, bytes]]:
        with self._opened(located[0]) as file:
            for span in spans([(one.offset, one.size_bytes) for one in located]):
                some = located[span]
                start = some[0].offset
                data = os.pread(file.fileno(), some[-1].offset + some[-1].size_bytes - start, start)
                for one in some:
                    yield one.digest, data[one.offset - start : one.offset - start + one.size_bytes]

    def place(
        self, located: Located, target: Path, mode: int, advanced: Callable[[int], None] = lambda _: None
    ) -> Sharing:
        # Opened first: what is missing in the lake has a name then.
        with self._opened(located):
            shared = share_file(self.path_of(located), target, mode, lambda done: advanced(done // 2))
        # A copy is written and then read; what is shared is read only.
        written = located.size_bytes if shared == Sharing.COPY else 0
        try:
            self._verify_placed(
                located, target, lambda read: advanced((written + read) // (2 if written else 1))
            )
        except ContentDamaged:
            target.unlink()
            raise
        return shared

    def _verify_placed(self, located: Located, target: Path, read: Callable[[int], None]) -> None:
        total = 0

        def take(piece: memoryview) -> None:
            nonlocal total
            total += len(piece)
            read(min(total, located.size_bytes))

        try:
            with open(target, "rb", buffering=0) as file:
                is_intact = hash_file(file.fileno(), located.size_bytes, take) == located.digest
        except FileChanged:
            is_intact = False
        if not is_intact:
            raise ContentDamaged(located.digest)

    def path_of(self, located: Located) -> Path:
        return self._path(*_file_of(located))

    def locate_many(self, digests: Sequence[bytes]) -> Iterator[list[Located]]:
        left, rows, found = dict.fromkeys(digests), 0, 0
        # The index of a pack has all its contents in one read, and the lake's index needs a look-up for each.
        while left and rows <= found * _ROWS_PER_FOUND:
            located = self.locate(islice(left, _ASKED_AT_ONCE))
            for pack in {one.pack for one in located} - {WHOLE}:
                places = self._places_in(pack)
                some = [one for one in places if left.pop(one.digest, _ABSENT) is None]
                rows, found = rows + len(places), found + len(some)
                yield some
            # Those with a file of their own, and of packs whose index is lost or damaged.
            yield [one for one in located if left.pop(one.digest, _ABSENT) is None]
        # These packs have mostly other contents: few are wanted of many.
        yield from super().locate_many(list(left))

    def _places_in(self, pack: str) -> list[Located]:
        try:
            return places_in(self._path("packs", pack), pack)
        except (FileNotFoundError, PackInvalid):
            return []

    def put_manifest(self, name: str, stored: bytes) -> None:
        try:
            with self._staged() as fresh:
                write_flushed(fresh, self._named("manifests", name), stored)
        except OSError as error:
            raise blocked(error) from error

    def renew_manifest(self, name: str) -> bool:
        return renew_file(self._place("manifests", name))

    def manifest(self, name: str) -> bytes:
        try:
            return self._path("manifests", name).read_bytes()
        except FileNotFoundError as error:
            raise ContentMissing(f"The lake has no manifest {name}.") from error

    def destroy(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def _write_pack(self, contents: Sequence[Content]) -> list[Located]:
        index = pack_index((content.digest, len(content.data)) for content in contents)
        name = pack_name(index)
        with self._staged() as fresh:
            write_new(fresh, *(content.data for content in contents), index)
            # Named by its index: writing the same contents twice gives one file.
            self._publish(fresh, "packs", name)
        sizes = [len(content.data) for content in contents]
        digests = [content.digest for content in contents]
        return list(map(Located, repeat(name), accumulate(sizes, initial=0), sizes, digests))

    def _write_object(self, content: Content, adopt: Sharing) -> Located:
        with self._staged() as fresh:
            if not (content.path and self._shares(content.path, content.mtime_ns, fresh, adopt)):
                write_new(fresh, content.data)
            self._publish(fresh, "objects", content.digest.hex())
        return Located(WHOLE, 0, len(content.data), content.digest)

    def _shares(self, path: bytes, mtime_ns: int, fresh: str, adopt: Sharing) -> bool:
        """Make `fresh` share the bytes of a file by reflink or, if `adopt` allows it, by hard link. Return False
        if the file system cannot, or if the file was removed, was written to since `mtime_ns`, or may have been
        (UNSETTLED)."""
        if adopt == Sharing.COPY or mtime_ns == UNSETTLED:
            return False
        shared = False
        # Removed or renamed since it was read, as temporary files are.
        with suppress(FileNotFoundError):
            may_link = adopt == Sharing.HARD_LINK and _is_linkable(os.stat(path))
            shared = reflink(path, fresh) or (may_link and hard_link(path, fresh))
            # Compare after linking: this detects writes before the link, and later ones do not reach a reflink.
            if shared and os.stat(path).st_mtime_ns == mtime_ns:
                os.chmod(fresh, READ_ONLY)
                return True
        if shared:
            os.unlink(fresh)
        return False

    def _copy(self, digest: bytes, path: bytes, size: int, fresh: str) -> None:
        with open(path, "rb", buffering=0) as source, open(fresh, "xb", buffering=0) as target:
            if hash_file(source.fileno(), size, target.write) != digest:
                raise FileChanged
            os.fchmod(target.fileno(), READ_ONLY)

    def _is_stored(self, digest: bytes) -> bool:
        """Return whether a content with a file of its own is stored. One whose request ended before it was
        indexed is indexed now."""
        path = self._path("objects", digest.hex())
        if self.lacking([digest]) and path.exists():
            self.flush(self._adopt_object(path, digest))
        return not self.lacking([digest])

    def _finish_parts(self, digest: bytes, path: Path, size: int) -> None:
        with open(path, "rb", buffering=0) as file:
            found = hash_file(file.fileno(), size)
        if found != digest:
            path.unlink()
            raise ContentDamaged(digest)
        # Moved before it becomes read-only: a request that repeats an interrupted one opens it for writing.
        self._publish(path, "objects", digest.hex())
        self._path("objects", digest.hex()).chmod(READ_ONLY)
        self.flush([Located(WHOLE, 0, size, digest)])

    def _damaged(self, located: Sequence[Located], budget: Budget) -> list[Located]:
        try:
            damaged = damaged_in(self.path_of(located[0]), located)
        except FileNotFoundError as error:
            raise self._lost(located[0]) from error
        if damaged:
            try:
                # A content that the disk cannot read is lost; all of them are there again when the disk answers.
                require_answer(self.root / INDEX)
            except OSError as error:
                raise blocked(error) from error
        return damaged

    def _quarantine(self, located: Located) -> None:
        path = self.path_of(located)
        self._index.forget([located.digest])
        away = self.root / "quarantine" / located.digest.hex()
        # Another verification moved it, or the file was lost; what the disk cannot read is not kept.
        with read_errors_suppressed(), suppress(FileNotFoundError):
            if located.pack == WHOLE:
                os.rename(path, away)
            else:
                with open(path, "rb", buffering=0) as file:
                    away.write_bytes(os.pread(file.fileno(), located.size_bytes, located.offset))

    def _fill_index(self) -> None:
        self._adopt_unindexed(UNLIMITED)

    def _adopt_unindexed(self, budget: Budget) -> None:
        # Removes damaged packs and objects.
        found: list[Located] = []
        known = self._index.packs()
        objects = {one.digest for one in self._index.of_pack(WHOLE)}
        try:
            for path in self._all("packs"):
                budget.check()
                if (name := _name(path)) not in known:
                    found += self._adopt_pack(path, name)
            for path in self._all("objects"):
                budget.check()
                if (digest := bytes.fromhex(_name(path))) not in objects:
                    found += self._adopt_object(path, digest)
        finally:
            # If the budget ends here, the next call continues.
            self.flush(found)

    def _adopt_pack(self, path: Path, name: str) -> list[Located]:
        try:
            places = places_in(path, name)
        except PackInvalid:
            path.unlink()
            return []
        damaged = {one.digest for one in damaged_in(path, places)}
        return [one for one in places if one.digest not in damaged]

    def _adopt_object(self, path: Path, digest: bytes) -> list[Located]:
        located = Located(WHOLE, 0, path.stat().st_size, digest)
        if damaged_in(path, [located]):
            path.unlink()
            return []
        return [located]

    def _collect_packs(self, live: set[bytes], before: float, budget: Budget) -> tuple[int, int]:
        count = size = 0
        for path in list(self._all("packs")):
            budget.check()
            if changed_at(path) > before:
                continue
            held = self._index.of_pack(_name(path))
            wanted = [one for one in held if one.digest in live]
            alive = sum(one.size_bytes for one in wanted)
            full = sum(one.size_bytes for one in held)
            if wanted and (len(wanted) == len(held) or alive * 2 > full):
                continue
            # More than half of the pack is unused: copy the rest to a new pack first.
            if wanted:
                moved = self._write_pack([Content(*one) for one in self.contents(wanted)])
                sync_file_system(self.root)
                self._index.move(moved)
            with self._lock("removal", fcntl.LOCK_EX):
                # Stored again meanwhile.
                if changed_at(path) > before:
                    continue
                # Update the index first: if the process is killed in between, a file without an index entry
                # remains, which is harmless, and not an entry without a file.
                self._index.forget_pack(_name(path))
                path.unlink()
            count, size = count + 1, size + full - alive
        return count, size

    def _collect_objects(self, live: set[bytes], before: float, budget: Budget) -> tuple[int, int]:
        dead = [one for one in self._index.of_pack(WHOLE) if one.digest not in live]
        count = size = 0
        for start in range(0, len(dead), _REMOVED_AT_ONCE):
            budget.check()
            with self._lock("removal", fcntl.LOCK_EX):
                some = dead[start : start + _REMOVED_AT_ONCE]
                some = [one for one in some if changed_at(self.path_of(one)) <= before]
                # Index first, as for packs.
                self._index.forget(one.digest for one in some)
                for one in some:
                    self.path_of(one).unlink(missing_ok=True)
            count, size = count + len(some), size + sum(one.size_bytes for one in some)
        return count, size

    def _collect_manifests(self, live: set[str], before: float) -> int:
        dead = [
            path for path in self._all("manifests") if _name(path) not in live and changed_at(path) <= before
        ]
        for path in dead:
            path.unlink()
        return len(dead)

    def _collect_leftovers(self, before: float) -> None:
        shelves = [f"staging/{path.name}" for path in (self.root / "staging").iterdir() if path.is_dir()]
        self._remove_old((*shelves, "staging", "parts", "quarantine"), before)

    @cached_property
    def _staging(self) -> str:
        """One of 256 folders, which lie apart on the disk (see `make_spread`): files stay where they are created, which
        then is seldom where others were removed of late, or where another process creates some."""
        make_spread(self.root / "staging")
        shelf = f"{self.root}/staging/{os.urandom(1).hex()}"
        os.makedirs(shelf, exist_ok=True)
        return shelf

    @contextmanager
    def _staged(self) -> Iterator[str]:
        # A str, and so are the paths of contents: a Path for each takes a tenth of a sync.
        fresh = f"{self._staging}/{os.urandom(16).hex()}"
        try:
            yield fresh
        finally:
            # Also after a rename, which does nothing if both names are links to one file.
            with suppress(FileNotFoundError):
                os.unlink(fresh)

    def _opened(self, located: Located) -> FileIO:
        try:
            return open(self.path_of(located), "rb", buffering=0)
        except FileNotFoundError as error:
            raise self._lost(located) from error

    def _lost(self, located: Located) -> ContentMissing | Blocked:
        """Return the error for a content whose file is not there."""
        # Its index can still be read then, and would forget everything.
        if not self.root.is_dir():
            return Blocked(NOT_MOUNTED, "The disk of the lake was unmounted meanwhile.")
        return ContentMissing(f"The lake has lost content {located.digest.hex()}.")

    def _path(self, folder: str, name: str) -> Path:
        return Path(self._place(folder, name))

    def _place(self, folder: str, name: str) -> str:
        return f"{self.root}/{folder}/{name[:2]}/{name[2:]}"

    def _publish(self, fresh: Path | str, folder: str, name: str) -> None:
        target = self._place(folder, name)
        try:
            os.rename(fresh, target)
        except FileNotFoundError:
            # The first of its directory: there are 256.
            Path(target).parent.mkdir(exist_ok=True)
            os.rename(fresh, target)

    def _named(self, folder: str, name: str) -> Path:
        path = self._path(folder, name)
        path.parent.mkdir(exist_ok=True)
        return path

    def _all(self, folder: str) -> Iterator[Path]:
        return (path for shelf in sorted((self.root / folder).iterdir()) for path in shelf.iterdir())


def _is_linkable(status: os.stat_result) -> bool:
    """Return whether a file loses nothing but its write permissions if it becomes a content by hard link. Contents are
    readable by all and executable by none, and only the owner of a file may change its mode."""
    return status.st_mode & 0o555 == READ_ONLY and os.geteuid() in (0, status.st_uid)


def _file_of(located: Located) -> tuple[str, str]:
    """Return folder and name of the file that holds a content."""
    return ("packs", located.pack) if located.pack != WHOLE else ("objects", located.digest.hex())


def _file_key(located: Located) -> str | bytes:
    return located.pack if located.pack != WHOLE else located.digest


def _name(path: Path) -> str:
    return path.parent.name + path.name
