"""The program of the pod that fills caches on a project's volume: it removes trees that are no longer kept, and
adds one.

Sent as text (see data_pod_objects.py), so it imports nothing of ours but pod_program.py and runs on Python 3.9.
The directory layout is contents/, manifests/ and trees/, the manifest format that of datasets/manifests.py. At
most one such pod works on a volume. Configured by the environment variables below. It prints JSON lines:
{"progress": [files, bytes, bytes fetched]}, and at the end {"keys": [the trees on the volume]}.
"""

import errno
import hashlib
import http.client
import os
import shutil
import struct
import time
import urllib.error
import urllib.request
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from controlplane.engines.kubernetes.pod_program import leave, say

# Exit codes, from which cache_volume.py derives the reason of a failure.
NOT_FETCHED, MISSING, DAMAGED, DISK_FULL, NOT_WRITABLE = 81, 82, 83, 84, 85
URL, TOKEN, KEY, KEEP, HASH, ROOT = (
    "TRAINYARD_CACHE_URL", "TRAINYARD_CACHE_TOKEN", "TRAINYARD_CACHE_KEY", "TRAINYARD_CACHE_KEEP",
    "TRAINYARD_CACHE_HASH", "TRAINYARD_CACHE_ROOT",
)  # fmt: skip
TOKEN_HEADER = "X-Trainyard-Cache-Token"
# How long requests are repeated; a restarted control plane is back within this time.
RETRY_SECONDS, ANSWER_SECONDS, PAUSE_SECONDS = 300, 60, 2
# Limits of one request. The server holds the contents in memory, unless a single one is requested. The gaps
# between the requested places are limited because each lengthens the URL.
PIECE_CONTENTS, PIECE_BYTES, PIECE_GAPS = 2000, 8 << 20, 300
CHUNK_BYTES = 1 << 20
REPORT_SECONDS = 1.0
MAGIC, HEAD, DIGEST_BYTES = b"trainyard-manifest-1\n", struct.Struct("<QQQ"), 32
EXECUTABLE, LINK = 1, 2
CUT = "An answer of the control plane was cut off."
PART = ".part"


class Entry(NamedTuple):
    """One file of a dataset version. `kind`: 0 plain, EXECUTABLE or LINK (its content is the target); `digest`:
    SHA-256 of its content."""

    path: bytes
    kind: int
    size: int
    digest: bytes

    @property
    def name(self) -> str:
        """The name of the file's content in the volume: its digest in hexadecimal, with "x" if executable."""
        return self.digest.hex() + ("x" if self.kind == EXECUTABLE else "")


def main() -> None:
    """Remove the trees that are not kept, and fill the requested one, if any. On failure, exit with a code that names
    it and a last line on stderr that explains it."""
    root, key = Path(os.environ[ROOT]), os.environ.get(KEY, "")
    keep = set(filter(None, os.environ.get(KEEP, "").split(",")))
    try:
        for folder in ("contents", "manifests", "trees"):
            (root / folder).mkdir(exist_ok=True)
        remove_cut(root)
        remove_unkept(root, keep | {key})
        if key:
            fill(root, key)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            leave(DISK_FULL, "The volume of caches is full: enlarge it, or clear caches.")
        leave(NOT_WRITABLE, f"The volume of caches cannot be written: {error}")
    say(keys=sorted(path.name for path in (root / "trees").iterdir() if is_whole(root, path.name)))


def remove_cut(root: Path) -> None:
    """Remove manifests that are incomplete because the node failed; they are downloaded again."""
    for path in (root / "manifests").iterdir():
        try:
            columns_of(path.read_bytes())
        except (struct.error, zlib.error):
            path.unlink()


def remove_unkept(root: Path, keep: set[str]) -> None:
    """Remove trees and manifests whose names are not in `keep`, then contents to which no manifest refers. Safe to
    repeat after a kill at any moment."""
    # Stays until contents are removed too: the pod may be killed at any moment.
    unfinished = root / "removing"
    for path in [*(root / "trees").iterdir(), *(root / "manifests").iterdir()]:
        if path.name not in keep:
            unfinished.touch()
            remove = remove_tree if path.is_dir() else Path.unlink
            remove(path)
    if unfinished.exists():
        live: set[str] = set()
        for path in (root / "manifests").iterdir():
            live.update(entry.name for entry in entries_of(path.read_bytes()))
        for path in (root / "contents").glob("*/*"):
            if path.parent.name + path.name not in live:
                path.unlink()
        unfinished.unlink()


def remove_tree(path: Path) -> None:
    """Remove a tree. Its directories are read-only, so they are made writable first."""
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o755)
    shutil.rmtree(path)


def fill(root: Path, key: str) -> None:
    """Create the tree of the version `key` unless it is complete. It appears complete, by a rename."""
    tree, manifest = root / "trees" / key, root / "manifests" / key
    if is_whole(root, key):
        return
    entries = manifest_of(manifest)
    # Contents first, because the tree consists of links to them.
    Fill(root, entries).bring()
    part = tree.with_name(key + PART)
    if part.exists():
        remove_tree(part)
    make_tree(root, part, entries)
    os.sync()
    # A rename replaces an empty directory, but no directory with files in it.
    if tree.is_dir() and any(tree.iterdir()):
        remove_tree(tree)
    part.rename(tree)
    os.sync()


def is_whole(root: Path, key: str) -> bool:
    """Return whether the tree `key` was filled. An empty directory does not count, unless the version has no files:
    the kubelet creates one to mount a missing path."""
    tree, manifest = root / "trees" / key, root / "manifests" / key
    if not tree.is_dir() or not manifest.exists():
        return False
    count, joined, columns = columns_of(manifest.read_bytes())
    first = columns[:joined].split(b"\0", 1)[0]
    return not count or os.path.lexists(os.path.join(os.fsencode(tree), first))


def manifest_of(path: Path) -> list[Entry]:
    """Return the version's files; download the manifest to `path` if it is missing. It is stored before any content,
    so that contents that a killed pod left behind can be recognised."""
    if not path.exists():
        with asked("") as answer:
            stored = received(answer)
        if hash_of(stored) != os.environ[HASH]:
            leave(DAMAGED, "The manifest that arrived is not that of the version.")
        fresh = path.with_name(path.name + PART)
        fresh.write_bytes(stored)
        fresh.rename(path)
    return entries_of(path.read_bytes())


def columns_of(stored: bytes) -> tuple[int, int, bytes]:
    """Return a stored manifest's number of files, the length of its joined paths in bytes, and its decompressed
    columns."""
    count, joined, packed = HEAD.unpack_from(stored, len(MAGIC))
    start = len(MAGIC) + HEAD.size
    return count, joined, zlib.decompress(stored[start : start + packed])


def hash_of(stored: bytes) -> str:
    """Return the hash that identifies a stored manifest; "" if the bytes are no manifest."""
    if not stored.startswith(MAGIC) or len(stored) < len(MAGIC) + HEAD.size:
        return ""
    count, joined, columns = columns_of(stored)
    seen = hashlib.sha256(MAGIC + HEAD.pack(count, joined, 0) + columns)
    seen.update(stored[len(stored) - count * DIGEST_BYTES :])
    return seen.hexdigest()


def entries_of(stored: bytes) -> list[Entry]:
    """Return the files that a stored manifest lists."""
    count, joined, columns = columns_of(stored)
    paths = columns[:joined].split(b"\0") if count else []
    kinds, digests = columns[joined : joined + count], stored[len(stored) - count * DIGEST_BYTES :]
    sizes = struct.unpack(f"<{count}Q", columns[joined + count :])
    return [
        Entry(path, kinds[at], sizes[at], digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES])
        for at, path in enumerate(paths)
    ]


class Fill:
    """Downloads the contents that a tree needs, and reports the progress."""

    def __init__(self, root: Path, entries: list[Entry]) -> None:
        self.root, self.entries = root, entries
        self.files, self.bytes, self.moved, self.said = 0, 0, 0, 0.0
        # Bytes of the content that is arriving.
        self.part = 0
        self.users = Counter(entry.name for entry in entries)

    def bring(self) -> None:
        """Download every content that is missing or damaged. Contents that no complete tree uses are verified first,
        because a killed pod may have left them."""
        seen, trusted = set(), self.trusted()
        piece: list[int] = []
        size = gaps = 0
        for at, entry in enumerate(self.entries):
            if entry.name in seen:
                continue
            seen.add(entry.name)
            is_there = self.place(entry).exists()
            if is_there and (entry.name in trusted or is_intact(self.place(entry), entry)):
                self.note(entry, 0)
                continue
            is_long = len(piece) == PIECE_CONTENTS or gaps == PIECE_GAPS
            if piece and (is_long or size + entry.size > PIECE_BYTES):
                self.fetch(piece)
                piece, size, gaps = [], 0, 0
            gaps += bool(piece) and at != piece[-1] + 1
            piece.append(at)
            size += entry.size
        if piece:
            self.fetch(piece)
        self.note(None, 0)

    def trusted(self) -> set[str]:
        """Return the names of contents that a complete tree uses: they have been verified and flushed to the disk."""
        manifests = [path for path in (self.root / "manifests").iterdir() if is_whole(self.root, path.name)]
        return {entry.name for path in manifests for entry in entries_of(path.read_bytes())}

    def place(self, entry: Entry) -> Path:
        """Return the path at which the file's content is stored."""
        return self.root / "contents" / entry.name[:2] / entry.name[2:]

    def fetch(self, places: list[int]) -> None:
        """Download the contents of the files at these ascending indexes of the manifest. The server chooses their
        order."""
        wanted: dict[bytes, list[Entry]] = {}
        for at in places:
            wanted.setdefault(self.entries[at].digest, []).append(self.entries[at])
        with asked(ranges_of(places)) as answer:
            while wanted:
                digest = received(answer, DIGEST_BYTES)
                # A truncated response ends here without a hash, or with part of one.
                if digest not in wanted:
                    leave(NOT_FETCHED, CUT)
                self.store(answer, wanted.pop(digest))

    def store(self, answer: IO[bytes], same: list[Entry]) -> None:
        """Store one content from the response. `same`: the files with this content, one per name that it has (plain
        and executable)."""
        first = self.place(same[0])
        first.parent.mkdir(exist_ok=True)
        fresh = first.with_name(first.name + PART)
        with open(fresh, "wb") as file:
            for chunk in chunks(answer, same[0].size):
                file.write(chunk)
                self.moved += len(chunk)
                self.part += len(chunk)
                self.note(None, REPORT_SECONDS)
            # Set before the rename, so that no pod ever sees the file writable.
            os.fchmod(file.fileno(), mode_of(same[0]))
        self.part = 0
        if not is_intact(fresh, same[0]):
            # Deleted, because a later fill would trust a file under this name.
            fresh.unlink()
            leave(DAMAGED, f"The content {same[0].digest.hex()} arrived damaged.")
        for other in same[1:]:
            shutil.copyfile(fresh, self.place(other))
            self.place(other).chmod(mode_of(other))
            self.note(other, REPORT_SECONDS)
        fresh.rename(first)
        self.note(same[0], REPORT_SECONDS)

    def note(self, entry: Entry | None, after_seconds: float) -> None:
        """Count a content that is present (None: none), and print the progress unless the last report is less than
        `after_seconds` old."""
        if entry is not None:
            self.files += self.users[entry.name]
            self.bytes += self.users[entry.name] * entry.size
        now = time.monotonic()
        if now - self.said >= after_seconds:
            self.said = now
            say(progress=[self.files, self.bytes + self.part, self.moved])


def make_tree(root: Path, part: Path, entries: list[Entry]) -> None:
    """Create the read-only tree `part` of hard links to the contents, or of copies where the file system refuses
    links."""
    top, folders = os.fsencode(part), {b""}
    # Directories stay writable until all links are made.
    part.mkdir()
    for entry in entries:
        folder = entry.path.rpartition(b"/")[0]
        if folder not in folders:
            os.makedirs(os.path.join(top, folder), exist_ok=True)
            folders.add(folder)
        target, source = os.path.join(top, entry.path), root / "contents" / entry.name[:2] / entry.name[2:]
        if entry.kind == LINK:
            os.symlink(source.read_bytes(), target)
            continue
        try:
            os.link(source, target)
        except OSError as error:
            # The file system has no hard links, or the content has as many as it permits: copy it instead.
            if error.errno not in (errno.EMLINK, errno.EPERM, errno.ENOTSUP):
                raise
            shutil.copyfile(source, target)
            os.chmod(target, mode_of(entry))
    for found, _, _ in os.walk(top):
        os.chmod(found, 0o555)


def mode_of(entry: Entry) -> int:
    """Return the read-only mode for a file's content."""
    return 0o555 if entry.kind == EXECUTABLE else 0o444


def is_intact(path: Path, entry: Entry) -> bool:
    """Return whether the file at `path` exists and has the content of `entry`."""
    seen = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
                seen.update(chunk)
    except FileNotFoundError:
        return False
    return seen.digest() == entry.digest


def received(stream: IO[bytes], size: int = -1) -> bytes:
    """Return up to `size` next bytes of a response, by default all. Exit with NOT_FETCHED if the connection breaks."""
    try:
        return stream.read(size) if size >= 0 else stream.read()
    except (OSError, http.client.HTTPException) as error:
        leave(NOT_FETCHED, f"{CUT} {error}")


def chunks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of a response in chunks. Exit with NOT_FETCHED if there are fewer."""
    while size > 0:
        chunk = received(stream, min(size, CHUNK_BYTES))
        if not chunk:
            leave(NOT_FETCHED, CUT)
        size -= len(chunk)
        yield chunk


def ranges_of(places: list[int]) -> str:
    """Return ascending numbers as ranges: [0, 1, 2, 5] -> "0-2,5"."""
    found: list[list[int]] = []
    for place in places:
        if found and place == found[-1][1] + 1:
            found[-1][1] = place
        else:
            found.append([place, place])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in found)


def asked(places: str) -> IO[bytes]:
    """Return the control plane's response: the contents of the files at `places`, or the manifest if that is "".
    Repeats the request for RETRY_SECONDS; then exits with NOT_FETCHED, or with MISSING if the version is gone."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        url = f"{os.environ[URL]}?places={places}" if places else os.environ[URL]
        request = urllib.request.Request(url, headers={TOKEN_HEADER: os.environ[TOKEN]})
        try:
            answer: IO[bytes] = urllib.request.urlopen(request, timeout=ANSWER_SECONDS)
            return answer
        except urllib.error.HTTPError as error:
            if error.code in (404, 409, 410):
                leave(MISSING, "The control plane no longer has this version or its contents.")
            problem = f"{os.environ[URL]} answers {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"{os.environ[URL]}: {getattr(error, 'reason', None) or error}"
        if time.monotonic() > deadline:
            leave(NOT_FETCHED, f"The control plane could not be reached within {RETRY_SECONDS} s. {problem}")
        say(waits=problem)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main()
