"""Database reads that concurrent requests share, on a thread of their own."""

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

from controlplane.live.database_thread import DatabaseThread

T = TypeVar("T")


class SharedReads:
    """Runs at most one read per key at a time. Requests that come during a read, or within its `seconds` after it,
    share its result."""

    def __init__(self, name: str) -> None:
        self._thread = DatabaseThread(name)
        self._reads: dict[Hashable, asyncio.Future[Any]] = {}

    async def read(self, key: Hashable, seconds: float, work: Callable[..., T], *arguments: object) -> T:
        """Return the result of `work(*arguments)`, or of an earlier request's call for this key that is still running
        or ended at most `seconds` ago; the `seconds` of that earlier request count. Raise what the call raised."""
        reading = self._reads.get(key)
        if reading is None:
            reading = self._reads[key] = self._thread.run(work, *arguments)
            reading.add_done_callback(partial(self._expire_after, seconds, key))
        # Shielded, so that a caller that disconnects does not cancel the read of the others.
        result: T = await asyncio.shield(reading)
        return result

    def shutdown(self) -> None:
        """End the thread and close its database connection. A later `read` starts a new thread."""
        self._reads.clear()
        self._thread.shutdown()

    def _expire_after(self, seconds: float, key: Hashable, reading: asyncio.Future[Any]) -> None:
        reading.get_loop().call_later(seconds, self._expire, key, reading)

    def _expire(self, key: Hashable, reading: asyncio.Future[Any]) -> None:
        # `shutdown` may have cleared the entry, and a later read of the same key may have begun.
        if self._reads.get(key) is reading:
            del self._reads[key]
