"""A sink for worker processes whose lake is away. Only the standard library: they have nothing else."""

from collections.abc import Sequence

from datasets.ingest.reader import Content
from datasets.ingest.worker import Say, silent
from datasets.storage.base import Blocked


class AwaySink:
    """Refuses as a lake does whose server is away."""

    def put_contents(self, contents: Sequence[Content]) -> None:
        raise Blocked("unreachable", "The lake is away.\tTry again later.")

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        raise Blocked("unreachable", "The lake is away.")

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        return set(digests)

    def flush(self) -> None:
        """Nothing is held."""


def away_sink(*, say: Say = silent) -> AwaySink:
    return AwaySink()
