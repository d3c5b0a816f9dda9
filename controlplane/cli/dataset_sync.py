"""Sync a directory to a dataset on a server, and download a version into a directory."""

from __future__ import annotations

import gc
import hashlib
import http.client
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from controlplane.cli import formats
from controlplane.cli.errors import FAILED, NOT_FOUND, UNREACHABLE, ApiError, CliError, exit_code_of
from controlplane.cli.session import Session
from controlplane.unsafe_text import visible
from datasets.ingest.engine import Synced, forget_index, sync_tree
from datasets.ingest.listing import Listing
from datasets.ingest.nearby import machine_mark, sink_nearby
from datasets.ingest.packs import CONTENT_MOST_BYTES, checked_contents
from datasets.ingest.reading import Progress
from datasets.ingest.reasons import in_words
from datasets.ingest.tree import SourceMissing
from datasets.ingest.upload import HTTP_CODE, UploadRefused, http_sink, sink_of_server
from datasets.ingest.worker import SinkSpec, WorkerFailed
from datasets.manifests import (
    EXECUTABLE,
    LINK,
    Entry,
    Manifest,
    ManifestInvalid,
    checked,
    decode,
    stays_inside,
)

# Contents requested at once, because each request costs a round trip, however small the file.
PACK_FILES, PACK_BYTES = 1000, 32 << 20
# Failed files listed in a message, so that it fits on a screen.
NAMED_MOST = 20
# `adopt` of a sync that links (datasets.storage.files.Sharing).
LINKS = "hard_link"
REPORT_SECONDS = 0.2
# Workers that wait for the same server say the same within this time.
REPEATED_SECONDS = 10.0
BYTES_TYPE = {"Accept": "application/octet-stream, application/json"}


class Binding:
    """What is stored on this machine about a synced directory: the id of its dataset, and the stat index, by which a
    sync finds files that changed."""

    def __init__(self, session: Session, directory: Path) -> None:
        self.directory = directory.resolve()
        # By server too, since each has its own contents.
        key = hashlib.sha256(f"{session.config.url}\0{self.directory}".encode(errors="surrogateescape"))
        self._folder = Path(session.config.path).absolute().parent / "sync" / key.hexdigest()[:32]

    def dataset(self) -> str:
        """Return the id of the directory's dataset; "" if none is stored or the file is damaged."""
        try:
            return str(json.loads((self._folder / "dataset.json").read_text())["id"])
        except (OSError, ValueError, KeyError):
            return ""

    def remember(self, dataset: str) -> None:
        """Store `dataset`, the id of the directory's dataset, on this machine."""
        # On a full disk nothing would be left of the file.
        if self.dataset() == dataset:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        document = {"id": dataset, "directory": str(self.directory)}
        (self._folder / "dataset.json").write_text(json.dumps(document))

    def seen(self, dataset: str) -> int:
        """Return the number of the version that the directory was last synced to or cloned from; 0 if that is not
        known."""
        try:
            return int(self._seen(dataset).read_text())
        except (OSError, ValueError):
            return 0

    def saw(self, dataset: str, number: int) -> None:
        """Store what `seen` returns. On a full disk nothing is stored."""
        if self.seen(dataset) == number:
            return
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._seen(dataset).write_text(str(number))

    def _seen(self, dataset: str) -> Path:
        return self._folder / f"{dataset}.version"

    def index(self, dataset: str) -> Path:
        """Return the path of the directory's stat index for a dataset, given by its id. The file may not exist."""
        return self._folder / f"{dataset}.index"


@contextmanager
def without_collections() -> Iterator[None]:
    """Context manager that suspends Python's garbage collector."""
    was_enabled = gc.isenabled()
    # A sync makes a tuple for every file and no reference cycles: collections would cost a tenth of its time
    # and free nothing.
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def send_directory(
    session: Session,
    dataset: dict[str, Any],
    binding: Binding,
    *,
    listing: Listing,
    newest: str,
    is_full: bool,
    adopt: str,
) -> Synced:
    """Send the contents that the server lacks, then the manifest. Return what was found and sent.

    `newest`: the manifest hash of the newest version, "" without one. `is_full`: also read files that the stat index
    has as unchanged, and make it anew. `adopt`: as in `_read`. Raise CliError as `_read`, and if the server still lacks
    contents after a second pass.
    """
    index = binding.index(dataset["id"])
    if is_full:
        # Or the next sync would take contents from it that this one finds changed.
        forget_index(index)
    found = _read(session, dataset, binding, index, newest, adopt, listing)
    if _send(session, dataset, found):
        # According to the index the server has contents that it has lost: read everything again.
        forget_index(index)
        found = _read(session, dataset, binding, index, "", adopt)
        if lacking := _send(session, dataset, found):
            raise CliError(f"the server lacks the content of {lacking} files or more; try again", FAILED)
    return found


def _read(
    session: Session,
    dataset: dict[str, Any],
    binding: Binding,
    index: Path,
    newest: str,
    adopt: str,
    listing: Listing | None = None,
) -> Synced:
    """Read the files of a directory and send the contents that the server lacks. Raise CliError if a file cannot be
    read or sent.

    `index`: the stat index. `newest`: the manifest hash of the newest version, "" without one. `listing`: the files,
    None to search the directory. `adopt`: how large files get into a lake on this machine, a value of
    datasets.storage.files.Sharing.
    """
    sink = sink_of_server(session.config.url, session.client.authorization(), dataset["id"])
    meter = Meter("sending")
    say = Announcer(meter, session.output.aside)
    read = partial(sync_tree, binding.directory, index=index, base=newest, report=meter.report, say=say)
    nearby = partial(_nearby, session, dataset, adopt)
    try:
        try:
            if adopt == LINKS:
                # Only a lake that is written from here can link, also where a few files cost less to send.
                found = read(_linking(nearby, session) or sink, listing=listing)
            else:
                found = read(sink, nearby=nearby, listing=listing)
        except WorkerFailed as error:
            if not error.code or error.code.startswith(HTTP_CODE):
                raise
            # The lake cannot be used from here: the server says why, or waits until it can.
            found = read(sink)
    except (SourceMissing, WorkerFailed, UploadRefused) as error:
        raise CliError(str(error), _exit_code(error)) from error
    finally:
        meter.end()
    if found.failed:
        named = "\n".join(
            f"  {visible(os.fsdecode(path))}: {in_words(why)}" for path, why in found.failed[:NAMED_MOST]
        )
        more = f"\n  and {len(found.failed) - NAMED_MOST} more" if len(found.failed) > NAMED_MOST else ""
        raise CliError(
            f"{formats.counted_files(len(found.failed))} could not be read; no version was created\n{named}{more}",
            FAILED,
            "correct it, then sync again: sent files are kept",
        )
    return found


def _nearby(session: Session, dataset: dict[str, Any], adopt: str) -> SinkSpec | None:
    """Return a sink that writes directly into the dataset's lake. Return None unless the lake is on this machine, the
    user may write to it and the server supports this. `adopt`: as in `_read`."""
    if not (machine := machine_mark()):
        return None
    try:
        found = session.get(f"datasets/{dataset['id']}/content/nearby", machine=machine)
    except ApiError as error:
        if error.status != 404:
            raise
        # A server of an earlier version.
        return None
    return sink_nearby(found["folder"], found["mark"], adopt) if found["folder"] else None


def _linking(nearby: Callable[[], SinkSpec | None], session: Session) -> SinkSpec | None:
    if (sink := nearby()) is None:
        session.output.aside(
            "--link has no effect: the lake is not on this machine, or belongs to another user"
        )
    return sink


def _exit_code(error: Exception) -> int:
    if isinstance(error, SourceMissing):
        return NOT_FOUND
    code = str(getattr(error, "code", ""))
    return exit_code_of(int(code.removeprefix(HTTP_CODE))) if code.startswith(HTTP_CODE) else FAILED


def _send(session: Session, dataset: dict[str, Any], found: Synced) -> int:
    """Send the manifest of what was read, if there is one, and store what the next sync uses while the server checks
    it. Return how many contents the server lacks."""
    if found.manifest is None:
        found.remember()
        return 0
    # Loads slowly; most syncs find nothing to send.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as sender:
        sent = sender.submit(_send_manifest, session, dataset, found.manifest)
        found.remember()
    return sent.result()


def _send_manifest(session: Session, dataset: dict[str, Any], manifest: Manifest) -> int:
    headers = session.client.authorization()
    sink = http_sink(session.config.url, headers, dataset["id"], say=session.output.aside)
    try:
        return sink.put_manifest(manifest.encode())[1]
    except UploadRefused as error:
        raise CliError(str(error), _exit_code(error)) from error
    finally:
        sink.close()


def fetch_version(session: Session, version: dict[str, Any], target: Path) -> int:
    """Write the files of a version into the directory `target`, and return how many were written. Raises as
    `fetch_tree`."""
    return fetch_tree(session, f"versions/{version['id']}", version["manifest"], target)


def fetch_tree(session: Session, path: str, name: str, target: Path) -> int:
    """Write the files of a version or artifact into `target`, and return how many were written. `path`: its path in
    the API; `name`: the hash of its manifest, by which the files are verified.

    Existing files that are equal are kept, so that a repeated call continues. Raise CliError for existing files that
    differ, damaged data, and failures of the connection or the disk.
    """
    # Verified first: files are verified by its digests.
    manifest = fetch_manifest(session, path, name)
    try:
        return _write_tree(session, path, manifest, os.fsencode(target.resolve()))
    except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
        words = f"the connection to {session.config.url} broke"
        raise CliError(words, UNREACHABLE, "repeat the command: it continues") from error
    except OSError as error:
        if error.errno is None:
            raise
        place = os.fsdecode(error.filename or target)
        raise CliError(f"{place} cannot be written: {os.strerror(error.errno)}", FAILED) from error


def fetch_manifest(session: Session, path: str, name: str) -> Manifest:
    """Return the manifest with the hash `name` of a version or artifact, verified. Raise CliError if it is damaged."""
    try:
        manifest = checked(decode(fetch(session, f"{path}/manifest")))
        if manifest.hash == name:
            return manifest
        reason = "it is another one."
    except ManifestInvalid as error:
        reason = str(error)
    raise CliError(
        f"the list of files arrived damaged, or is damaged in the lake: {reason}",
        FAILED,
        "try again; then store it again: yard dataset sync --full from where the files are",
    )


def _write_tree(session: Session, path: str, manifest: Manifest, root: bytes) -> int:
    make_directories(root, {path.rpartition(b"/")[0] for path in manifest.paths})
    missing = [place for place in range(len(manifest)) if not _is_there(root, manifest.entry(place))]
    meter = Meter("cloning")
    total = sum(manifest.sizes[place] for place in missing)
    done = size = 0
    try:
        for batch in _batches(manifest, missing):
            _fetch_batch(session, path, manifest, batch, root)
            done, size = done + len(batch), size + sum(manifest.sizes[place] for place in batch)
            meter.report(Progress(done, len(missing), size, total))
    finally:
        meter.end()
    return len(missing)


def make_directories(root: bytes, directories: Iterable[bytes]) -> None:
    """Create `directories` (paths relative to `root`), unless they exist. Raise CliError if a link is in their path,
    since it could lead out of `root`."""
    os.makedirs(root, exist_ok=True)
    made = {b""}
    for directory in directories:
        names = directory.split(b"/")
        for path in (b"/".join(names[: depth + 1]) for depth in range(len(names))):
            if path in made:
                continue
            made.add(path)
            # An interrupted clone, which this one continues, may have made it.
            with suppress(FileExistsError):
                os.mkdir(os.path.join(root, path))
            if os.path.islink(os.path.join(root, path)):
                raise CliError(
                    f"{os.fsdecode(path)} is a link in the target directory",
                    FAILED,
                    "clone into an empty directory",
                )


def _batches(manifest: Manifest, places: list[int]) -> Iterator[list[int]]:
    """Yield the files `places` (indexes in the manifest) in batches, each fetched by one request: consecutive
    files, or one large file."""
    batch: list[int] = []
    size = 0
    for place in places:
        large = manifest.sizes[place] > CONTENT_MOST_BYTES
        full = batch and (
            place != batch[-1] + 1 or len(batch) >= PACK_FILES or size + manifest.sizes[place] > PACK_BYTES
        )
        if full or (batch and large):
            yield batch
            batch, size = [], 0
        batch.append(place)
        size += manifest.sizes[place]
        if large:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _fetch_batch(session: Session, path: str, manifest: Manifest, batch: list[int], root: bytes) -> None:
    first = manifest.entry(batch[0])
    if first.size_bytes > CONTENT_MOST_BYTES:
        with open_stream(session, f"{path}/content?place={batch[0]}") as answer:
            write_file(root, first, lambda: iter(lambda: answer.read(1 << 20), b""))
        return
    raw = fetch(session, f"{path}/pack?start={batch[0]}&count={len(batch)}")
    contents = dict(checked_contents(memoryview(raw)))
    for place in batch:
        entry = manifest.entry(place)
        write_file(root, entry, partial(iter, (bytes(contents[entry.digest]),)))


def write_file(root: bytes, entry: Entry, pieces: Callable[[], Iterator[bytes]]) -> None:
    """Write one file of a version below `root`: under a temporary name, renamed once its hash is verified. A link is
    created directly. `pieces` yields the content. Raise CliError if the content is damaged or a link leads out of
    `root`."""
    path = os.path.join(root, entry.path)
    if entry.kind == LINK:
        target = b"".join(pieces())
        if not stays_inside(entry.path, target):
            raise CliError(f"{os.fsdecode(entry.path)} is a link that leads out of the directory", FAILED)
        os.symlink(target, path)
        return
    fresh = os.path.join(os.path.dirname(path), b".yard-%s" % secrets.token_hex(6).encode())
    hashed = hashlib.sha256()
    mode = 0o777 if entry.kind == EXECUTABLE else 0o666
    try:
        # O_NOFOLLOW: a link may have been created in its place meanwhile.
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode), "wb") as file:
            for piece in pieces():
                hashed.update(piece)
                file.write(piece)
        if hashed.digest() != entry.digest:
            raise CliError(f"{os.fsdecode(entry.path)} arrived damaged; try again", FAILED)
        os.rename(fresh, path)
    except BaseException:
        # Also after Ctrl-C no temporary file must be left.
        with suppress(FileNotFoundError):
            os.unlink(fresh)
        raise


def _is_there(root: bytes, entry: Entry) -> bool:
    """Return whether the file exists below `root` with the version's content. Raise CliError if a different one is in
    its place."""
    path = os.path.join(root, entry.path)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    if entry.kind == LINK and os.path.islink(path):
        same = hashlib.sha256(os.readlink(path)).digest() == entry.digest
    else:
        same = os.path.isfile(path) and status.st_size == entry.size_bytes and _hash(path) == entry.digest
    if not same:
        raise CliError(
            f"{os.fsdecode(path)} exists and differs from the version",
            FAILED,
            "clone into an empty directory, or move the file away",
        )
    return True


def _hash(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def fetch(session: Session, path: str) -> bytes:
    """Send a GET to an API path and return the response's body. Raises as `Client.open`."""
    with open_stream(session, path) as answer:
        return answer.read()


def open_stream(session: Session, path: str) -> http.client.HTTPResponse:
    """Send a GET to an API path and return the response, to be read in pieces and closed by the caller. Raises as
    `Client.open`."""
    return session.client.open(path, BYTES_TYPE)


class Meter:
    """A progress line on standard error, which begins with `verb`. Nothing is printed unless standard error is a
    terminal."""

    def __init__(self, verb: str) -> None:
        self._verb, self._start, self._last = verb, time.monotonic(), 0.0
        self._is_shown = sys.stderr.isatty()

    def report(self, progress: Progress) -> bool:
        """Show the progress, at most every REPORT_SECONDS, and always at the end. Return True: the sync is to
        continue."""
        now = time.monotonic()
        is_last = progress.files_done == progress.files
        if self._is_shown and (is_last or now - self._last > REPORT_SECONDS):
            self._last = now
            rate = progress.bytes_done / max(now - self._start, 0.001)
            left = (progress.size_bytes - progress.bytes_done) / rate if rate else 0
            line = (
                f"{self._verb} {progress.files_done:,} of {progress.files:,} files,"
                f" {formats.size(progress.bytes_done)} of {formats.size(progress.size_bytes)},"
                f" {formats.size(int(rate))}/s, {left:.0f} s left"
            )
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        return True

    def end(self) -> None:
        """End the progress line, if one is shown; later text begins on a new line."""
        if self._last:
            print(file=sys.stderr)
            self._last = 0.0


class Announcer:
    """Prints what a sync waits for, below its progress line. Several threads that report the same line at about the
    same time print it once or, rarely, twice."""

    def __init__(self, meter: Meter, write: Callable[[str], None]) -> None:
        self._meter, self._write = meter, write
        self._said: dict[str, float] = {}

    def __call__(self, line: str) -> None:
        """Print the line, unless it was printed less than REPEATED_SECONDS ago. Thread-safe."""
        now = time.monotonic()
        if now - self._said.get(line, -REPEATED_SECONDS) < REPEATED_SECONDS:
            return
        self._said[line] = now
        self._meter.end()
        self._write(line)
