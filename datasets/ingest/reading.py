"""The reading phase of a sync. It begins while the tree is still walked: worker processes read the directories that
were found, and the caller looks for more."""

import selectors
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from datasets.ingest.reader import Failed, Read, Reader, Row, Wanted
from datasets.ingest.tree import Directory
from datasets.ingest.worker import Say, SinkSpec, Worker, open_sink
from datasets.manifests import DIGEST_BYTES

BATCH_FILES, BATCH_BYTES = 400, 8 << 20
# Below this size a second worker process costs more than it gains.
ALONE_FILES, ALONE_BYTES = 200, 16 << 20


@dataclass(slots=True)
class _Run:
    """Files that follow each other in their directory: the rows from `start` on, before `end`."""

    directory: Directory
    start: int
    end: int

    @property
    def rows(self) -> list[Row]:
        return self.directory.rows[self.start : self.end]


@dataclass(slots=True)
class _Batch:
    """Files that are sent to a worker together."""

    runs: list[_Run] = field(default_factory=list)
    files: int = 0
    size_bytes: int = 0

    def add(self, directory: Directory, row: int, size: int) -> None:
        last = self.runs[-1] if self.runs else None
        if last and last.directory is directory and last.end == row:
            last.end += 1
        else:
            self.runs.append(_Run(directory, row, row + 1))
        self.files += 1
        self.size_bytes += size

    @property
    def is_full(self) -> bool:
        return self.files >= BATCH_FILES or self.size_bytes >= BATCH_BYTES

    @property
    def wanted(self) -> list[Wanted]:
        return [(run.directory.path, run.rows) for run in self.runs]


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a sync. `files` and `size_bytes`: totals of the files that must be read, as far as they are found;
    `files_done` and `bytes_done`: those read so far."""

    files_done: int
    files: int
    bytes_done: int
    size_bytes: int


class Cancelled(Exception):
    """The caller cancelled the sync. Stored contents stay, and the next sync uses them."""


class Reading:
    """Reads files below `root` into a sink and writes their digests into their directories. Context manager, which
    ends the worker processes.

    `sink`, `nearby`, `workers`, `report` and `say`: as in `datasets.ingest.engine.sync_tree`. Every method may raise
    Cancelled, WorkerFailed, and what the sink raises."""

    def __init__(
        self,
        root: bytes,
        sink: SinkSpec,
        nearby: Callable[[], SinkSpec | None],
        workers: int,
        report: Callable[[Progress], bool],
        say: Say,
    ) -> None:
        self._root, self._sink, self._nearby, self._workers = root, sink, nearby, workers
        self._report, self._say = report, say
        self._batches: deque[_Batch] = deque()
        # The one that is not full yet.
        self._batch = _Batch()
        self._crew: list[Worker] = []
        self._at_work: dict[Worker, _Batch] = {}
        self._answers = selectors.DefaultSelector()
        self.files = self.size_bytes = 0
        self._files_done = self._bytes_done = 0
        self.failed: list[tuple[bytes, Failed]] = []
        # Whether every file that was read was as the walk had found it: only then is the listing remembered for the
        # next sync.
        self.is_as_walked = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        for worker in self._crew:
            worker.kill()

    def add(self, directory: Directory, rows: Iterable[int]) -> None:
        """Read the files of a directory with these indexes. Returns at once: worker processes read them while the
        caller adds others."""
        for row in rows:
            size = directory.rows[row][2]
            self._batch.add(directory, row, size)
            self.files += 1
            self.size_bytes += size
            if self._batch.is_full:
                self._end_batch()
        if not self._crew and (self.files > ALONE_FILES or self.size_bytes > ALONE_BYTES):
            self._start_crew()
        if self._crew:
            self._hand_out()
            self._take_answers(0)

    def forget(self) -> None:
        """Forget all files that were added. Contents of some may be stored."""
        self._batches.clear()
        self._batch = _Batch()
        while self._at_work:
            self._take_answers(None)
        self.files = self.size_bytes = self._files_done = self._bytes_done = 0
        self.failed, self.is_as_walked = [], True

    def complete(self) -> None:
        """Read all files that were added, and begin to flush what was stored; see `flush`."""
        self._end_batch()
        if not self._crew:
            self._read_alone()
        self._hand_out()
        while self._at_work:
            self._take_answers(None)
        for worker in self._crew:
            worker.begin_flush()

    def flush(self) -> None:
        """Wait until everything that was stored is on disk. Call it after `complete`."""
        for worker in self._crew:
            worker.finish()

    def _start_crew(self) -> None:
        sink = self._nearby() or self._sink
        for _ in range(self._workers):
            worker = Worker(self._root, sink, self._say)
            self._crew.append(worker)
            self._answers.register(worker.output, selectors.EVENT_READ, worker)

    def _end_batch(self) -> None:
        if self._batch.files:
            self._batches.append(self._batch)
            self._batch = _Batch()

    def _hand_out(self) -> None:
        for worker in self._crew:
            if self._batches and worker not in self._at_work:
                self._start(worker)

    def _start(self, worker: Worker) -> None:
        batch = self._batches.popleft()
        self._at_work[worker] = batch
        worker.start(batch.wanted)

    def _take_answers(self, seconds: float | None) -> None:
        """Take what workers have read, and give them more. Waits for the first answer this long, None: without
        limit."""
        for key, _ in self._answers.select(seconds):
            worker = key.data
            if (results := worker.results()) is None:
                continue
            batch = self._at_work.pop(worker)
            if self._batches:
                self._start(worker)
            self._take(batch, results)

    def _read_alone(self) -> None:
        batches, self._batches = self._batches, deque()
        if not batches:
            return
        reader = Reader(self._root, open_sink(self._sink, self._say))
        for batch in batches:
            self._take(batch, reader.read(batch.wanted))
        reader.flush()

    def _take(self, batch: _Batch, results: bytes | Sequence[Read | Failed]) -> None:
        at = 0
        for run in batch.runs:
            count = run.end - run.start
            if isinstance(results, bytes):
                _set_digests(run, results[at * DIGEST_BYTES : (at + count) * DIGEST_BYTES])
            else:
                self._take_each(run, results[at : at + count])
            at += count
        self._files_done += batch.files
        self._bytes_done += batch.size_bytes
        if not self._report(Progress(self._files_done, self.files, self._bytes_done, self.size_bytes)):
            raise Cancelled

    def _take_each(self, run: _Run, results: Sequence[Read | Failed]) -> None:
        directory = run.directory
        for place, result in enumerate(results, run.start):
            name, kind, _, _, inode = directory.rows[place]
            if isinstance(result, str):
                self.failed.append((directory.path + b"/" + name if directory.path else name, result))
                continue
            if isinstance(result, tuple):
                # Changed since the walk.
                self.is_as_walked = False
                result, size, mtime = result
                directory.rows[place] = name, kind, size, mtime, inode
            _set_digests(_Run(directory, place, place + 1), result)


def _set_digests(run: _Run, digests: bytes) -> None:
    directory = run.directory
    if not directory.digests:
        directory.digests = bytearray(len(directory.rows) * DIGEST_BYTES)
    directory.digests[run.start * DIGEST_BYTES : run.end * DIGEST_BYTES] = digests
