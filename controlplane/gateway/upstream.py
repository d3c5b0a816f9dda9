"""One HTTP/1.1 exchange with a pod's server: the request streams in, the answer streams out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11

from controlplane.live.wire import Headers, Receive

CONNECT_SECONDS = 5.0
READ_BYTES = 64 * 1024
MOST_HEADER_BYTES = 64 * 1024


class NoAnswer(Exception):
    """Nobody listens on the port, or what answers does not speak HTTP."""


class ClientLeft(Exception):
    """The browser closed the connection; nobody waits for the answer."""


class Exchange:
    """A connection to the pod's server for one request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEADER_BYTES)

    async def send(self, method: str, target: bytes, headers: Headers, receive: Receive) -> None:
        """Send the request with its body as it comes in, then wait until the client leaves (raises
        ClientLeft)."""
        await self._write(h11.Request(method=method, target=target, headers=headers))
        has_more = True
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            if has_more and message.get("body"):
                await self._write(h11.Data(data=message["body"]))
            if has_more and not message.get("more_body", False):
                has_more = False
                await self._write(h11.EndOfMessage())

    async def start(self) -> h11.Response:
        """Status and headers of the answer. Raises NoAnswer."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise NoAnswer("the server closed the connection without an answer")

    async def body(self) -> AsyncIterator[bytes]:
        """The answer's body, piece by piece. Raises NoAnswer when it breaks off."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise NoAnswer("the answer broke off")

    async def _write(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        """A server may answer and close before it has read the whole body: then the answer is what counts."""
        try:
            self._writer.write(self._http.send(event) or b"")
            await self._writer.drain()
        except (ConnectionError, h11.LocalProtocolError) as error:
            if isinstance(event, h11.Request):
                raise NoAnswer(f"the request could not be sent: {error}") from error

    async def _next(self) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
        except (h11.RemoteProtocolError, ConnectionError) as error:
            raise NoAnswer(f"the server's answer is not HTTP: {error}") from error
        if not isinstance(event, h11.Event):
            raise NoAnswer("the server switched to another protocol")
        return event


@asynccontextmanager
async def exchange(host: str, port: int) -> AsyncIterator[Exchange]:
    """Connect for one request. Raises NoAnswer."""
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), CONNECT_SECONDS)
    except (OSError, TimeoutError) as error:
        raise NoAnswer("nothing listens on the port yet") from error
    try:
        yield Exchange(reader, writer)
    finally:
        writer.close()
