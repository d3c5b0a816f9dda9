"""The interface of a lake: contents by their SHA-256, and manifests that list them.

Rules that every backend keeps, and tests/contract/test_lake.py checks:

- Every write may be repeated, at once or after a crash: digest and manifest hash are its idempotency key.
- A content is there (`lacking` leaves it out) only once it would survive a power cut.
- Whatever may take long takes a `Budget` and raises DeadlineExceeded or Cancelled between two steps; what was stored
  until then stays, and the same call goes on from there.
- A backend that cannot go on raises Blocked with the reason that a person can act on.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from datasets.storage.contents import Located


class Blocked(Exception):
    """Something outside the control plane is in the way. `code`: `disk_full`, `not_writable`, `unreachable`,
    `no_bucket`, `in_use` and those of a storage driver; `detail` says what to do. `is_passing`: another try may go
    better."""

    def __init__(self, code: str, detail: str, *, is_passing: bool = True) -> None:
        super().__init__(detail)
        self.code, self.detail, self.is_passing = code, detail, is_passing


class DeadlineExceeded(TimeoutError):
    """The budget of a call is used up; repeat the call to go on."""


class Cancelled(Exception):
    """The caller asked to stop."""


class ContentMissing(LookupError):
    """A content or manifest is not in the lake."""


class ContentDamaged(Exception):
    """A stored content does not match its digest."""

    def __init__(self, digest: bytes) -> None:
        super().__init__(f"The stored content {digest.hex()} is damaged.")
        self.digest = digest


class Budget:
    """How long a call may take, and whether it is still wanted."""

    def __init__(
        self, seconds: float | None = None, is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._ends = None if seconds is None else time.monotonic() + seconds
        self._is_cancelled = is_cancelled

    def check(self) -> None:
        """Raise DeadlineExceeded or Cancelled when the call must end."""
        if self._is_cancelled():
            raise Cancelled("Cancelled.")
        if self._ends is not None and time.monotonic() > self._ends:
            raise DeadlineExceeded("The time for this step is used up; it goes on with the next call.")


UNLIMITED = Budget()


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed."""

    packs: int
    objects: int
    manifests: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check of contents found. `quarantined`: damaged ones were moved away, so that the next sync stores them
    again."""

    contents: int
    size_bytes: int
    missing: Sequence[bytes]
    quarantined: Sequence[bytes]


class Lake(Protocol):
    """Contents and manifests."""

    def close(self) -> None:
        """Close files. The lake is not used after it."""

    def lacking(self, digests: Iterable[bytes]) -> set[bytes]:
        """Return which contents are not there."""

    def renew(self, digests: Iterable[bytes]) -> None:
        """Make contents that are there count as new for `collect`: a sync that will not send them relies on them."""

    def put_pack(self, pack: memoryview) -> None:
        """Store the contents of a pack (datasets.ingest.packs) that may come from anyone. Raises PackInvalid before
        anything of it is stored."""

    def part_bytes(self, digest: bytes) -> int:
        """Return how much of a large content has arrived."""

    def put_part(self, digest: bytes, offset: int, data: memoryview, size_bytes: int) -> int:
        """Append a part of a large content of `size_bytes` in all; return how much has arrived. Parts that are there
        are skipped. The last one raises ContentDamaged, and forgets all parts, for bytes that are not the digest's."""

    def read(self, digest: bytes, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a content. Raises ContentMissing."""

    def read_many(
        self, digests: Sequence[bytes], budget: Budget = UNLIMITED
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (digest, bytes) of contents, in the order that is cheapest. Raises ContentMissing."""

    def locate(self, digests: Iterable[bytes]) -> list[Located]:
        """Return where contents are, in the order that is cheapest to read. Raises ContentMissing."""

    def contents(self, located: Sequence[Located]) -> Iterator[tuple[bytes, bytes]]:
        """Yield (digest, bytes) of contents of one pack, or of a content of its own. Not checked: the caller compares
        the digests. Raises ContentMissing and, for a pack that is cut off, ContentDamaged."""

    def place(self, located: Located, target: Path, mode: int) -> None:
        """Make `target` a file with a content that is stored alone, sharing its bytes where that is possible. Raises
        ContentMissing, and ContentDamaged after a check of all bytes."""

    def put_manifest(self, name: str, stored: bytes) -> None:
        """Store an encoded manifest under its hash."""

    def renew_manifest(self, name: str) -> bool:
        """Make a manifest count as new for `collect`. Return whether it is there."""

    def manifest(self, name: str) -> bytes:
        """Return an encoded manifest. Raises ContentMissing."""

    def verify(self, digests: Iterable[bytes], budget: Budget = UNLIMITED) -> Verified:
        """Read and hash contents; move damaged ones away."""

    def in_use(self, seconds: float | None = None) -> AbstractContextManager[None]:
        """Keep `collect` from running while a version that names contents is made: check that all contents are there
        and write the version inside. Waits for a collection at work, at most `seconds`; then it raises Blocked."""

    def collect(
        self,
        live_manifests: Callable[[], Iterable[str]],
        *,
        older_than_seconds: float,
        budget: Budget = UNLIMITED,
    ) -> Collected:
        """Remove what no live manifest names and what broken-off writes left, unless it is younger. `live_manifests` is
        called once no version can be made any more."""

    def destroy(self) -> None:
        """Remove everything. May be repeated until nothing is left."""
