"""Store contents in a bucket; large ones are split into pieces.

Pieces are stored while the content arrives, so that an interruption loses at most one. The first piece is
stored last: a content that has it is complete.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from datasets.storage.base import ContentDamaged, ContentMissing
from datasets.storage.bucket import Bucket, KeyMissing, TooShort
from datasets.storage.contents import WHOLE, Located

PIECE_BYTES = 64 << 20
# Bytes per request while a content is read, so that a large one takes little memory.
_READ_BYTES = 16 << 20
THREADS = 8


class Pieces:
    """The large contents of a bucket, and byte ranges of all contents."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def store(self, digest: bytes, path: Path, end: int) -> None:
        """Store the missing pieces of a file that is still arriving: those before offset `end`, except the first."""
        self._store(digest, path, end, range(1, -(-end // PIECE_BYTES)))

    def complete(self, digest: bytes, path: Path, size: int) -> None:
        """Store the missing pieces of a file of `size` bytes, the first piece last."""
        self._store(digest, path, size, [*range(1, -(-size // PIECE_BYTES)), 0])

    def _store(self, digest: bytes, path: Path, end: int, numbers: Iterable[int]) -> None:
        there = dict(self._bucket.list(object_key(digest)))
        for number in numbers:
            key, length = piece_key(digest, number), min(PIECE_BYTES, end - number * PIECE_BYTES)
            # Compare lengths: a truncated piece is stored again.
            if there.get(key) != length:
                self._bucket.put_slice(key, path, number * PIECE_BYTES, length)

    def remove(self, folders: Iterable[str]) -> None:
        """Remove all objects below these folders."""
        with ThreadPoolExecutor(THREADS) as threads:
            found = threads.map(lambda folder: [key for key, _ in self._bucket.list(folder)], folders)
            self._bucket.delete([key for keys in found for key in keys])

    def ranges(self, located: Located, offset: int, length: int) -> Iterator[bytes]:
        """Yield `length` bytes of a content from `offset`, in pieces. Raises ContentMissing and, if it is truncated,
        ContentDamaged."""
        while length > 0:
            key, start, most = key_of(located), located.offset + offset, length
            if located.pack == WHOLE:
                number, start = divmod(offset, PIECE_BYTES)
                key, most = piece_key(located.digest, number), PIECE_BYTES - start
            count = min(length, most, _READ_BYTES)
            with lost(located):
                data = self._bucket.get_range(key, start, count)
            yield data
            offset, length = offset + count, length - count

    def of_pack(self, located: Sequence[Located]) -> list[bytes]:
        """Return the bytes of the contents at `located`, which are all in one pack, in the same order. Raises
        ContentMissing and, if the pack is truncated, ContentDamaged."""
        starts, lengths = [one.offset for one in located], [one.size_bytes for one in located]
        with lost(located[0]):
            return self._bucket.get_ranges(key_of(located[0]), starts, lengths)


@contextmanager
def lost(located: Located) -> Iterator[None]:
    """Context manager that raises ContentMissing for a missing object of the content at `located`, and
    ContentDamaged for a truncated one."""
    try:
        yield
    except KeyMissing as error:
        raise ContentMissing(f"The lake has lost content {located.digest.hex()}.") from error
    except TooShort as error:
        raise ContentDamaged(located.digest) from error


def key_of(located: Located) -> str:
    """Return the key of the object that holds the content at `located`, or of the folder of its pieces."""
    return object_key(located.digest) if located.pack == WHOLE else shelf_key("packs", located.pack)


def shelf_key(folder: str, name: str) -> str:
    """Return the key of the object with this name (a pack's, manifest's or digest's hash) in a folder."""
    return f"{folder}/{name[:2]}/{name[2:]}"


def object_key(digest: bytes) -> str:
    """Return the folder of a large content's pieces."""
    return shelf_key("objects", digest.hex())


def piece_key(digest: bytes, number: int) -> str:
    """Return the key of one piece, numbered from 0."""
    return f"{object_key(digest)}/{number:05}"


def name_of(key: str) -> str:
    """Return the name from a key that `shelf_key` returned."""
    _, shelf, rest = key.split("/")
    return shelf + rest
