"""Memory for contents between their file and the sink."""

import mmap

from datasets.ingest.packs import CONTENT_MOST_BYTES, PACK_BYTES

# Smaller contents are written by way of another buffer anyway, as parts of a pack.
ARENA_FROM_BYTES = 128 << 10
# Of the addresses that direct writes need.
_BLOCK_BYTES = 4096
# What may wait for a pack when the largest content is read, with what the blocks at their ends lose, and a byte more.
_BYTES = PACK_BYTES + PACK_BYTES * _BLOCK_BYTES // ARENA_FROM_BYTES + CONTENT_MOST_BYTES + _BLOCK_BYTES


class Arena:
    """Memory that is used again and again: new memory costs more than to read into it. Contents begin at addresses
    from which they can be written past the page cache without a copy."""

    def __init__(self) -> None:
        # Costs nothing until it is used.
        self._view, self._used = memoryview(mmap.mmap(-1, _BYTES)), 0

    def room(self, size: int) -> memoryview:
        """Return memory of `size` bytes, at most CONTENT_MOST_BYTES + 1. The next call returns the same unless `keep`
        is called."""
        return self._view[self._used : self._used + size]

    def keep(self, size: int) -> None:
        """Keep the first `size` bytes of what `room` returned, until `clear`."""
        self._used += -(-size // _BLOCK_BYTES) * _BLOCK_BYTES

    def clear(self) -> None:
        """Make all memory free. Views of it show what is read into it next."""
        self._used = 0
