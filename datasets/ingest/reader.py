"""Read and hash files, and send the contents that the lake lacks to a sink. One reader per process; not
thread-safe."""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

from datasets.ingest.arena import ARENA_FROM_BYTES, Arena
from datasets.ingest.packs import PACK_BYTES
from datasets.manifests import LINK

# Attempts to read a file that changes during the read. Few, because a file that is always being written never stays the
# same.
TRIES = 3
# Of one read of a large file: it stays in the cache of a core until it is hashed.
CHUNK_BYTES = 256 << 10
ASK_AT_ONCE = 5000  # contents
# A file that changed less than this ago may change again within the same tick of the file system's clock, without a new
# mtime.
RACY_NS = 2_000_000_000
# In place of the mtime of such a file: a later comparison would not notice a change.
UNSETTLED = -1
# O_NONBLOCK: opening would hang if the file was replaced by a named pipe.
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

# A file as a walk found it: name, kind, size in bytes, mtime in ns, inode.
Row = tuple[bytes, int, int, int, int]
# Files of one directory: its path relative to the root, and their rows.
Wanted = tuple[bytes, Sequence[Row]]
# The digest of a file that is as the walk found it; of others with their size in bytes and their mtime in ns.
Read = bytes | tuple[bytes, int, int]
Failed = str  # `changing`, `gone`, `path_too_long`, `unreadable`


class Content(NamedTuple):
    """A content in memory. `path`: the file it was read from, b"" for a link's target. `mtime_ns`: the file's mtime
    when it was read; UNSETTLED if the file may have changed since with the same mtime."""

    digest: bytes
    data: bytes | memoryview
    path: bytes = b""
    mtime_ns: int = 0


class Sink(Protocol):
    """Destination of contents. Every call may be repeated, since contents are named by their digests.
    `most_in_memory_bytes`: larger files go to `put_file`, which gets their path; at most CONTENT_MOST_BYTES."""

    most_in_memory_bytes: int

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        """Return the digests whose content is not in the lake."""

    def put_contents(self, contents: Sequence[Content]) -> None:
        """Store contents from memory; `flush` makes them durable. Their data stays valid until the next call of
        `put_contents` or `flush` returns."""

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        """Store a large file of `size_bytes` that had this digest and `mtime_ns` (see Content) when it was
        hashed. Raises FileChanged if it changed since."""

    def flush(self) -> None:
        """Block until all stored contents are on disk."""


class FileChanged(Exception):
    """A file changed after it was hashed."""


class Reader:
    """Reads files below `root` into a sink."""

    def __init__(self, root: bytes, sink: Sink) -> None:
        self._prefix, self._sink = os.path.join(root, b""), sink
        self._waiting: dict[bytes, Content] = {}
        self._waiting_bytes = 0
        # Digest, path, size and mtime of the files for `put_file`.
        self._large: list[tuple[bytes, bytes, int, int]] = []
        # One is filled while the sink writes from the other.
        self._arena, self._other_arena = Arena(), Arena()
        # Files with an older mtime, in ns, are settled.
        self._settled_ns = 0

    def read(self, files: Sequence[Wanted]) -> list[Read | Failed]:
        """Read these files and return the result of each, in their order. Their contents are stored only after
        `flush`."""
        # Before any of them is opened. Git calls files written later than this racily clean.
        self._settled_ns = time.time_ns() - RACY_NS
        found: list[Read | Failed] = []
        for directory, rows in files:
            prefix = os.path.join(self._prefix, directory, b"")
            found += [self._tried(prefix + name, kind, size, mtime) for name, kind, size, mtime, _ in rows]
        if self._large:
            self._put_large(found, [(directory, row) for directory, rows in files for row in rows])
        return found

    def flush(self) -> None:
        """Send buffered contents, and wait until they are stored."""
        self._send()
        self._sink.flush()

    def _tried(self, path: bytes, kind: int, size: int, mtime_ns: int) -> Read | Failed:
        for attempt in range(TRIES):
            try:
                # A file that changed is read again as it is now, not with the size and time that the walk
                # found.
                if kind != LINK and not attempt and not self._is_large(size):
                    return self._unchanged_file(path, size, mtime_ns)
                found = self._link(path) if kind == LINK else self._file(path)
                return found[0] if found[1:] == (size, mtime_ns) else found
            except FileNotFoundError:
                return "gone"
            except FileChanged:
                continue
            except OSError as error:
                return why_unread(error)
        return "changing"

    def _is_large(self, size: int) -> bool:
        return size > self._sink.most_in_memory_bytes

    def _link(self, path: bytes) -> tuple[bytes, int, int]:
        target = os.readlink(path)
        status = os.lstat(path)
        digest = self._keep(Content(sha256(target).digest(), target))
        return digest, len(target), status.st_mtime_ns

    def _unchanged_file(self, path: bytes, size: int, mtime_ns: int) -> bytes:
        """Return a file's digest, expecting the size and mtime that the walk found. This saves one `fstat` per file.
        Raises FileChanged if either differs now."""
        descriptor = os.open(path, _OPEN_FLAGS)
        try:
            data = self._whole(descriptor, size)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if after.st_mtime_ns != mtime_ns or after.st_size != size:
            raise FileChanged
        settled = mtime_ns if mtime_ns < self._settled_ns else UNSETTLED
        return self._keep(Content(sha256(data).digest(), data, path, settled))

    def _file(self, path: bytes) -> tuple[bytes, int, int]:
        descriptor = os.open(path, _OPEN_FLAGS)
        try:
            before = os.fstat(descriptor)
            mtime = before.st_mtime_ns if before.st_mtime_ns < self._settled_ns else UNSETTLED
            if self._is_large(before.st_size):
                digest = hash_file(descriptor, before.st_size)
            else:
                data = self._whole(descriptor, before.st_size)
                digest = self._keep(Content(sha256(data).digest(), data, path, mtime))
            # stat of the open file: its name may belong to another file by now.
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if after.st_mtime_ns != before.st_mtime_ns or after.st_size != before.st_size:
            raise FileChanged
        if self._is_large(before.st_size):
            self._large.append((digest, path, before.st_size, mtime))
        return digest, before.st_size, before.st_mtime_ns

    def _whole(self, descriptor: int, size: int) -> bytes | memoryview:
        if size < ARENA_FROM_BYTES:
            return _whole(descriptor, size)
        return _filled(descriptor, self._arena.room(size + 1))

    def _keep(self, content: Content) -> bytes:
        digest = content.digest
        # Duplicate contents are sent once.
        if digest not in self._waiting:
            self._waiting[digest] = content
            if isinstance(content.data, memoryview):
                self._arena.keep(len(content.data))
            self._waiting_bytes += len(content.data)
            if self._waiting_bytes >= PACK_BYTES or len(self._waiting) >= ASK_AT_ONCE:
                self._send()
        return digest

    def _put_large(self, found: list[Read | Failed], files: Sequence[tuple[bytes, Row]]) -> None:
        """Send the large files that were read to the sink. One that changed since is read again, and its new result set
        in `found`. `files`: the directory and the row of each result."""
        names = (os.path.join(self._prefix, directory, row[0]) for directory, row in files)
        places = {name: place for place, name in enumerate(names)}
        for _ in range(TRIES):
            large, self._large = self._large, []
            # Asked for all at once: for one by one it takes a tenth of a sync with links.
            lacking = self._sink.lacking([digest for digest, *_ in large]) if large else set()
            for digest, path, size, mtime_ns in large:
                if digest not in lacking:
                    continue
                try:
                    self._sink.put_file(digest, path, size, mtime_ns)
                    lacking.remove(digest)
                except FileChanged:
                    _, kind, *as_walked, _ = files[places[path]][1]
                    found[places[path]] = self._tried(path, kind, *as_walked)
                except FileNotFoundError:
                    found[places[path]] = "gone"
                except OSError as error:
                    found[places[path]] = why_unread(error)
        for _, path, _, _ in self._large:
            found[places[path]] = "changing"
        self._large = []

    def _send(self) -> None:
        if not self._waiting:
            return
        lacking = self._sink.lacking(list(self._waiting))
        contents = [content for digest, content in self._waiting.items() if digest in lacking]
        self._waiting, self._waiting_bytes = {}, 0
        if contents:
            self._sink.put_contents(contents)
            self._arena, self._other_arena = self._other_arena, self._arena
        self._arena.clear()


def why_unread(error: OSError) -> Failed:
    """Return why a file or directory that exists cannot be read."""
    return "path_too_long" if error.errno == errno.ENAMETOOLONG else "unreadable"


class _Buffer(threading.local):
    """A buffer of each thread for all its reads: new memory costs a tenth of a read."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(CHUNK_BYTES))


_buffer = _Buffer()


def hash_file(descriptor: int, size: int, take: Callable[[memoryview], object] = lambda _: None) -> bytes:
    """Return the SHA-256 of an open file, read from its start. `take`: called with each piece, which is valid
    during the call only. Raises FileChanged if the file does not have `size` bytes."""
    hashed, buffer, total = sha256(), _buffer.view, 0
    while count := os.preadv(descriptor, [buffer], total):
        hashed.update(buffer[:count])
        take(buffer[:count])
        total += count
        # A read is short at the end only. Whether a file grows meanwhile is seen by its new size and time.
        if total > size or (total == size and count < len(buffer)):
            break
    if total != size:
        raise FileChanged
    return hashed.digest()


def _filled(descriptor: int, room: memoryview) -> memoryview:
    """Read a file whose size is known into `room`, which has one byte more, to detect a file that has grown."""
    size, total = len(room) - 1, 0
    while total < size and (count := os.preadv(descriptor, [room[total:]], total)):
        total += count
    if total != size:
        raise FileChanged
    return room[:size]


def _whole(descriptor: int, size: int) -> bytes:
    # Read one byte more than expected, to detect a file that has grown.
    content = os.read(descriptor, size + 1)
    while 0 < len(content) < size:
        more = os.read(descriptor, size + 1 - len(content))
        if not more:
            break
        content += more
    if len(content) != size:
        raise FileChanged
    return content
