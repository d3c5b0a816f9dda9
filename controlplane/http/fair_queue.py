"""Fair scheduling of requests on a few threads: requests are queued by client, and clients take turns.

A client is identified by its address, or by its user once a request with the same credential has been
authenticated. For use on one event loop.
"""

import hashlib
from asyncio import Future, get_running_loop
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# Bounds the memory; a client whose credential was forgotten is queued by its address again.
MOST_KNOWN = 10_000


class QueueFull(Exception):
    """Too many requests wait: those of this client or, with `is_of_all`, those of all clients."""

    def __init__(self, *, is_of_all: bool) -> None:
        super().__init__()
        self.is_of_all = is_of_all


class FairQueue:
    """Runs at most `at_once` requests. At most `most_of_client` others per client wait, and at most `most` of all
    clients."""

    def __init__(self, *, at_once: int, most_of_client: int, most: int) -> None:
        self._free = at_once
        self._most_of_client, self._most = most_of_client, most
        self._waiting = 0
        # By client; the first client is next.
        self._queues: OrderedDict[str, deque[Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Context manager that waits until a request of `client` may run; it runs until the block ends. `client`: a
        key of `Clients.client_of`. Raise QueueFull if too many requests wait."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(client)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, client: str) -> None:
        if self._waiting >= self._most:
            raise QueueFull(is_of_all=True)
        if len(self._queues.get(client, ())) >= self._most_of_client:
            raise QueueFull(is_of_all=False)
        turn = get_running_loop().create_future()
        self._queues.setdefault(client, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                # The turn was granted at the moment of the cancellation, so it is passed on.
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Let the client that has waited longest run its next request, in place of one that ended. Its further
        requests then wait behind those of all other clients."""
        while self._queues:
            client, queue = self._queues.popitem(last=False)
            turn = queue.popleft()
            self._waiting -= 1
            if queue:
                self._queues[client] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Clients:
    """The user that each credential was last authenticated as; only of the MOST_KNOWN latest, stored as digests."""

    def __init__(self) -> None:
        self._users: OrderedDict[bytes, str] = OrderedDict()

    def client_of(self, credential: bytes, address: str) -> str:
        """Return the key of the client that sends a request: the user of a known credential, else the address.
        `credential`: b"" if there is none."""
        user = self._users.get(_digest(credential)) if credential else None
        return f"user {user}" if user else f"address {address}"

    def remember(self, credential: bytes, user: str) -> None:
        """Store the user that a request with this credential was authenticated as."""
        digest = _digest(credential)
        self._users[digest] = user
        self._users.move_to_end(digest)
        if len(self._users) > MOST_KNOWN:
            self._users.popitem(last=False)

    def forget(self, credential: bytes) -> None:
        """Remove a credential that is wrong or no longer valid."""
        self._users.pop(_digest(credential), None)


def _digest(credential: bytes) -> bytes:
    return hashlib.blake2b(credential, digest_size=16).digest()
