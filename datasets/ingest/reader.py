"""Read files, hash them and hand what the lake lacks to a sink. One reader per process; not thread safe."""

import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

from datasets.ingest.packs import CONTENT_MOST_BYTES, PACK_BYTES
from datasets.manifests import LINK

# Reads of a file that changes meanwhile.
TRIES = 3
CHUNK_BYTES = 4 << 20
ASK_AT_ONCE = 5000  # contents

# Path from the root, kind.
Wanted = tuple[bytes, int]
# Digest, bytes, mtime in ns.
Read = tuple[bytes, int, int]
Failed = str  # `changing`, `gone`, `unreadable`


class Content(NamedTuple):
    """A content in memory, and the file it was read from: b"" for the target of a link."""

    digest: bytes
    data: bytes
    path: bytes = b""
    mtime_ns: int = 0


class Sink(Protocol):
    """Where contents go. Every call may be repeated: a content is named by its digest."""

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        """Return which of these the lake has not."""

    def put_contents(self, contents: Sequence[Content]) -> None:
        """Store contents that are in memory."""

    def put_file(self, digest: bytes, path: bytes, size_bytes: int) -> None:
        """Store a large file whose content had this digest. Raises FileChanged."""

    def flush(self) -> None:
        """Return once all that was put is on disk."""


class FileChanged(Exception):
    """A file is not what it was when it was hashed."""


class Reader:
    """Reads files below `root` into a sink."""

    def __init__(self, root: bytes, sink: Sink) -> None:
        self._root, self._sink = root, sink
        self._waiting: dict[bytes, Content] = {}
        self._waiting_bytes = 0

    def read(self, files: Sequence[Wanted]) -> list[Read | Failed]:
        """Return what each file holds. Its content is in the lake after `flush`."""
        return [self._tried(os.path.join(self._root, path), kind) for path, kind in files]

    def flush(self) -> None:
        """Send what still waits, and wait until it is stored."""
        self._send()
        self._sink.flush()

    def _tried(self, path: bytes, kind: int) -> Read | Failed:
        for _ in range(TRIES):
            try:
                return self._link(path) if kind == LINK else self._file(path)
            except FileNotFoundError:
                return "gone"
            except FileChanged:
                continue
            except OSError:
                return "unreadable"
        return "changing"

    def _link(self, path: bytes) -> Read:
        target = os.readlink(path)
        status = os.lstat(path)
        digest = self._keep(Content(sha256(target).digest(), target))
        return digest, len(target), status.st_mtime_ns

    def _file(self, path: bytes) -> Read:
        # without O_NONBLOCK a pipe that took the file's place would hang
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            before = os.fstat(descriptor)
            if before.st_size > CONTENT_MOST_BYTES:
                digest = self._large(descriptor, path, before.st_size)
            else:
                data = _whole(descriptor, before.st_size)
                digest = self._keep(Content(sha256(data).digest(), data, path, before.st_mtime_ns))
            # Of the open file: another one may have its name by now.
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if after.st_mtime_ns != before.st_mtime_ns or after.st_size != before.st_size:
            raise FileChanged
        return digest, before.st_size, before.st_mtime_ns

    def _keep(self, content: Content) -> bytes:
        digest = content.digest
        # Equal files are sent once.
        if digest not in self._waiting:
            self._waiting[digest] = content
            self._waiting_bytes += len(content.data)
            if self._waiting_bytes >= PACK_BYTES or len(self._waiting) >= ASK_AT_ONCE:
                self._send()
        return digest

    def _large(self, descriptor: int, path: bytes, size: int) -> bytes:
        digest = hash_file(descriptor, size)
        if self._sink.lacking([digest]):
            self._sink.put_file(digest, path, size)
        return digest

    def _send(self) -> None:
        if not self._waiting:
            return
        lacking = self._sink.lacking(list(self._waiting))
        contents = [content for digest, content in self._waiting.items() if digest in lacking]
        self._waiting, self._waiting_bytes = {}, 0
        if contents:
            self._sink.put_contents(contents)


def hash_file(descriptor: int, size: int, take: Callable[[memoryview], object] = lambda _: None) -> bytes:
    """Return the SHA-256 of an open file from its start; `take` gets each piece. Raises FileChanged for one that does
    not have `size` bytes."""
    hashed, buffer, total = sha256(), memoryview(bytearray(CHUNK_BYTES)), 0
    # One buffer throughout: large files would otherwise allocate as much as they hold.
    while count := os.preadv(descriptor, [buffer], total):
        hashed.update(buffer[:count])
        take(buffer[:count])
        total += count
        if total > size:
            break
    if total != size:
        raise FileChanged
    return hashed.digest()


def _whole(descriptor: int, size: int) -> bytes:
    # one byte more than there should be: a file that grows is noticed
    content = os.read(descriptor, size + 1)
    while 0 < len(content) < size:
        more = os.read(descriptor, size + 1 - len(content))
        if not more:
            break
        content += more
    if len(content) != size:
        raise FileChanged
    return content
