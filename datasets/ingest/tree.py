"""Walk a directory tree without following links, and compare it with an earlier walk."""

import marshal
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from datasets.ingest.reader import RACY_NS, Failed, Row, why_unread
from datasets.ingest.stored import store
from datasets.manifests import DIGEST_BYTES, EXECUTABLE, FILE, LINK, stays_inside

_FORMAT = 1
_TYPE = 0o170000
_CHECK_BYTES = 16
# An mtime that no file has, so that the row never matches.
_UNKNOWN = -1
_NOTHING: tuple[list[Row], bytes] = ([], b"")


@dataclass(slots=True)
class Directory:
    """The files directly in one directory, sorted by name. `digests`: the digests of the files in `rows`,
    concatenated in the same order; empty while unknown."""

    # Path relative to the root, "" for the root itself.
    path: bytes
    rows: list[Row]
    digests: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that is not included in versions, with the reason: `link_leaves_tree`, `not_a_file`."""

    path: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Walk:
    """The content of a tree, as found by `walk`. `failed`: the directories that could not be read."""

    directories: list[Directory]
    skipped: list[Skipped]
    failed: list[tuple[bytes, Failed]] = field(default_factory=list)

    @property
    def files(self) -> int:
        return sum(len(directory.rows) for directory in self.directories)


class SourceMissing(Exception):
    """The directory to read does not exist or is not a directory."""


def walk(root: bytes, note: Callable[[Directory], None] = lambda directory: None) -> Walk:
    """Return every file, and every link that stays inside, below `root`. Sockets, pipes, devices and links out of
    the tree are listed as skipped. `note` is called with each directory that has files, once all of them are known;
    its exceptions end the walk. Raises SourceMissing if `root` is not a directory."""
    if not os.path.isdir(root):
        raise SourceMissing(f"{os.fsdecode(root)} is not a directory.")
    found = Walk([], [])
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        try:
            rows, below = _read_directory(root, path, found.skipped)
        except OSError as error:
            if not path:
                raise SourceMissing(f"{os.fsdecode(root)}: {error.strerror}.") from error
            # One that was removed since it was listed has no files, as after the removal.
            if not isinstance(error, FileNotFoundError):
                found.failed.append((path, why_unread(error)))
            continue
        waiting += below
        if rows:
            found.directories.append(Directory(path, rows))
            note(found.directories[-1])
    found.directories.sort(key=lambda directory: directory.path)
    return found


def _read_directory(root: bytes, path: bytes, skipped: list[Skipped]) -> tuple[list[Row], list[bytes]]:
    rows: list[Row] = []
    below: list[bytes] = []
    prefix = path + b"/" if path else b""
    with os.scandir(os.path.join(root, path)) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(prefix + entry.name)
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                # Removed since the directory was listed; a sync must tolerate changes by running programs.
                continue
            mode = status.st_mode
            # As stat.S_ISREG, without a call for each file.
            if mode & _TYPE == stat.S_IFREG:
                kind = EXECUTABLE if mode & 0o100 else FILE
            elif reason := skipped_reason(prefix, os.readlink(entry.path) if stat.S_ISLNK(mode) else None):
                skipped.append(Skipped(prefix + entry.name, reason))
                continue
            else:
                kind = LINK
            rows.append((entry.name, kind, status.st_size, status.st_mtime_ns, status.st_ino))
    # Sorted, since directories list in any order and equal trees must give equal manifests.
    rows.sort()
    return rows, below


def skipped_reason(prefix: bytes, target: bytes | None) -> str:
    """Return why a link in the directory `prefix` ("" or with a trailing slash), or what is neither link nor file
    (`target` None), is not included in versions; "" if it is included."""
    if target is None:
        return "not_a_file"
    return "" if stays_inside(prefix, target) else "link_leaves_tree"


class StatIndex:
    """State of a tree at its last sync, stored in one file. A file with unchanged size, mtime and inode is
    assumed to have unchanged content.

    `version`: the manifest hash of the tree. A missing or broken index counts as empty: everything is read.
    """

    def __init__(
        self, version: str = "", directories: dict[bytes, tuple[list[Row], bytes]] | None = None
    ) -> None:
        self.version = version
        self._directories = directories or {}

    @property
    def files(self) -> int:
        return sum(len(rows) for rows, _ in self._directories.values())

    def fill(self, directory: Directory) -> Sequence[int]:
        """Copy the known digests into a directory of a walk; return the indexes of the files whose digest is not
        known."""
        rows, digests = self._directories.get(directory.path, _NOTHING)
        if rows == directory.rows:
            directory.digests = bytearray(digests)
            return ()
        return list(_fill_rows(directory, rows, digests)) if rows else range(len(directory.rows))


def _fill_rows(directory: Directory, rows: list[Row], digests: bytes) -> Iterator[int]:
    """Copy the digests of unchanged rows; yield the indexes of the others."""
    known = {row: at for at, row in enumerate(rows)}
    directory.digests = bytearray(len(directory.rows) * DIGEST_BYTES)
    for place, row in enumerate(directory.rows):
        at = known.get(row)
        if at is None:
            yield place
        else:
            digest = digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]
            directory.digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES] = digest


def load_index(path: Path) -> StatIndex:
    """Return the index stored at `path`, or an empty one if it is missing, broken or not readable."""
    try:
        raw = path.read_bytes()
        body = memoryview(raw)[_CHECK_BYTES:]
        if blake2b(body, digest_size=_CHECK_BYTES).digest() != raw[:_CHECK_BYTES]:
            return StatIndex()
        form, version, directories = marshal.loads(body)
        return StatIndex(version, directories) if form == _FORMAT else StatIndex()
    except (OSError, ValueError, EOFError, TypeError):
        return StatIndex()


def save_index(path: Path, version: str, found: Walk, walked_ns: int) -> None:
    """Replace the index stored at `path` by that of the walk `found`. `version`: the manifest's hash; `walked_ns`:
    wall-clock time before the walk, in ns: files changed just before are left out, since they may change again. Raises
    OSError if it cannot be written."""
    directories = {
        directory.path: (_settled(directory.rows, walked_ns), bytes(directory.digests))
        for directory in found.directories
    }
    body = marshal.dumps((_FORMAT, version, directories))
    store(path, (blake2b(body, digest_size=_CHECK_BYTES).digest(), body))


def _settled(rows: list[Row], walked_ns: int) -> list[Row]:
    # Later changes of these files may leave them their mtime: they are read again next time.
    limit = walked_ns - RACY_NS
    if all(row[3] < limit for row in rows):
        return rows
    return [row if row[3] < limit else (*row[:3], _UNKNOWN, row[4]) for row in rows]
