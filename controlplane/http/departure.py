"""Detect that a client has disconnected while its data is not being read.

A server with full buffers stops reading from the client, and then does not see the end of the connection
either. Without this module, a session whose command does not read its input outlived its client forever.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import MutableMapping
from typing import Any

# A key of the ASGI scope: an asyncio.Event that is set when the connection ends. ASGI itself reports the end
# only after all data was read.
LEFT = "trainyard.client_left"


async def until_gone(scope: MutableMapping[str, Any]) -> None:
    """Wait until the client's connection has ended. Never returns on a server that does not put LEFT into the scope."""
    await scope.get(LEFT, asyncio.Event()).wait()


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Return whether the client has closed or lost the connection, even if data before that is unread. False if the
    server has closed it, or for a transport without a socket."""
    client = transport.get_extra_info("socket")
    if client is None or transport.is_closing():
        return False
    poll = select.poll()
    # Poll reports errors and hang-ups without being asked for them.
    poll.register(client.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
