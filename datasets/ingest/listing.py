"""List a directory tree with GNU find, in a process that runs while `yard` starts.

Python takes twice as long as find for 100,000 files. An unchanged tree gives the same bytes again: their hash shows
that nothing changed, without a look at each file.
"""

import marshal
import mmap
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Self

from datasets.ingest.reader import RACY_NS, Row
from datasets.ingest.stored import store
from datasets.ingest.tree import Directory, Skipped, Walk, skipped_reason
from datasets.manifests import EXECUTABLE, FILE, LINK

_FORMAT = 1
# Of everything but directories: type, mode, size, mtime, inode, path, target of a link. Names have no zero byte, and
# no path has two slashes in succession.
_WHAT = ["-type", "d", "-o", "-printf", r"%y %m %s %T@ %i %P//%l\0"]
_AFTER_PATH = b"//"
# Where in a time the point is, where the fraction begins, and where its digits end that a file system has: it has nine,
# find writes ten.
_POINT, _FRACTION, _KEPT = -11, -10, -1
_HASH_BYTES = 32
# Of what find has written, read at once. Nobody says when there is more; it takes longer to parse it than to write it.
_PIECE_BYTES, _POLL_SECONDS = 256 << 10, 0.002


@dataclass(frozen=True, slots=True)
class Seen:
    """A listing's hash (`digest`) and result, stored for the version with the manifest hash `version`. `files`:
    number of files in that version."""

    version: str
    digest: bytes
    files: int
    skipped: list[Skipped]


class ListingInvalid(ValueError):
    """The lines are not a listing that can be read."""


class Listing:
    """The output of find for one tree; find starts at construction. `raw` is None without GNU find or if find failed;
    the caller then walks the tree in Python, which reports the error."""

    def __init__(self, root: bytes) -> None:
        self._output = -1
        # Taken before the listing begins, so that a file which changes during it is newer.
        self.started_ns = time.time_ns()
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError, AttributeError):
            # A pipe would stop find until this process reads it.
            self._output = os.memfd_create("listing")
            self._process = subprocess.Popen(
                ["find", os.path.join(root, b""), *_WHAT],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"LC_ALL": "C"},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._output >= 0:
            os.close(self._output)

    @cached_property
    def raw(self) -> bytes | mmap.mmap | None:
        """Wait for find; return what it wrote, None if it failed."""
        if self._process is None:
            return None
        is_complete = self._process.wait() == 0
        if not is_complete:
            return None
        # Mapped: memory for a copy costs as much as the hash.
        is_empty = os.fstat(self._output).st_size == 0
        return b"" if is_empty else mmap.mmap(self._output, 0, prot=mmap.PROT_READ)

    @cached_property
    def lines(self) -> list[bytes]:
        """Return the listing's lines, one for everything but directories; [] if there is no listing."""
        return [] if self.raw is None else lines_of(self.raw[:])

    def _lines_as_written(self) -> Iterator[list[bytes]]:
        """Yield the lines while find writes them, some at a time."""
        assert self._process
        if "lines" in self.__dict__:
            yield self.lines
            return
        at, rest, is_complete = 0, b"", False
        while not is_complete:
            # Asked first: what it wrote before its end is read after that.
            is_complete = self._process.poll() is not None
            while piece := os.pread(self._output, _PIECE_BYTES, at):
                at += len(piece)
                *lines, rest = (rest + piece).split(b"\0")
                yield lines
            if not is_complete:
                time.sleep(_POLL_SECONDS)

    @cached_property
    def digest(self) -> bytes:
        """Return a hash of the listing, b"" if there is none."""
        return b"" if self.raw is None else blake2b(self.raw, digest_size=_HASH_BYTES).digest()

    def walk(self, note: Callable[[Directory], None] = lambda _: None) -> Walk | None:
        """Return what datasets.ingest.tree.walk returns, None if there is no listing of this tree, or one that cannot
        be read. `note`: as there; it may have been called before None is returned."""
        if self._process is None:
            return None
        try:
            found = walk_of(chain.from_iterable(self._lines_as_written()), note)
        except ListingInvalid:
            return None
        return None if self.raw is None else found

    def settled(self, found: Walk) -> bool:
        """Return whether any later change of a file is certain to change its mtime: every mtime is older than RACY_NS
        before the listing began."""
        limit = self.started_ns - RACY_NS
        return all(row[3] < limit for directory in found.directories for row in directory.rows)


def lines_of(raw: bytes) -> list[bytes]:
    """Return the lines of a listing, without their end."""
    return raw.split(b"\0")[:-1]


def line_path(line: bytes) -> bytes:
    """Return the path in a line of a listing. Raises ValueError if it is no such line."""
    return line.split(b" ", 5)[5].partition(_AFTER_PATH)[0]


def walk_of(lines: Iterable[bytes], note: Callable[[Directory], None] = lambda _: None) -> Walk:
    """Return what the lines of a listing list. `note` is called with each directory after the last of its files.
    Raises ListingInvalid for times before 1970, of which find writes the fraction as if they were positive, and if the
    files of a directory do not follow each other but for those below it."""
    found: dict[bytes, Directory] = {}
    skipped: list[Skipped] = []
    rows: list[Row] = []
    last: bytes | None = None
    # The directories that the last file is in.
    entered: list[Directory] = []
    for line in lines:
        kind, mode, size, mtime, inode, rest = line.split(b" ", 5)
        path, _, target = rest.partition(_AFTER_PATH)
        above, slash, name = path.rpartition(b"/")
        if kind == b"f":
            # The digit of the owner's permissions; its last bit is that of execution.
            of_kind = EXECUTABLE if mode[-3:-2] in b"1357" and len(mode) >= 3 else FILE
        elif reason := skipped_reason(above + slash, target if kind == b"l" else None):
            skipped.append(Skipped(path, reason))
            continue
        else:
            of_kind = LINK
        # Most files follow another one of their directory.
        if above != last:
            last = above
            _leave(entered, above, note)
            rows = _enter(entered, above, found).rows
        if mtime[:1] == b"-" or mtime[_POINT:_FRACTION] != b".":
            raise ListingInvalid
        nanoseconds = int(mtime[:_POINT] + mtime[_FRACTION:_KEPT])
        rows.append((name, of_kind, int(size), nanoseconds, int(inode)))
    _leave(entered, None, note)
    return Walk(sorted(found.values(), key=lambda directory: directory.path), skipped)


def _leave(entered: list[Directory], path: bytes | None, note: Callable[[Directory], None]) -> None:
    """Note the directories of `entered` that the directory `path` is not in, None: all, and remove them."""
    while entered and (path is None or not _is_in(path, entered[-1].path)):
        directory = entered.pop()
        directory.rows.sort()
        note(directory)


def _enter(entered: list[Directory], path: bytes, found: dict[bytes, Directory]) -> Directory:
    if entered and entered[-1].path == path:
        return entered[-1]
    if path in found:
        # Its files were taken for complete.
        raise ListingInvalid
    found[path] = Directory(path, [])
    entered.append(found[path])
    return found[path]


def _is_in(path: bytes, directory: bytes) -> bool:
    return path == directory or not directory or path.startswith(directory + b"/")


def load_seen(index: Path) -> Seen | None:
    """Return the listing stored beside a stat index, None if it is missing or invalid."""
    try:
        form, version, digest, files, skipped = marshal.loads(_beside(index).read_bytes())
        return Seen(version, digest, files, [Skipped(*one) for one in skipped]) if form == _FORMAT else None
    except (OSError, ValueError, EOFError, TypeError):
        return None


def save_seen(index: Path, seen: Seen) -> None:
    """Store a listing's hash beside a stat index. Raises OSError if it cannot be written."""
    skipped = [(one.path, one.reason) for one in seen.skipped]
    store(_beside(index), [marshal.dumps((_FORMAT, seen.version, seen.digest, seen.files, skipped))])


def forget_seen(index: Path) -> None:
    """Remove the hash of the listing beside a stat index, if there is one."""
    _beside(index).unlink(missing_ok=True)


def _beside(index: Path) -> Path:
    return index.with_suffix(".seen")
