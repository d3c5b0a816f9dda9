"""The sink that writes into a folder lake on the same machine. Worker processes open it (see datasets.ingest.worker);
it loads nothing that only buckets need."""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from datasets.ingest.packs import CONTENT_MOST_BYTES
from datasets.ingest.reader import Content
from datasets.ingest.worker import Say, SinkSpec, silent
from datasets.storage.contents import Located, Sharing
from datasets.storage.folder import WHOLE_BYTES, FolderLake

# Upper bound of what must be stored again after a process is killed.
FLUSH_BYTES = 512 << 20


class FolderSink:
    """Stores contents in a folder lake on this machine; implements datasets.ingest.reader.Sink. `adopt`: how a file
    outside the lake becomes a content. Flushes by itself after FLUSH_BYTES.

    A thread writes the contents of one call while the caller reads those of the next: `put_contents` and `flush` raise
    what the write before them raised."""

    def __init__(self, lake: FolderLake, adopt: Sharing) -> None:
        self._lake, self._adopt = lake, adopt
        # What becomes a link is hashed piece by piece: keeping it in memory until it is linked takes a fifth longer.
        self.most_in_memory_bytes = WHOLE_BYTES if adopt == Sharing.HARD_LINK else CONTENT_MOST_BYTES
        self._device = os.stat(lake.root).st_dev
        self._unflushed: list[Located] = []
        self._unflushed_bytes = 0
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[list[Located]] | None = None

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        return self._lake.keep(digests)

    def put_contents(self, contents: Sequence[Content]) -> None:
        self._end_write()
        self._writing = self._thread.submit(self._lake.put_contents, contents, self._adopt)

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        if os.stat(path).st_dev != self._device:
            # It will be copied, which reads and hashes it again; the next ones better stay in memory.
            self.most_in_memory_bytes = CONTENT_MOST_BYTES
        self._written([self._lake.put_file(digest, path, size_bytes, mtime_ns, self._adopt)])

    def flush(self) -> None:
        self._end_write()
        self._flush()

    def _end_write(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            self._written(writing.result())

    def _flush(self) -> None:
        self._lake.flush(self._unflushed)
        self._unflushed, self._unflushed_bytes = [], 0

    def _written(self, located: Sequence[Located]) -> None:
        self._unflushed += located
        self._unflushed_bytes += sum(one.size_bytes for one in located)
        if self._unflushed_bytes >= FLUSH_BYTES:
            self._flush()


def folder_sink(root: str, adopt: str, *, say: Say = silent) -> FolderSink:
    """Return a sink into the folder lake at `root`; called in the worker process. `adopt`: the value of a
    Sharing, how large files become contents. `say` is not used: writing to a folder never waits."""
    return FolderSink(FolderLake(Path(root)), Sharing(adopt))


def sink_of_folder(root: Path, adopt: Sharing = Sharing.REFLINK) -> SinkSpec:
    """Return the description of a sink into the folder lake at `root`; worker processes open it with
    `folder_sink`. `adopt`: how large files become contents."""
    return f"{__name__}:folder_sink", (str(root), adopt.value)
