"""The interface of a lake: contents by their SHA-256, and manifests that list them.

Rules for every backend, checked by tests/contract/test_lake.py:

- Every write may be repeated, at once or after a crash: digest and manifest hash are the idempotency key.
- A content counts as stored (`lacking` omits it) only once it would survive a power cut.
- Calls that may take long get a `Budget` and raise DeadlineExceeded or Cancelled between two steps; completed
  steps are kept, and repeating the call continues from there.
- A backend that cannot continue raises Blocked with a reason that an operator can act on.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from datasets.manifests import Diff, Manifest
from datasets.storage.contents import Located, Sharing

# Codes of Blocked: a directory that was there is not, since its disk is not mounted; a disk has no free space.
NOT_MOUNTED, DISK_FULL = "not_mounted", "disk_full"


class Blocked(Exception):
    """Something outside the control plane prevents the operation. `code`: `disk_full`, `not_writable`,
    `unreachable`, `no_bucket`, `in_use`, `index_damaged`, or one of a storage driver; `detail` says what to do.
    `is_passing`: a retry may succeed."""

    def __init__(self, code: str, detail: str, *, is_passing: bool = True) -> None:
        super().__init__(detail)
        self.code, self.detail, self.is_passing = code, detail, is_passing


class DeadlineExceeded(TimeoutError):
    """The time budget of a call is used up; repeat the call to continue."""


class Cancelled(Exception):
    """The caller cancelled the call; stored contents stay."""


class ContentMissing(LookupError):
    """A content or manifest is not in the lake."""


class ContentDamaged(Exception):
    """A stored content does not match its digest."""

    def __init__(self, digest: bytes) -> None:
        super().__init__(f"The stored content {digest.hex()} is damaged.")
        self.digest = digest


class Budget:
    """Time limit of a call in `seconds` (None: no limit), and its cancellation: `is_cancelled` returns True or
    raises Cancelled. A call that only waits for a storage system calls `give_way` every few seconds, which ends it by
    an exception while other work needs its thread; it is repeated, and `waited_seconds` is how long the earlier
    calls waited."""

    def __init__(
        self,
        seconds: float | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
        give_way: Callable[[], None] = lambda: None,
        waited_seconds: float = 0.0,
    ) -> None:
        self.give_way, self.waited_seconds = give_way, waited_seconds
        self._ends = None if seconds is None else time.monotonic() + seconds
        self._is_cancelled = is_cancelled

    def check(self) -> None:
        """Raise DeadlineExceeded or Cancelled if the call must end."""
        if self._is_cancelled():
            raise Cancelled("Cancelled.")
        if self._ends is not None and time.monotonic() > self._ends:
            raise DeadlineExceeded("The time limit of this step was reached; the next call continues.")


UNLIMITED = Budget()


@dataclass(frozen=True, slots=True)
class Collected:
    """How many packs, contents with their own file (`objects`) and manifests a garbage collection removed, and their
    size."""

    packs: int
    objects: int
    manifests: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of verifying contents: their number and size, and the digests of missing ones. `quarantined`: damaged
    ones, moved away so that the next sync stores them again."""

    contents: int
    size_bytes: int
    missing: Sequence[bytes]
    quarantined: Sequence[bytes]


class Lake(Protocol):
    """Interface of a store of contents and manifests."""

    def close(self) -> None:
        """Close the lake's files. Do not use the lake afterwards."""

    def lacking(self, digests: Iterable[bytes]) -> set[bytes]:
        """Return those of these digests whose contents are not stored."""

    def lacking_of(self, manifest: Manifest, base: Manifest, diff: Diff) -> set[bytes]:
        """Return those contents of a manifest that are not stored. `diff`: from `base`, whose contents are not looked
        up if this object found them all and nothing was removed since."""

    def keep_of(self, manifest: Manifest, base: Manifest, diff: Diff) -> set[bytes]:
        """Do what `keep` does for all contents of a manifest that `base` does not have. Looks none of them up if
        `lacking_of` just found them all and nothing was removed since. `diff`: from `base`."""

    def renew(self, digests: Iterable[bytes]) -> None:
        """Protect the stored contents among these digests from `collect` by making them young: a sync that does
        not send them relies on them."""

    def keep(self, digests: Iterable[bytes]) -> set[bytes]:
        """Do what `renew` and `lacking` do, in one pass: protect the stored contents from `collect`, return the
        digests of the others."""

    def put_pack(self, pack: memoryview) -> None:
        """Store the contents of a pack (datasets.ingest.packs) from an untrusted source. Raises PackInvalid
        before storing anything."""

    def part_bytes(self, digest: bytes) -> int:
        """Return how many bytes of a large content have arrived so far, 0 before the first part."""

    def put_part(self, digest: bytes, offset: int, data: memoryview, size_bytes: int) -> int:
        """Append a part, which begins at `offset`, of a large content with `size_bytes` in total; return how many
        bytes have arrived. Skips what is stored. If the complete content does not match its digest, drops all parts
        and raises ContentDamaged."""

    def read(self, digest: bytes, offset: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes of a content from `offset`, None for all to its end. Raises ContentMissing if it is
        not stored."""

    def read_many(
        self, digests: Sequence[bytes], budget: Budget = UNLIMITED
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (digest, bytes) of contents, in the cheapest order. Raises ContentMissing if one is not stored, and
        what `budget` raises."""

    def locate(self, digests: Iterable[bytes]) -> list[Located]:
        """Return the locations of the contents with these digests, in the order that is cheapest to read. Raises
        ContentMissing if one is not stored."""

    def locate_many(self, digests: Sequence[bytes]) -> Iterator[list[Located]]:
        """Yield the locations of the contents with these digests, some at a time, so that the first are read while
        others are looked up. A location may be out of date: a content that is missing or damaged there may be found
        elsewhere by `locate`. Raises ContentMissing if one is not stored."""

    def contents(self, located: Sequence[Located]) -> Iterator[tuple[bytes, bytes]]:
        """Yield (digest, bytes) of the contents at `located`: contents of one pack, or one content with its own
        file. The caller must verify the digests. Raises ContentMissing and, for a truncated pack, ContentDamaged."""

    def place(
        self, located: Located, target: Path, mode: int, advanced: Callable[[int], None] = lambda _: None
    ) -> Sharing:
        """Create the file `target`, with the permissions `mode`, from a content that has its own file, sharing
        bytes if the file system can. Return how the bytes were duplicated. `advanced` is called now and then with the
        bytes of the content that are done, 0 to its size; its exception ends the call and may leave a part of the
        file. Raises ContentMissing if the content is gone, ContentDamaged after reading all bytes if they do not match
        the digest."""

    def path_of(self, located: Located) -> Path | None:
        """Return the path of the file that contains the bytes of a content, its own or a pack; None if that is not on
        this machine."""

    def put_manifest(self, name: str, stored: bytes) -> None:
        """Store an encoded manifest under its hash `name`, which is not verified, in place of one that is there: that
        may be damaged."""

    def renew_manifest(self, name: str) -> bool:
        """Protect a manifest from `collect` by making it young. Return whether it is stored."""

    def manifest(self, name: str) -> bytes:
        """Return the encoded manifest with the hash `name`. Raises ContentMissing if it is not stored."""

    def verify(self, digests: Iterable[bytes], budget: Budget = UNLIMITED) -> Verified:
        """Read the contents with these digests and compare them. Damaged ones are quarantined, so that the next
        sync stores them again; missing and damaged ones are returned, not raised. Raises what `budget` raises."""

    def in_use(self, seconds: float | None = None) -> AbstractContextManager[None]:
        """Context manager that blocks `collect` while a version is created: inside, check that all contents are
        stored and write the version. Waits for a running collection, for `seconds` (None: without limit), then
        raises Blocked."""

    def collect(
        self,
        live_manifests: Callable[[], Iterable[str]],
        *,
        older_than_seconds: float,
        budget: Budget = UNLIMITED,
    ) -> Collected:
        """Remove contents that no live manifest uses and leftovers of interrupted writes, unless younger than
        `older_than_seconds`. `live_manifests` returns the hashes of all versions' manifests; it is called once the
        creation of versions is blocked. Raises what `budget` raises."""

    def destroy(self) -> None:
        """Remove the whole lake. Call it again after an error: it continues."""
