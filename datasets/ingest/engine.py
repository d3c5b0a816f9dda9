"""Create the manifest of a directory. Digests of unchanged files come from the stat index; worker processes
read the others."""

import operator
import os
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
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
from datasets.ingest.reader import Failed
from datasets.ingest.reading import Progress, Reading
from datasets.ingest.tree import Directory, Skipped, StatIndex, Walk, load_index, save_index, walk
from datasets.ingest.worker import Say, SinkSpec, silent
from datasets.manifests import Manifest, checked

# A listing with more files that may have changed since is not stored for the next sync.
KEPT_YOUNG_MOST = 1000


@dataclass(slots=True)
class Synced:
    """Result of a sync. `manifest`: None if nothing changed since `version`, or if files failed. `files`: of the
    tree, of which `files_read` had to be read. `remember`: stores what makes the next sync of the directory faster;
    call it also if nothing changed. It only reports what cannot be stored, since the version is complete without
    it."""

    manifest: Manifest | None
    version: str  # the manifest hash
    files: int
    files_read: int
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[tuple[bytes, Failed]] = field(default_factory=list)
    remember: Callable[[], None] = lambda: None


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
    cancel. `say` gets a line when the sink has to wait, possibly from another thread, and if `Synced.remember` cannot
    store something.

    If files could not be read, they are in `failed` and `manifest` is None. Raises SourceMissing if `root` is not a
    directory, Cancelled, WorkerFailed if a worker ended early, and what the sink raises.
    """
    if base and (same := _seen_again(index, listing, base)):
        return same
    start_reading = partial(
        Reading, os.fsencode(root), sink, nearby, workers or reading_processes(), report, say
    )
    if index and listing and (last := load_last(index)) and (few := difference(last, listing)):
        if few.is_empty and base == last.manifest.hash:
            return Synced(None, base, few.files, 0, few.skipped)
        with start_reading() as reading:
            if patched := _patched(reading, last, few, _ForNext(index, listing, say)):
                return patched
    # Taken before the walk: a file that changes during the walk is newer, and is read again next time.
    walked_ns = listing.started_ns if listing else time.time_ns()
    known = load_index(index) if index else StatIndex()
    with start_reading() as reading:
        found = listing.walk(partial(_read_changed, reading, known)) if listing else None
        if found is None:
            listing = None
            reading.forget()
            found = walk(os.fsencode(root), partial(_read_changed, reading, known))
        for_next = _ForNext(index, listing, say)
        is_same = not reading.files and not found.failed and known.files == found.files
        if is_same and base and known.version == base:
            remember = partial(for_next.listing_of_same, base, found)
            return Synced(None, base, found.files, 0, found.skipped, remember=remember)
        return _walked(reading, found, walked_ns, for_next)


def _read_changed(reading: Reading, known: StatIndex, directory: Directory) -> None:
    reading.add(directory, known.fill(directory))


def _walked(reading: Reading, found: Walk, walked_ns: int, for_next: "_ForNext") -> Synced:
    """Return the result of a sync that walked the whole tree."""
    reading.complete()
    if failed := found.failed + reading.failed:
        reading.flush()
        return Synced(None, "", found.files, reading.files, found.skipped, failed)
    # While workers flush.
    manifest = manifest_of(found)
    reading.flush()
    remember = partial(for_next.whole, manifest, found, walked_ns, reading.is_as_walked)
    return Synced(manifest, manifest.hash, found.files, reading.files, found.skipped, remember=remember)


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


def _patched(reading: Reading, last: LastListing, few: Difference, for_next: "_ForNext") -> Synced | None:
    """Return the result of a sync that reads the files of `few` only. None if the last listing turns out not to be
    that of its manifest."""
    for directory in few.found.directories:
        reading.add(directory, range(len(directory.rows)))
    reading.complete()
    read = Synced(None, "", few.files, reading.files, few.skipped, reading.failed)
    if reading.failed:
        reading.flush()
        return read
    manifest = last.manifest.patched(few.gone, manifest_of(few.found))
    if len(manifest) != few.files:
        return None
    reading.flush()
    # The stat index stays as it is: what it knows of files that did not change is right.
    remember = partial(for_next.listing_after, manifest, few) if reading.is_as_walked else read.remember
    return replace(read, manifest=manifest, version=manifest.hash, remember=remember)


class _ForNext:
    """Stores beside the stat index what makes the next sync faster. Call it only after all contents are stored: the
    index of a failed sync would hide missing contents. Reports what cannot be stored."""

    def __init__(self, index: Path | None, listing: Listing | None, say: Say) -> None:
        self._index, self._listing, self._say = index, listing, say

    def whole(self, manifest: Manifest, found: Walk, walked_ns: int, is_as_walked: bool) -> None:
        """Store the stat index of a walk and, if the files were as it had found them, the listing. `walked_ns`: as in
        `save_index`."""
        if not self._index:
            return
        with self._storing():
            save_index(self._index, manifest.hash, found, walked_ns)
            if self._listing and is_as_walked:
                self._see(self._index, self._listing, manifest.hash, found)
                self._keep(self._index, self._listing, manifest, found)

    def listing_of_same(self, version: str, found: Walk) -> None:
        """Store the listing's hash for a version (its manifest's hash) in which nothing changed."""
        if self._index and self._listing:
            with self._storing():
                self._see(self._index, self._listing, version, found)

    def listing_after(self, manifest: Manifest, few: Difference) -> None:
        """Store the listing and its manifest, of which only `few` was read."""
        if not self._index or not self._listing:
            return
        unsettled = few.unsettled(self._listing)
        with self._storing():
            save_last(self._index, self._listing, manifest, unsettled, few.skipped)
            if not unsettled:
                seen = Seen(manifest.hash, self._listing.digest, few.files, few.skipped)
                save_seen(self._index, seen)

    def _see(self, index: Path, listing: Listing, version: str, found: Walk) -> None:
        # Unless a file could still change without changing the listing.
        if listing.settled(found):
            save_seen(index, Seen(version, listing.digest, found.files, found.skipped))

    def _keep(self, index: Path, listing: Listing, manifest: Manifest, found: Walk) -> None:
        # Unless the next sync would have to read many files again.
        if len(young := young_paths(found, listing)) > KEPT_YOUNG_MOST:
            return
        lines = enumerate(listing.lines) if young else ()
        unsettled = [place for place, line in lines if line_path(line) in young]
        save_last(index, listing, manifest, unsettled, found.skipped)

    @contextmanager
    def _storing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._say(f"the next sync will take longer: {error.strerror}")


def forget_index(index: Path) -> None:
    """Remove everything that is stored about a directory's files: the next sync reads all."""
    index.unlink(missing_ok=True)
    forget_seen(index)
    forget_last(index)


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
