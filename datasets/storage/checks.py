"""Read and verify the contents of packs and objects from the files alone, without the index."""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from datasets.ingest.packs import TAIL_BYTES, PackInvalid, index_bytes, read_index
from datasets.ingest.reader import FileChanged, hash_file
from datasets.storage.contents import WHOLE, Located, located_in


def places_in(path: Path, pack: str) -> list[Located]:
    """Return the locations of the contents in a file that is the pack with this name. Raises PackInvalid if the pack's
    index is incomplete or wrong."""
    size = path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        if size < TAIL_BYTES:
            raise PackInvalid("The pack is truncated.")
        tail = index_bytes(os.pread(file.fileno(), TAIL_BYTES, size - TAIL_BYTES))
        entries, _ = read_index(os.pread(file.fileno(), tail, max(0, size - tail)))
    return located_in(pack, entries)


def damaged_in(path: Path, located: Sequence[Located]) -> list[Located]:
    """Return those of `located`, which are in the one file `path`, whose bytes do not match their digests."""
    damaged = []
    with open(path, "rb", buffering=0) as file:
        for one in located:
            if one.pack == WHOLE:
                found = _hash_whole(file.fileno(), one.size_bytes)
            else:
                found = sha256(os.pread(file.fileno(), one.size_bytes, one.offset)).digest()
            if found != one.digest:
                damaged.append(one)
    return damaged


def _hash_whole(descriptor: int, size: int) -> bytes:
    try:
        return hash_file(descriptor, size)
    except FileChanged:
        return b""
