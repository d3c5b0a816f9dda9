"""Create the manifest of a directory. Digests of unchanged files come from the stat index; worker processes
read the others."""

import operator
import os
import selectors
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from datasets.ingest.last_listing import (
    Difference,
    LastListing,
    difference,
    forget_last,
    load_last,
    save_last,
    young_paths,
)
from datasets.ingest.listing import Listing, Seen, forget_seen, line_path, load_seen, save_seen
from datasets.ingest.reader import Failed, Read, Reader, Wanted
from datasets.ingest.tree import Changes, Skipped, StatIndex, Walk, all_of, load_index, save_index, walk
from datasets.ingest.worker import Say, SinkSpec, Worker, open_sink, silent
from datasets.manifests import DIGEST_BYTES, Manifest, checked

BATCH_FILES, BATCH_BYTES = 400, 8 << 20
# A listing with more files that may have changed since is not stored for the next sync.
KEPT_YOUNG_MOST = 1000
# Below this size a second worker process costs more than it gains.
ALONE_FILES, ALONE_BYTES = 200, 16 << 20


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a sync. `files` and `size_bytes`: totals of the files that must be read; `files_done` and
    `bytes_done`: those read so far."""

    files_done: int
    files: int
    bytes_done: int
    size_bytes: int


@dataclass(slots=True)
class Synced:
    """Result of a sync. `manifest`: None if nothing changed since `version`, or if files failed. `files`: of the
    tree, of which `files_read` had to be read."""

    manifest: Manifest | None
    version: str  # the manifest hash
    files: int
    files_read: int
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[tuple[bytes, Failed]] = field(default_factory=list)


class Cancelled(Exception):
    """The caller cancelled the sync. Stored contents stay, and the next sync uses them."""


def sync_tree(
    root: Path,
    sink: SinkSpec,
    *,
    index: Path | None = None,
    listing: Listing | None = None,
    base: str = "",
    nearby: Callable[[], SinkSpec | None] = lambda: None,
    workers: int = 0,
    report: Callable[[Progress], bool] = lambda _: True,
    say: Say = silent,
) -> Synced:
    """Read a directory into the lake behind `sink`.

    `index`: the file in which the last sync of this directory into this lake stored its stat index; None reads all
    files. `listing`: a listing of the directory that is already running; None: walk the directory here. `base`: the
    manifest hash of the newest version. `nearby` is called before more than a few files are read and may return a
    sink to use instead. `workers`: processes that read, 0 for `reading_processes`. `report` returns False to
    cancel. `say` gets a line when the sink has to wait, possibly from another thread, and if the
    index cannot be stored.

    If files could not be read, they are in `failed` and `manifest` is None. Raises SourceMissing if `root` is not a
    directory, Cancelled, WorkerFailed if a worker ended early, and what the sink raises.
    """
    if base and (same := _seen_again(index, listing, base)):
        return same
    start, readers = os.fsencode(root), workers or reading_processes()
    if index and listing and (last := load_last(index)) and (few := difference(last, listing)):
        if few.is_empty and base == last.manifest.hash:
            return Synced(None, base, few.files, 0, few.skipped)
        job = _Job(few.found, all_of(few.found), report, say)
        job.read(start, sink, nearby, readers)
        if patched := _patched(job, last, few, index, listing, say):
            return patched
    # Taken before the walk: a file that changes during the walk is newer, and is read again next time.
    walked_ns = listing.started_ns if listing else time.time_ns()
    listed = listing.walk() if listing else None
    if listed is None:
        listing = None
    found = listed or walk(start)
    known = load_index(index) if index else StatIndex()
    changes = known.fill(found)
    if changes.is_same and not found.failed and base and known.version == base:
        with _storing(index, say):
            _see(index, listing, base, found)
        return Synced(None, base, found.files, 0, found.skipped)
    job = _Job(found, changes, report, say)
    job.read(start, sink, nearby, readers)
    if job.failed:
        return Synced(None, "", found.files, len(changes.places), found.skipped, job.failed)
    manifest = job.manifest or manifest_of(found)
    # Saved only after all contents are stored: the index of a failed sync would hide missing contents.
    with _storing(index, say):
        if index:
            save_index(index, manifest.hash, found, walked_ns)
        if index and job.is_as_walked:
            _see(index, listing, manifest.hash, found)
            _keep_listing(index, listing, manifest, found)
    return Synced(manifest, manifest.hash, found.files, len(changes.places), found.skipped)


def reading_processes() -> int:
    """Return how many processes read a large sync on this machine: one per core, at most four."""
    return min(4, os.cpu_count() or 1)


def _seen_again(index: Path | None, listing: Listing | None, base: str) -> Synced | None:
    """Return the result "nothing changed" if the listing equals the one stored beside the stat index for the
    version `base`, else None."""
    seen = load_seen(index) if index and listing else None
    if seen is None or listing is None or seen.version != base or seen.digest != listing.digest:
        return None
    return Synced(None, base, seen.files, 0, seen.skipped)


def _patched(
    job: "_Job", last: LastListing, few: Difference, index: Path, listing: Listing, say: Say
) -> Synced | None:
    """Return the result of a sync that read the files of `few` in `job`; store the listing for the next one. None if
    the last listing turns out not to be that of its manifest."""
    read = Synced(None, "", few.files, job.files_done, few.skipped, job.failed)
    if job.failed:
        return read
    manifest = last.manifest.patched(few.gone, manifest_of(few.found))
    if len(manifest) != few.files:
        return None
    # The stat index stays as it is: what it knows of files that did not change is right.
    if job.is_as_walked:
        unsettled = few.unsettled(listing)
        with _storing(index, say):
            save_last(index, listing, manifest, unsettled, few.skipped)
            if not unsettled:
                save_seen(index, Seen(manifest.hash, listing.digest, few.files, few.skipped))
    return replace(read, manifest=manifest, version=manifest.hash)


@contextmanager
def _storing(index: Path | None, say: Say) -> Iterator[None]:
    """Context manager for what is stored beside a stat index. It only reports what cannot be stored: that makes the
    next sync faster, and the version is complete without it."""
    try:
        yield
    except OSError as error:
        say(f"the next sync will take longer: {error.strerror}")
        with suppress(OSError):
            if index:
                # What was written of a new file.
                index.with_suffix(f".{os.getpid()}").unlink()


def _keep_listing(index: Path, listing: Listing | None, manifest: Manifest, found: Walk) -> None:
    """Store a listing and its manifest for the next sync, unless it would have to read many files again."""
    if listing is None or len(young := young_paths(found, listing)) > KEPT_YOUNG_MOST:
        return
    lines = enumerate(listing.lines) if young else ()
    unsettled = [place for place, line in lines if line_path(line) in young]
    save_last(index, listing, manifest, unsettled, found.skipped)


def forget_index(index: Path) -> None:
    """Remove everything that is stored about a directory's files: the next sync reads all."""
    index.unlink(missing_ok=True)
    forget_seen(index)
    forget_last(index)


def _see(index: Path | None, listing: Listing | None, version: str, found: Walk) -> None:
    """Store the listing's hash beside the stat index, for a version (its manifest's hash) and its walk `found`.
    Does nothing without an index or a listing, and if a file could still change without changing the listing."""
    if index and listing and listing.settled(found):
        save_seen(index, Seen(version, listing.digest, found.files, found.skipped))


def manifest_of(found: Walk) -> Manifest:
    """Return the manifest of a walk. All its digests must be known. Raises ManifestInvalid if a path is not
    accepted."""
    paths: list[bytes] = []
    for directory in found.directories:
        prefix = directory.path + b"/" if directory.path else b""
        paths += [prefix + row[0] for row in directory.rows]
    rows = [row for directory in found.directories for row in directory.rows]
    digests = b"".join(directory.digests for directory in found.directories)
    manifest = Manifest(paths, bytes([row[1] for row in rows]), array("Q", [row[2] for row in rows]), digests)
    # Directories are in order, their files too; only names around "/" and files beside directories change the order.
    if any(map(operator.gt, paths, islice(paths, 1, None))):
        manifest = manifest.only(sorted(range(len(paths)), key=paths.__getitem__))
    return checked(manifest)


class _Job:
    """The reading phase of one sync."""

    def __init__(self, found: Walk, changes: Changes, report: Callable[[Progress], bool], say: Say) -> None:
        self._found, self._directories, self._places = found, found.directories, changes.places
        self._report, self._say = report, say
        self._bytes = sum(self._row(place)[2] for place in self._places)
        self.failed = list(found.failed)
        self.files_done = self.bytes_done = 0
        # Whether every file that was read was as the walk had found it: only then is the listing remembered for the
        # next sync.
        self.is_as_walked = True
        # Made while worker processes flush; None if there were none, or files failed.
        self.manifest: Manifest | None = None

    def read(self, root: bytes, sink: SinkSpec, nearby: Callable[[], SinkSpec | None], workers: int) -> None:
        """Read every changed file below `root` into `sink`, with this number of worker processes, and write its
        digest into the walk. `nearby`: see `sync_tree`."""
        if not self._places:
            return
        if len(self._places) <= ALONE_FILES and self._bytes <= ALONE_BYTES:
            reader = Reader(root, open_sink(sink, self._say))
            self._take(self._places, reader.read(self._wanted(self._places)))
            reader.flush()
            return
        sink = nearby() or sink
        crew = [Worker(root, sink, self._say) for _ in range(workers)]
        try:
            self._share_out(crew)
            for worker in crew:
                worker.begin_flush()
            if not self.failed:
                self.manifest = manifest_of(self._found)
            for worker in crew:
                worker.finish()
        finally:
            for worker in crew:
                worker.kill()

    def _share_out(self, crew: Sequence[Worker]) -> None:
        batches = self._batches()
        at_work: dict[Worker, list[tuple[int, int]]] = {}
        with selectors.DefaultSelector() as waiting:
            for worker, batch in zip(crew, batches, strict=False):
                waiting.register(worker.output, selectors.EVENT_READ, worker)
                worker.start(self._wanted(batch))
                at_work[worker] = batch
            while at_work:
                for key, _ in waiting.select():
                    worker = key.data
                    if (results := worker.results()) is None:
                        continue
                    batch = at_work.pop(worker)
                    if (following := next(batches, None)) is not None:
                        worker.start(self._wanted(following))
                        at_work[worker] = following
                    else:
                        waiting.unregister(worker.output)
                    self._take(batch, results)

    def _batches(self) -> Iterator[list[tuple[int, int]]]:
        batch: list[tuple[int, int]] = []
        size = 0
        for place in self._places:
            batch.append(place)
            size += self._row(place)[2]
            if len(batch) >= BATCH_FILES or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _wanted(self, places: Sequence[tuple[int, int]]) -> list[Wanted]:
        return [(self._path(place), *self._row(place)[1:4]) for place in places]

    def _take(self, places: Sequence[tuple[int, int]], results: Sequence[Read | Failed]) -> None:
        for place, result in zip(places, results, strict=True):
            if isinstance(result, str):
                self.failed.append((self._path(place), result))
                continue
            digest, size, mtime = result
            directory, at = self._directories[place[0]], place[1]
            if not directory.digests:
                directory.digests = bytearray(len(directory.rows) * DIGEST_BYTES)
            directory.digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES] = digest
            row = directory.rows[at]
            if row[2] != size or row[3] != mtime:
                # Changed since the walk.
                self.is_as_walked = False
                directory.rows[at] = (row[0], row[1], size, mtime, row[4])
            self.bytes_done += size
        self.files_done += len(places)
        if not self._report(Progress(self.files_done, len(self._places), self.bytes_done, self._bytes)):
            raise Cancelled

    def _row(self, place: tuple[int, int]) -> tuple[bytes, int, int, int, int]:
        return self._directories[place[0]].rows[place[1]]

    def _path(self, place: tuple[int, int]) -> bytes:
        directory = self._directories[place[0]]
        name = directory.rows[place[1]][0]
        return directory.path + b"/" + name if directory.path else name
