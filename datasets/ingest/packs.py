"""The pack format, in which small contents are sent and stored: their bytes in sequence, then an index.

The index has digest, offset and length of each content, their number, and a magic word; it makes an
incomplete pack detectable. A pack is named by the SHA-256 of its index, so that the same contents in the same
order give the same pack.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import accumulate

# A pack is closed when it reaches this size.
PACK_BYTES = 16 << 20
# Larger contents are sent separately, in parts, so that an interrupted one continues where it ended.
CONTENT_MOST_BYTES = 8 << 20
CONTENTS_MOST = 200_000
# A pack is closed by the content that reaches PACK_BYTES, and its index has a row of 48 bytes per content.
PACK_MOST_BYTES = PACK_BYTES + CONTENT_MOST_BYTES + CONTENTS_MOST * 48 + 64

_ROW = struct.Struct("<32sQQ")
_TAIL = struct.Struct("<Q16s")
_MAGIC = b"trainyard-pack-1"

# Digest of a content, its offset and its size in bytes in the pack.
IndexEntry = tuple[bytes, int, int]


class PackInvalid(ValueError):
    """The bytes are not a pack, or a content does not match its digest."""


def pack_index(contents: Iterable[tuple[bytes, int]]) -> bytes:
    """Return the index of a pack that has these contents, (digest, size in bytes), in this order."""
    pairs = list(contents)
    sizes = [size for _, size in pairs]
    # Without a line of Python for each content: a pack has thousands.
    rows = map(_ROW.pack, [digest for digest, _ in pairs], accumulate(sizes, initial=0), sizes)
    return b"".join((*rows, _TAIL.pack(len(pairs), _MAGIC)))


def make_pack(contents: Sequence[tuple[bytes, bytes | memoryview]]) -> bytes:
    """Return a pack of these contents, (digest, bytes), in this order. Does not verify the digests."""
    index = pack_index((digest, len(data)) for digest, data in contents)
    return b"".join((*(data for _, data in contents), index))


def pack_name(index: bytes) -> str:
    """Return the name of a pack: the SHA-256 of its index."""
    return sha256(index).hexdigest()


def read_index(pack: bytes | memoryview) -> tuple[list[IndexEntry], bytes]:
    """Return digest, offset and length of each content in a pack, and the index bytes. `pack` may be the end of a
    pack if it contains the whole index. Raises PackInvalid if the index is incomplete or wrong."""
    if len(pack) < _TAIL.size:
        raise PackInvalid("The pack is truncated.")
    count, magic = _TAIL.unpack(pack[-_TAIL.size :])
    size = count * _ROW.size + _TAIL.size
    if magic != _MAGIC or count > CONTENTS_MOST or size > len(pack):
        raise PackInvalid("These bytes are not a pack.")
    index = bytes(pack[len(pack) - size :])
    return list(_ROW.iter_unpack(index[: -_TAIL.size])), index


def index_bytes(tail: bytes) -> int:
    """Return the index's length in bytes, from the last TAIL_BYTES of a pack. Raises PackInvalid if they are not the
    end of a pack."""
    count, magic = _TAIL.unpack(tail)
    if magic != _MAGIC or count > CONTENTS_MOST:
        raise PackInvalid("These bytes are not a pack.")
    return int(count) * _ROW.size + _TAIL.size


TAIL_BYTES = _TAIL.size


def checked_contents(pack: memoryview) -> Iterator[tuple[bytes, memoryview]]:
    """Yield digest and bytes of each content of an untrusted pack. Raises PackInvalid for the first content
    that does not match its digest, and if the contents do not fill the pack without gaps."""
    places, index = read_index(pack)
    end = len(pack) - len(index)
    at = 0
    for digest, offset, size in places:
        if offset != at or size > end - at:
            raise PackInvalid("The pack's contents are not contiguous.")
        content = pack[at : at + size]
        if sha256(content).digest() != digest:
            raise PackInvalid(f"A content arrived damaged: it is not {digest.hex()}.")
        yield digest, content
        at += size
    if at != end:
        raise PackInvalid("The pack has bytes that belong to no content.")
