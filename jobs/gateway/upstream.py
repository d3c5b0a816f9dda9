"""One HTTP/1.1 exchange with a pod's server; request and response bodies are streamed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import h11

from controlplane.live.asgi import Headers, Receive
from jobs.gateway.admission import NoAnswer, Service, connection_failure
from jobs.gateway.limits import exchanging

READ_BYTES = 64 * 1024
MOST_HEADER_BYTES = 64 * 1024
STALL_SECONDS = 30.0


class ClientLeft(Exception):
    """The browser closed the connection before the exchange ended."""


class Exchange:
    """One HTTP request over a connection to the pod's server. `address`: its host and port, for the Host
    header."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MOST_HEADER_BYTES)

    async def send(self, method: str, target: bytes, headers: Headers, receive: Receive) -> None:
        """Send the request with its streamed body, then wait; never returns. Raises ClientLeft when the client
        leaves, NoAnswer if the request cannot be sent."""
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
        """Return status and headers of the response. Raises NoAnswer if the server closes the connection without
        one, breaks HTTP or is silent for too long."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise NoAnswer("the server closed the connection without an answer")

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the pieces of the response's body. Raises NoAnswer if the connection ends before the body is
        complete."""
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise NoAnswer("the answer ended early")

    async def _write(self, event: h11.Request | h11.Data | h11.EndOfMessage) -> None:
        """Send an event. Ignores a closed connection, except for the request's head. Raises NoAnswer if the head
        cannot be sent, or the server accepts nothing for too long (see `_drain`)."""
        try:
            self._writer.write(self._http.send(event) or b"")
            await self._drain()
        except (OSError, h11.LocalProtocolError) as error:
            # A server may respond, and close the connection, before it has read the whole body.
            if isinstance(event, h11.Request):
                words = f"the request could not be sent: {error}"
                raise (
                    connection_failure(error, words) if isinstance(error, OSError) else NoAnswer(words)
                ) from error

    async def _drain(self) -> None:
        """Wait until more of the request can be sent. Does not notice that the client has left; raises
        NoAnswer (504) if the server accepts nothing for STALL_SECONDS."""
        waiting = self._writer.transport.get_write_buffer_size()
        while True:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    await self._writer.drain()
                return
            except TimeoutError as error:
                before, waiting = waiting, self._writer.transport.get_write_buffer_size()
                # If some data was accepted, the server is slow but not stuck.
                if waiting >= before:
                    raise NoAnswer(
                        f"it accepted no data of the request for {STALL_SECONDS:g} s", 504
                    ) from error

    async def _next(self) -> h11.Event:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(READ_BYTES))
        except h11.RemoteProtocolError as error:
            raise NoAnswer(f"the server's answer is not HTTP: {error}") from error
        except OSError as error:
            raise connection_failure(error, f"the connection broke: {error}") from error
        if not isinstance(event, h11.Event):
            raise NoAnswer("the server switched to another protocol")
        return event


@asynccontextmanager
async def exchange(service: Service) -> AsyncIterator[Exchange]:
    """Context manager that connects to the service for one request. Raises NoAnswer if no connection is made,
    TooManyRequests if the port or its project has too many requests."""
    with exchanging(project=service.project_id, port=service.key):
        stream = await service.connect()
        address = public_address(stream, service.port)
        try:
            reader, writer = await asyncio.open_connection(sock=stream)
        except OSError as error:
            stream.close()
            raise NoAnswer("the connection was lost") from error
        try:
            yield Exchange(reader, writer, address)
        finally:
            # Discard unsent bytes: `close` would wait for a server that reads nothing.
            writer.transport.abort()


def public_address(stream: socket.socket, port: int) -> str:
    """Return the pod server's own host and port: the address of the connection or, behind a tunnel, 127.0.0.1 and
    `port`."""
    if stream.family not in (socket.AF_INET, socket.AF_INET6):
        return f"127.0.0.1:{port}"
    host, peer_port = stream.getpeername()[:2]
    return f"[{host}]:{peer_port}" if ":" in host else f"{host}:{peer_port}"
