"""The sink that writes into a folder lake on the same machine. Worker processes open it (see datasets.ingest.worker);
it loads nothing that only buckets need."""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from datasets.ingest.packs import CONTENT_MOST_BYTES
from datasets.ingest.reader import Content
from datasets.ingest.worker import Say, SinkSpec, silent
from datasets.storage.contents import Located, Sharing
from datasets.storage.folder import WHOLE_BYTES, FolderLake

# Twice this is the upper bound of what must be stored again after a process is killed: so much may be written while as
# much is flushed.
FLUSH_BYTES = 512 << 20
# A thread whose write has ended waits for a core; the disk has the writes of others meanwhile.
WRITERS = 4


class FolderSink:
    """Stores contents in a folder lake on this machine; implements datasets.ingest.reader.Sink. `adopt`: how a file
    outside the lake becomes a content. Flushes by itself after FLUSH_BYTES.

    Threads write the contents of one call while the caller reads those of the next, and another flushes what was
    written before: `put_contents` and `flush` raise what the write or flush before them raised."""

    def __init__(self, lake: FolderLake, adopt: Sharing) -> None:
        self._lake, self._adopt = lake, adopt
        # What becomes a link is hashed piece by piece: keeping it in memory until it is linked takes a fifth longer.
        self.most_in_memory_bytes = WHOLE_BYTES if adopt == Sharing.HARD_LINK else CONTENT_MOST_BYTES
        self._device = os.stat(lake.root).st_dev
        self._unflushed: list[Located] = []
        self._unflushed_bytes = 0
        self._writers, self._flusher = ThreadPoolExecutor(WRITERS), ThreadPoolExecutor(1)
        self._writing: list[Future[list[Located]]] = []
        self._flushing: Future[None] | None = None

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        return self._lake.keep(digests)

    def put_contents(self, contents: Sequence[Content]) -> None:
        self._end_write()
        self._writing = [
            self._writers.submit(self._lake.put_contents, some, self._adopt) for some in _shares(contents)
        ]

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        if os.stat(path).st_dev != self._device:
            # It will be copied, which reads and hashes it again; the next ones better stay in memory.
            self.most_in_memory_bytes = CONTENT_MOST_BYTES
        self._written([self._lake.put_file(digest, path, size_bytes, mtime_ns, self._adopt)])

    def flush(self) -> None:
        self._end_write()
        self._begin_flush()
        self._end_flush()

    def _end_write(self) -> None:
        writing, self._writing = self._writing, []
        # Also if one of them fails: the others still read memory that the caller uses again after this.
        wait(writing)
        for one in writing:
            self._written(one.result())

    def _begin_flush(self) -> None:
        self._end_flush()
        self._flushing = self._flusher.submit(self._lake.flush, self._unflushed)
        self._unflushed, self._unflushed_bytes = [], 0

    def _end_flush(self) -> None:
        flushing, self._flushing = self._flushing, None
        if flushing is not None:
            flushing.result()

    def _written(self, located: Sequence[Located]) -> None:
        self._unflushed += located
        self._unflushed_bytes += sum(one.size_bytes for one in located)
        if self._unflushed_bytes >= FLUSH_BYTES:
            self._begin_flush()


def _shares(contents: Sequence[Content]) -> list[list[Content]]:
    """Return the contents that each thread writes: those of one pack together, and the large ones, which have files of
    their own, spread over all threads."""
    large = [one for one in contents if len(one.data) > WHOLE_BYTES]
    shares = [[one for one in contents if len(one.data) <= WHOLE_BYTES]]
    shares += [large[number::WRITERS] for number in range(WRITERS)]
    return [share for share in shares if share]


def folder_sink(root: str, adopt: str, *, say: Say = silent) -> FolderSink:
    """Return a sink into the folder lake at `root`; called in the worker process. `adopt`: the value of a
    Sharing, how large files become contents. `say` is not used: writing to a folder never waits."""
    return FolderSink(FolderLake(Path(root)), Sharing(adopt))


def sink_of_folder(root: Path, adopt: Sharing = Sharing.REFLINK) -> SinkSpec:
    """Return the description of a sink into the folder lake at `root`; worker processes open it with
    `folder_sink`. `adopt`: how large files become contents."""
    return f"{__name__}:folder_sink", (str(root), adopt.value)
