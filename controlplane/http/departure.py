"""Notice that a client has left although its data is not being read.

A server that waits for room for a client's data stops reading from the client, and with it the end of the connection:
a session whose command does not read its input outlived its client for ever.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import MutableMapping
from typing import Any

# In a scope: an asyncio.Event that is set at the connection's end, even before the application has read all data.
LEFT = "trainyard.client_left"


async def until_gone(scope: MutableMapping[str, Any]) -> None:
    """Return at the end of the client's connection; never on a server without this support."""
    await scope.get(LEFT, asyncio.Event()).wait()


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Return whether the client closed or lost the connection, also behind data that has not been read."""
    client = transport.get_extra_info("socket")
    if client is None or transport.is_closing():
        return False
    poll = select.poll()
    # Errors and hang-ups are reported in any case.
    poll.register(client.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
