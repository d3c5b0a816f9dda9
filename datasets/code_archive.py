"""Code trees as tar archives: read for uploads, write for downloads.

An upload is a tar of plain files, each named by its SHA-256. Nothing in it is trusted: an unknown name, a
size other than announced, and any member that is not a plain file end the upload. Memory use does not depend
on file sizes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO

from datasets.code_manifest import EXECUTABLE, LINK, Entry

BLOCK = 512
MOST_PER_FILE = 2 * BLOCK  # header and padding
# Limit on the padding at the end of an archive, which tar programs add.
MOST_BESIDE = 64 * 1024
_CHUNK_BYTES = 1 << 20
_PLAIN = (b"0", b"\0")


class ArchiveRefused(ValueError):
    """The uploaded bytes are not an archive as this module describes it."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


def read_archive(stream: BinaryIO, wanted: Mapping[str, int]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield (SHA-256, content in pieces) of each member. `wanted`: the size of each content that may occur. The
    caller must verify the hash, and consume all pieces before the next member. Raises ArchiveRefused at the first
    member that is not wanted, and for a truncated archive."""
    while header := stream.read(BLOCK):
        if len(header) < BLOCK:
            raise _incomplete("a header")
        if not header.strip(b"\0"):
            return
        name, size = _read_header(header)
        if wanted.get(name) != size:
            raise ArchiveRefused("not_asked_for", f"{name[:80]!r} with {size} bytes was not requested.")
        yield name, _pieces(stream, name, size)
        if len(stream.read(-size % BLOCK)) < -size % BLOCK:
            raise _incomplete(name)


def write_archive(entries: Iterable[Entry], pieces: Callable[[Entry], Iterator[bytes]]) -> Iterator[bytes]:
    """Yield a tar of a tree in pieces. `pieces`: yields the content of an entry. Times and owners are constant,
    so equal trees give equal archives."""
    for entry in entries:
        info = tarfile.TarInfo(entry.path)
        info.mode = 0o755 if entry.kind == EXECUTABLE else 0o644
        if entry.kind == LINK:
            info.type, info.linkname = (
                tarfile.SYMTYPE,
                b"".join(pieces(entry)).decode(errors="surrogateescape"),
            )
            # Also readable by small tar programs, unlike the default format.
            yield info.tobuf(tarfile.GNU_FORMAT)
            continue
        info.size = entry.size
        yield info.tobuf(tarfile.GNU_FORMAT)
        yield from pieces(entry)
        yield bytes(-entry.size % BLOCK)
    yield bytes(2 * BLOCK)


def _pieces(stream: BinaryIO, name: str, size: int) -> Iterator[bytes]:
    while size:
        piece = stream.read(min(size, _CHUNK_BYTES))
        if not piece:
            raise _incomplete(name)
        size -= len(piece)
        yield piece


def _incomplete(where: str) -> ArchiveRefused:
    return ArchiveRefused("archive_incomplete", f"The archive ends within {where}; send it again.")


def _read_header(header: bytes) -> tuple[str, int]:
    """Return the name and size from the header of a plain file. Raises ArchiveRefused for other members."""
    try:
        size, checksum = int(header[124:136].strip(b" \0") or b"0", 8), int(header[148:156].strip(b" \0"), 8)
        name = header[:100].rstrip(b"\0").decode("ascii")
    except ValueError as error:
        raise ArchiveRefused("not_an_archive", "The body is not a tar archive.") from error
    if checksum != sum(header[:148]) + 8 * ord(" ") + sum(header[156:]):
        raise ArchiveRefused("not_an_archive", "A header's checksum is wrong: the body is not a tar archive.")
    if header[156:157] not in _PLAIN:
        detail = "The archive contains a link, a directory or another entry that is not a plain file; leave it out."
        raise ArchiveRefused("not_a_plain_file", detail)
    return name, size
