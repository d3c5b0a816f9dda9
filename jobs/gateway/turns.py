"""Run the gateway's database look-ups on one thread, in fair turns between users.

Without turns, one user's requests for 150 ports delayed the services of all others by 150 look-ups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from controlplane.http.fair_queue import Clients, FairQueue, QueueFull
from controlplane.live.database_thread import DatabaseThread
from controlplane.live.identity import Credential
from jobs.gateway.limits import TooManyRequests

T = TypeVar("T")

# Look-ups that may wait for the thread, per client and in total, so that one client cannot keep the others waiting.
MOST_OF_CLIENT, MOST = 64, 2_000

clients = Clients()
_thread = DatabaseThread("gateway")
# One more than there are threads: the next look-up starts as soon as the thread is free, without waiting for
# the event loop.
_queue = FairQueue(at_once=2, most_of_client=MOST_OF_CLIENT, most=MOST)


async def in_thread(
    credential: Credential | None, address: str, work: Callable[..., T], *arguments: object
) -> T:
    """Run `work`, a function that reads the database, on the gateway's thread, and return its result. Calls are
    queued fairly between users; those without a known user (see `note_user`) count by the client's address.
    Raises TooManyRequests if too many calls wait."""
    secret = credential.secret.encode() if credential else b""
    return await in_turn_of(clients.client_of(secret, address), work, *arguments)


async def in_turn_of(client: str, work: Callable[..., T], *arguments: object) -> T:
    """Run `work`, a function that reads the database, off the event loop, and return its result. Calls are queued
    fairly between clients; `client` is any text that identifies one. Raises TooManyRequests if too many calls
    wait, of this client or of all."""
    try:
        async with _queue.turn(client):
            return await _thread.run(work, *arguments)
    except QueueFull as full:
        whose = "Too many requests" if full.is_of_all else "Too many requests of yours"
        raise TooManyRequests("too_many_requests", f"{whose} wait; send fewer at a time.") from None


def note_user(credential: Credential, user_id: int | None) -> None:
    """Store which user a credential belongs to, so that all credentials of the user count as one client. `user_id`:
    None if the credential is not valid."""
    secret = credential.secret.encode()
    if user_id is None:
        clients.forget(secret)
    else:
        clients.remember(secret, str(user_id))
