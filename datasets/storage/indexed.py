"""Base class of lakes with a local index file: lookups, verification, collection, locks, and rebuilding the index."""

from __future__ import annotations

import fcntl
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from pathlib import Path
from typing import Generic, TypeVar

from datasets.manifests import Diff, Manifest, decode, new_contents
from datasets.storage.base import UNLIMITED, Blocked, Budget, Collected, ContentMissing, Verified
from datasets.storage.contents import INDEX_DAMAGED, WHOLE, ContentIndex, Files, Located, chunks
from datasets.storage.files import blocked, changed_at, locked

# Name of the index in a lake's folder.
INDEX = "index.sqlite"
# Contents per look-up of many.
_LOCATED_AT_ONCE = 20_000
# Manifests remembered as complete; a sync needs that of the version before.
_COMPLETE_MOST = 100
Index = TypeVar("Index", bound=ContentIndex)


def by_file(located: Sequence[Located]) -> Iterator[list[Located]]:
    """Split contents, which are sorted by file, into groups: all from one pack, or a single content with its own
    file."""
    for pack, group in groupby(located, key=lambda one: one.pack):
        if pack == WHOLE:
            yield from ([one] for one in group)
        else:
            yield list(group)


class IndexedLake(ABC, Generic[Index]):
    """A lake with index, locks and incomplete uploads of large contents below `root`, which all processes share.
    Implements look-ups, verification and collection of datasets.storage.base.Lake; subclasses store and read the
    bytes. `folders`: created below `root`; construction raises Blocked if that fails."""

    _index: Index

    def __init__(self, root: Path, folders: Iterable[str], index: type[Index]) -> None:
        self.root = root
        # Manifests whose contents were all found, with the number of removals before that.
        self._complete: dict[str, int] = {}
        # Manifest, its base, the removals and the files of the last `lacking_of` that lacked nothing.
        self._found = "", "", -1, Files(set(), set(), [])
        try:
            for name in folders:
                (root / name).mkdir(parents=True, exist_ok=True)
            self._index = self._open_index(root / INDEX, index)
        except OSError as error:
            raise blocked(error) from error

    def _open_index(self, path: Path, index: type[Index]) -> Index:
        if path.exists():
            try:
                return index(path)
            except Blocked as damaged:
                if damaged.code != INDEX_DAMAGED:
                    raise
        self._make_index(path, index)
        return index(path)

    @abstractmethod
    def manifest(self, name: str) -> bytes:
        """Return the encoded manifest with the hash `name`. Raises ContentMissing if it is not stored."""

    @abstractmethod
    def _renew_files(self, files: Files) -> None:
        """Protect the contents in these files from `collect`."""

    def keep(self, digests: Iterable[bytes]) -> set[bytes]:
        wanted = set(digests)
        files = self._index.files_of(wanted)
        self._renew_files(files)
        return wanted - files.known

    def renew(self, digests: Iterable[bytes]) -> None:
        self.keep(digests)

    @abstractmethod
    def _fill_index(self) -> None:
        """Add everything that is stored to the new, empty index."""

    def close(self) -> None:
        self._index.close()

    def lacking(self, digests: Iterable[bytes]) -> set[bytes]:
        wanted = set(digests)
        return wanted - self._index.known(wanted)

    def lacking_of(self, manifest: Manifest, base: Manifest, diff: Diff) -> set[bytes]:
        # Read before the look-ups: what is removed during them makes it differ.
        removals = self._index.removals()
        is_known = self._complete.get(base.hash) == removals
        wanted = new_contents(base, manifest, diff) if is_known else set(manifest.contents())
        files = self._index.files_of(wanted)
        if len(files.known) == len(wanted):
            self._complete[manifest.hash] = removals
            while len(self._complete) > _COMPLETE_MOST:
                self._complete.pop(next(iter(self._complete)), None)
            self._found = manifest.hash, base.hash, removals, files._replace(known=set())
        return wanted - files.known

    def keep_of(self, manifest: Manifest, base: Manifest, diff: Diff) -> set[bytes]:
        name, found_base, removals, files = self._found
        # Removed from the index first: what is in these files still is there after they were renewed.
        if (name, found_base) == (manifest.hash, base.hash):
            self._renew_files(files)
            if self._index.removals() == removals:
                return set()
        return self.keep(new_contents(base, manifest, diff))

    def part_bytes(self, digest: bytes) -> int:
        try:
            return (self.root / "parts" / digest.hex()).stat().st_size
        except FileNotFoundError:
            return 0

    def locate(self, digests: Iterable[bytes]) -> list[Located]:
        wanted = set(digests)
        located = self._index.locate(wanted)
        if len(located) != len(wanted):
            missing = min(wanted - {one.digest for one in located})
            raise ContentMissing(f"The lake has no content {missing.hex()}.")
        return located

    def locate_many(self, digests: Sequence[bytes]) -> Iterator[list[Located]]:
        return map(self.locate, chunks(digests, _LOCATED_AT_ONCE))

    def _range(self, digest: bytes, offset: int, length: int | None) -> tuple[Located, int]:
        """Return where a content is, and how many bytes it has from `offset` on, at most `length`."""
        [located] = self.locate([digest])
        rest = located.size_bytes - offset
        return located, max(0, rest if length is None else min(length, rest))

    @abstractmethod
    def contents(self, located: Sequence[Located]) -> Iterator[tuple[bytes, bytes]]:
        """Yield (digest, bytes) of the contents at `located`, which must all be of one pack, or be one content with its
        own file. The caller must verify the digests. Raises as `Lake.contents` does."""

    def read_many(
        self, digests: Sequence[bytes], budget: Budget = UNLIMITED
    ) -> Iterator[tuple[bytes, bytes]]:
        for some in by_file(self.locate(digests)):
            budget.check()
            yield from self._contents_wherever(some)

    def _contents_wherever(self, located: Sequence[Located]) -> list[tuple[bytes, bytes]]:
        try:
            return list(self.contents(located))
        except ContentMissing:
            # A collection may have moved contents to other packs after they were located.
            moved = self.locate(one.digest for one in located)
            if moved == list(located):
                raise
            return [found for some in by_file(moved) for found in self.contents(some)]

    def verify(self, digests: Iterable[bytes], budget: Budget = UNLIMITED) -> Verified:
        wanted = set(digests)
        located = self._index.locate(wanted)
        moved_away: set[bytes] = set()
        for some in by_file(located):
            budget.check()
            try:
                damaged = self._damaged(some, budget)
            except ContentMissing:
                self._forget_file(some)
                continue
            for one in damaged:
                self._quarantine(one)
                moved_away.add(one.digest)
        present = self._index.known(wanted) | moved_away
        size = sum(one.size_bytes for one in located if one.digest in present)
        return Verified(len(present), size, sorted(wanted - present), sorted(moved_away))

    @abstractmethod
    def _damaged(self, located: Sequence[Located], budget: Budget) -> list[Located]:
        """Return those of `located`, which are in one file, whose bytes do not match their digests. Raises
        ContentMissing if the file is lost, and what `budget` raises."""

    @abstractmethod
    def _quarantine(self, located: Located) -> None:
        """Move a damaged content away and remove it from the index."""

    def collect(
        self,
        live_manifests: Callable[[], Iterable[str]],
        *,
        older_than_seconds: float,
        budget: Budget = UNLIMITED,
    ) -> Collected:
        self._adopt_unindexed(budget)
        with self._lock("lock", fcntl.LOCK_EX):
            # Called under the lock: a request that creates a version waits for it.
            names = set(live_manifests())
            live = self._contents_of(names)
            before = time.time() - older_than_seconds
            packs, pack_bytes = self._collect_packs(live, before, budget)
            objects, object_bytes = self._collect_objects(live, before, budget)
            manifests = self._collect_manifests(names, before)
            self._collect_leftovers(before)
            return Collected(packs, objects, manifests, pack_bytes + object_bytes)

    def in_use(self, seconds: float | None = None) -> AbstractContextManager[None]:
        return self._lock("lock", fcntl.LOCK_SH, seconds)

    def _lock(self, name: str, kind: int, seconds: float | None = None) -> AbstractContextManager[None]:
        return locked(self.root / name, kind, seconds)

    def _contents_of(self, manifests: Iterable[str]) -> set[bytes]:
        live: set[bytes] = set()
        for name in manifests:
            live.update(decode(self.manifest(name)).contents())
        return live

    def _forget_file(self, located: Sequence[Located]) -> None:
        """Remove the contents `located` of a lost file from the index, so that the next sync sends them again.
        Keeps those that `collect` moved to another pack."""
        if located[0].pack == WHOLE:
            self._index.forget(one.digest for one in located)
        else:
            self._index.forget_pack(located[0].pack)

    @abstractmethod
    def _collect_packs(self, live: set[bytes], before: float, budget: Budget) -> tuple[int, int]:
        """Remove packs last needed before `before` (Unix time) of which less than half is live, and keep that part
        elsewhere. `live`: digests in use. Return the number of packs and the bytes freed."""

    @abstractmethod
    def _collect_objects(self, live: set[bytes], before: float, budget: Budget) -> tuple[int, int]:
        """Remove contents with their own file that are not in `live` (digests) and were last needed before `before`
        (Unix time). Return their number and the bytes freed."""

    @abstractmethod
    def _collect_manifests(self, live: set[str], before: float) -> int:
        """Remove manifests that are not in `live` (hashes) and were last needed before `before` (Unix time); return
        their number."""

    @abstractmethod
    def _collect_leftovers(self, before: float) -> None:
        """Remove quarantined contents and leftovers of interrupted writes, if older than `before` (Unix time)."""

    def _adopt_unindexed(self, budget: Budget) -> None:
        """Add to the index what a process stored before it was killed. The default does nothing, for lakes that
        index a content before they store it."""

    def _remove_old(self, folders: Iterable[str], before: float) -> None:
        for folder in folders:
            for path in (self.root / folder).iterdir():
                if not path.is_dir() and changed_at(path) <= before:
                    path.unlink(missing_ok=True)

    def _make_index(self, path: Path, index: type[Index]) -> None:
        """Build the index from what is stored. It is renamed to its final name when complete: other processes
        that open the lake wait, and a killed process leaves no incomplete index."""
        with self._lock("lock", fcntl.LOCK_EX):
            if path.exists():
                return
            fresh = path.with_name("index.sqlite.new")
            # SQLite would replay the journal of another index into this one.
            for left in (fresh, path):
                for end in ("", "-wal", "-shm"):
                    left.with_name(left.name + end).unlink(missing_ok=True)
            self._index = index(fresh)
            try:
                self._fill_index()
            finally:
                self._index.close()
            os.rename(fresh, path)
