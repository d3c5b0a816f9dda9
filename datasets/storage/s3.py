"""The lake in a bucket of an S3 endpoint.

    packs/ab/cdef...             many contents each, up to CONTENT_MOST_BYTES, as they arrived
    objects/ab/<digest>/00000..  a larger content: pieces of PIECE_BYTES; the first is stored last, and completes it
    manifests/ab/cdef...         encoded manifests
    quarantine/<digest>          contents that were found damaged

The rest is in a folder shared by all processes of the control plane, and can be rebuilt: the index (from the
ends of the packs), arriving large contents, copies of manifests, and locks. Lookups use the index alone, so
that no transaction waits for the endpoint. Pieces are stored as they arrive: an interrupted sync continues at
its byte, and no piece is sent to the bucket twice.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from uuid import uuid4

from datasets.ingest.packs import (
    TAIL_BYTES,
    PackInvalid,
    checked_contents,
    index_bytes,
    make_pack,
    pack_name,
    read_index,
)
from datasets.ingest.reader import hash_file
from datasets.storage.ages import AgedIndex
from datasets.storage.base import Blocked, Budget, ContentDamaged, ContentMissing
from datasets.storage.bucket import Bucket, KeyMissing, TooShort
from datasets.storage.contents import WHOLE, Files, Located, Sharing, located_in
from datasets.storage.files import (
    blocked,
    is_locked,
    write_flushed,
)
from datasets.storage.indexed import IndexedLake
from datasets.storage.parts import append, locked_part
from datasets.storage.pieces import (
    PIECE_BYTES,
    THREADS,
    Pieces,
    key_of,
    name_of,
    object_key,
    piece_key,
    shelf_key,
)

_REMOVED_AT_ONCE = 200
_FOLDERS = ("parts", "manifests", "staging")


class S3Lake(IndexedLake[AgedIndex]):
    """A lake in a bucket, with its index below `root`; implements datasets.storage.base.Lake."""

    def __init__(self, bucket: Bucket, root: Path) -> None:
        self._bucket, self._pieces = bucket, Pieces(bucket)
        super().__init__(root, _FOLDERS, AgedIndex)

    def _renew_files(self, files: Files) -> None:
        keys = [*(shelf_key("packs", name) for name in files.packs), *map(object_key, files.alone)]
        with self._lock("removal", fcntl.LOCK_SH):
            self._index.renew(keys, time.time())

    def put_pack(self, pack: memoryview) -> None:
        contents = list(checked_contents(pack))
        digests = {digest for digest, _ in contents}
        lacking = self.keep(digests)
        if lacking == digests:
            self._store_pack(pack)
        elif lacking:
            self._store_contents([one for one in contents if one[0] in lacking])

    def put_part(self, digest: bytes, offset: int, data: memoryview, size_bytes: int) -> int:
        path = self.root / "parts" / digest.hex()
        try:
            with locked_part(path) as file:
                # Checked under the lock: another request may have completed it.
                if not self.lacking([digest]):
                    path.unlink()
                    self.renew([digest])
                    return size_bytes
                self._note([object_key(digest)])
                held = os.fstat(file.fileno()).st_size
                if held == 0 or held > size_bytes:
                    # Pieces of bytes that turned out not to match the digest.
                    self._pieces.remove([object_key(digest)])
                arrived = append(file, offset, data, size_bytes)
                if arrived == size_bytes:
                    self._finish(digest, path, size_bytes)
                elif arrived // PIECE_BYTES > held // PIECE_BYTES:
                    self._pieces.store(digest, path, arrived // PIECE_BYTES * PIECE_BYTES)
                return arrived
        except OSError as error:
            raise blocked(error) from error

    def read(self, digest: bytes, offset: int = 0, length: int | None = None) -> bytes:
        located, length = self._range(digest, offset, length)
        return b"".join(self._pieces.ranges(located, offset, length))

    def contents(self, located: Sequence[Located]) -> Iterator[tuple[bytes, bytes]]:
        if located[0].pack == WHOLE:
            for one in located:
                yield one.digest, b"".join(self._pieces.ranges(one, 0, one.size_bytes))
            return
        found = self._pieces.of_pack(located)
        yield from ((one.digest, data) for one, data in zip(located, found, strict=True))

    def path_of(self, located: Located) -> Path | None:
        return None

    def place(
        self, located: Located, target: Path, mode: int, advanced: Callable[[int], None] = lambda _: None
    ) -> Sharing:
        hashed = sha256()
        with open(target, "xb", buffering=0) as file:
            for data in self._pieces.ranges(located, 0, located.size_bytes):
                hashed.update(data)
                file.write(data)
                advanced(file.tell())
            os.fchmod(file.fileno(), mode)
        if hashed.digest() != located.digest:
            raise ContentDamaged(located.digest)
        return Sharing.COPY

    def put_manifest(self, name: str, stored: bytes) -> None:
        self._keep_manifest(name, stored)
        self._refuse_removed([shelf_key("manifests", name)])
        self._bucket.put(shelf_key("manifests", name), stored)
        # Recorded after it is stored: `renew_manifest` answers from the index.
        self._note([shelf_key("manifests", name)])

    def renew_manifest(self, name: str) -> bool:
        with self._lock("removal", fcntl.LOCK_SH):
            return self._index.renew([shelf_key("manifests", name)], time.time()) > 0

    def manifest(self, name: str) -> bytes:
        with suppress(FileNotFoundError):
            return (self.root / "manifests" / name).read_bytes()
        try:
            stored = self._bucket.get(shelf_key("manifests", name))
        except KeyMissing as error:
            raise ContentMissing(f"The lake has no manifest {name}.") from error
        self._keep_manifest(name, stored)
        return stored

    def destroy(self) -> None:
        self._bucket.delete(key for key, _ in self._bucket.list())
        shutil.rmtree(self.root, ignore_errors=True)

    def _store_contents(self, contents: Sequence[tuple[bytes, bytes | memoryview]]) -> list[Located]:
        return self._store_pack(make_pack(contents))

    def _store_pack(self, pack: bytes | memoryview) -> list[Located]:
        entries, index = read_index(pack)
        name = pack_name(index)
        located = located_in(name, entries)
        # Recorded before it is stored, so that a concurrent collection keeps it.
        self._note([shelf_key("packs", name)])
        self._bucket.put(shelf_key("packs", name), pack)
        # `move`, not `add`: the contents of a pack that is being collected get their new location.
        self._index.move(located)
        return located

    def _finish(self, digest: bytes, path: Path, size: int) -> None:
        with open(path, "rb", buffering=0) as file:
            found = hash_file(file.fileno(), size)
        if found != digest:
            # Before the part is removed: while it exists, a repeated request gets the same answer.
            self._pieces.remove([object_key(digest)])
            path.unlink()
            raise ContentDamaged(digest)
        self._pieces.complete(digest, path, size)
        self._index.add([Located(WHOLE, 0, size, digest)])
        path.unlink()

    def _damaged(self, located: Sequence[Located], budget: Budget) -> list[Located]:
        if located[0].pack != WHOLE:
            # Truncated: check its contents one by one.
            with suppress(ContentDamaged):
                found = dict(self.contents(located))
                return [one for one in located if sha256(found[one.digest]).digest() != one.digest]
        return [one for one in located if self._hash(one, budget) != one.digest]

    def _hash(self, located: Located, budget: Budget) -> bytes:
        hashed = sha256()
        try:
            for data in self._pieces.ranges(located, 0, located.size_bytes):
                budget.check()
                hashed.update(data)
        except ContentDamaged:
            return b""
        return hashed.digest()

    def _quarantine(self, located: Located) -> None:
        away = f"quarantine/{located.digest.hex()}"
        self._index.forget([located.digest])
        self._note([away])
        # Another verification moved it, or it is truncated.
        with suppress(KeyMissing, TooShort):
            if located.pack == WHOLE:
                for key, _ in list(self._bucket.list(object_key(located.digest))):
                    self._bucket.move(key, f"{away}/{key.rpartition('/')[2]}")
            else:
                data = self._bucket.get_range(key_of(located), located.offset, located.size_bytes)
                self._bucket.put(f"{away}/content", data)

    def _collect_packs(self, live: set[bytes], before: float, budget: Budget) -> tuple[int, int]:
        count = size = 0
        for key in self._index.old("packs", before):
            budget.check()
            held = self._index.of_pack(name_of(key))
            wanted = [one for one in held if one.digest in live]
            alive, full = sum(one.size_bytes for one in wanted), sum(one.size_bytes for one in held)
            if wanted and (len(wanted) == len(held) or alive * 2 > full):
                continue
            # More than half of the pack is unused: copy the rest to a new pack first.
            if wanted:
                self._store_contents(list(self.contents(wanted)))
            if self._remove([key], before):
                count, size = count + 1, size + full - alive
        return count, size

    def _collect_objects(self, live: set[bytes], before: float, budget: Budget) -> tuple[int, int]:
        """Remove large contents that are not in `live` (digests), and pieces of uploads that were never
        completed, if last needed before `before` (Unix time). Return the number and bytes of the contents."""
        kept = {one.hex() for one in live}
        dead = [key for key in self._index.old("objects", before) if name_of(key) not in kept]
        count = size = 0
        for start in range(0, len(dead), _REMOVED_AT_ONCE):
            budget.check()
            some = dead[start : start + _REMOVED_AT_ONCE]
            known = self._index.locate(bytes.fromhex(name_of(key)) for key in some)
            gone = set(self._remove(some, before))
            removed = [one for one in known if key_of(one) in gone]
            count, size = count + len(removed), size + sum(one.size_bytes for one in removed)
        return count, size

    def _collect_manifests(self, live: set[str], before: float) -> int:
        dead = [key for key in self._index.old("manifests", before) if name_of(key) not in live]
        removed = self._remove(dead, before)
        for key in removed:
            (self.root / "manifests" / name_of(key)).unlink(missing_ok=True)
        return len(removed)

    def _collect_leftovers(self, before: float) -> None:
        self._remove(self._index.old("quarantine", before), before)
        self._remove_old(("staging", "parts"), before)

    def _remove(self, keys: Sequence[str], before: float) -> list[str]:
        """Remove those of these objects that were last needed at `before` (Unix time) or earlier; return their
        keys. If the process is killed, the next call removes the rest."""
        if not keys:
            return []
        # This lock is held until all are removed; the one for storing is not, because requests would wait for
        # the endpoint.
        with self._lock("removing", fcntl.LOCK_EX):
            with self._lock("removal", fcntl.LOCK_EX):
                gone = self._index.begin_removal(keys, before)
                for key in gone:
                    if key.startswith("packs/"):
                        self._index.forget_pack(name_of(key))
                self._index.forget(bytes.fromhex(name_of(key)) for key in gone if key.startswith("objects/"))
            # After they are removed from the index, so that none is read.
            self._bucket.delete([key for key in gone if not _is_folder(key)])
            self._pieces.remove([key for key in gone if _is_folder(key)])
            self._index.drop(gone)
            return gone

    def _note(self, keys: Sequence[str]) -> None:
        with self._lock("removal", fcntl.LOCK_SH):
            self._refuse_removed(keys)
            self._index.note(keys, time.time())

    def _refuse_removed(self, keys: Sequence[str]) -> None:
        """Raise Blocked if one of these objects is being removed. Marks left by a killed removal do not count."""
        # The deletion could hit what is stored now.
        if self._index.in_removal(keys) and is_locked(self.root / "removing"):
            raise Blocked("in_use", "The lake is just removing the same content; try again.")

    def _keep_manifest(self, name: str, stored: bytes) -> None:
        """Write a copy of a manifest beside the index, atomically and durably. Raises Blocked if the disk
        refuses."""
        fresh = self.root / "staging" / uuid4().hex
        try:
            write_flushed(fresh, self.root / "manifests" / name, stored)
        except OSError as error:
            raise blocked(error) from error
        finally:
            fresh.unlink(missing_ok=True)

    def _fill_index(self) -> None:
        # Treat all of it as young: the times were in the lost index.
        now = time.time()
        packs = dict(self._bucket.list("packs"))
        self._index.note([*packs, *(key for key, _ in self._bucket.list("manifests"))], now)
        with ThreadPoolExecutor(THREADS) as threads:
            for located in threads.map(lambda pack: self._places_in(*pack), packs.items()):
                self._index.add(located)
        pieces = groupby(self._bucket.list("objects"), key=lambda piece: piece[0].rpartition("/")[0])
        for folder, group in pieces:
            sizes = dict(group)
            digest = bytes.fromhex(name_of(folder))
            self._index.note([folder], now)
            # The first piece is stored last: without it the content is incomplete.
            if piece_key(digest, 0) in sizes:
                self._index.add([Located(WHOLE, 0, sum(sizes.values()), digest)])

    def _places_in(self, key: str, size: int) -> list[Located]:
        try:
            tail = self._bucket.get_range(key, max(0, size - TAIL_BYTES), min(size, TAIL_BYTES))
            length = index_bytes(tail)
            entries, _ = read_index(self._bucket.get_range(key, max(0, size - length), min(size, length)))
        except (PackInvalid, KeyMissing, TooShort):
            # The pack is truncated or is just being removed.
            return []
        return located_in(name_of(key), entries)


def _is_folder(key: str) -> bool:
    return key.startswith(("objects/", "quarantine/"))
