"""A lake as the target of a sync on its own machine: what worker processes open (see datasets.ingest.worker)."""

from collections.abc import Sequence
from pathlib import Path

from datasets.ingest.reader import Content
from datasets.ingest.worker import SinkSpec
from datasets.storage.contents import Located
from datasets.storage.files import Sharing
from datasets.storage.folder import FolderLake

# What a process killed in the middle stores again, at most.
FLUSH_BYTES = 512 << 20


class FolderSink:
    """Writes into a folder lake of this machine."""

    def __init__(self, lake: FolderLake, adopt: Sharing) -> None:
        self._lake, self._adopt = lake, adopt
        self._unflushed: list[Located] = []
        self._unflushed_bytes = 0

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        """See datasets.ingest.reader.Sink."""
        lacking = self._lake.lacking(digests)
        self._lake.renew(set(digests) - lacking)
        return lacking

    def put_contents(self, contents: Sequence[Content]) -> None:
        """See datasets.ingest.reader.Sink."""
        self._written(self._lake.put_contents(contents, self._adopt))

    def put_file(self, digest: bytes, path: bytes, size_bytes: int) -> None:
        """See datasets.ingest.reader.Sink."""
        self._written([self._lake.put_file(digest, path, size_bytes, self._adopt)])

    def flush(self) -> None:
        """See datasets.ingest.reader.Sink."""
        self._lake.flush(self._unflushed)
        self._unflushed, self._unflushed_bytes = [], 0

    def _written(self, located: Sequence[Located]) -> None:
        self._unflushed += located
        self._unflushed_bytes += sum(one.size_bytes for one in located)
        if self._unflushed_bytes >= FLUSH_BYTES:
            self.flush()


def folder_sink(root: str, adopt: str) -> FolderSink:
    """Open the lake in a worker."""
    return FolderSink(FolderLake(Path(root)), Sharing(adopt))


def sink_of_folder(root: Path, adopt: Sharing = Sharing.REFLINK) -> SinkSpec:
    """Return what a worker opens to write into a folder lake."""
    return f"{__name__}:folder_sink", (str(root), adopt.value)
