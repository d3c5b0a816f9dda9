"""A sink for worker processes that refuses all contents, as if its lake could not be reached. Imports little, as
those processes do."""

from collections.abc import Sequence

from datasets.ingest.packs import CONTENT_MOST_BYTES
from datasets.ingest.reader import Content
from datasets.ingest.worker import Say, silent
from datasets.storage.base import Blocked


class AwaySink:
    """A sink whose lake cannot be reached: it raises Blocked for every content."""

    most_in_memory_bytes = CONTENT_MOST_BYTES

    def put_contents(self, contents: Sequence[Content]) -> None:
        raise Blocked("unreachable", "The lake is away.\tTry again later.")

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        raise Blocked("unreachable", "The lake is away.")

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        return set(digests)

    def flush(self) -> None:
        """Do nothing: nothing is stored."""


def away_sink(*, say: Say = silent) -> AwaySink:
    return AwaySink()
