"""Turns on a few threads, shared fairly: a client that sends many requests waits behind its own, not others behind it.

Requests are queued by client and taken in turn, one of each. A client is a user once a request with the same
credential was answered as that user's; until then it is an address. For one event loop.
"""

import hashlib
from asyncio import Future, get_running_loop
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

MOST_KNOWN = 10_000


class QueueFull(Exception):
    """No more requests may wait: of the client, or with `is_of_all` of all clients together."""

    def __init__(self, *, is_of_all: bool) -> None:
        super().__init__()
        self.is_of_all = is_of_all


class FairQueue:
    """At most `at_once` turns at a time; beyond them, at most `most_of_client` and `most` requests wait."""

    def __init__(self, *, at_once: int, most_of_client: int, most: int) -> None:
        self._free = at_once
        self._most_of_client, self._most = most_of_client, most
        self._waiting = 0
        self._lanes: OrderedDict[str, deque[Future[None]]] = OrderedDict()  # by client; the first is next

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it. Raises QueueFull."""
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
        if len(self._lanes.get(client, ())) >= self._most_of_client:
            raise QueueFull(is_of_all=False)
        turn = get_running_loop().create_future()
        self._lanes.setdefault(client, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._pass_on()  # it was given the turn in the moment in which it was cancelled
            raise

    def _pass_on(self) -> None:
        """Give the turn to the next client, which goes to the end of the line with what else it has."""
        while self._lanes:
            client, lane = self._lanes.popitem(last=False)
            turn = lane.popleft()
            self._waiting -= 1
            if lane:
                self._lanes[client] = lane
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class Clients:
    """Which user a credential was last answered as; the latest MOST_KNOWN of them, by digest."""

    def __init__(self) -> None:
        self._users: OrderedDict[bytes, str] = OrderedDict()

    def client_of(self, credential: bytes, address: str) -> str:
        """Return the client whose request this is."""
        user = self._users.get(_digest(credential)) if credential else None
        return f"user {user}" if user else f"address {address}"

    def remember(self, credential: bytes, user: str) -> None:
        """Note the user that a request with this credential was answered as."""
        digest = _digest(credential)
        self._users[digest] = user
        self._users.move_to_end(digest)
        if len(self._users) > MOST_KNOWN:
            self._users.popitem(last=False)

    def forget(self, credential: bytes) -> None:
        """Note that a credential is wrong, or is none any more."""
        self._users.pop(_digest(credential), None)


def _digest(credential: bytes) -> bytes:
    return hashlib.blake2b(credential, digest_size=16).digest()
