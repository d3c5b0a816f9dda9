"""A websocket of the API server as a plain socket, for exec and port-forward, with bounded memory (decision
35).

Kubernetes multiplexes channels over one websocket: the first byte of a message is its channel. All sockets of a
process share one thread with an event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.errors import ApiError, ApiFailed
from controlplane.kubernetes_api.event_loops import event_loop
from controlplane.kubernetes_api.kubeconfig import without_token
from controlplane.remote_errors import Unreachable

log = logging.getLogger(__name__)
# At DEBUG the library logs headers, which contain credentials.
_library_log = logging.getLogger(f"{__name__}.library")
_library_log.setLevel(logging.INFO)

# The event loop of all sockets of a process.
STREAMS = "streams to pods"
V4_PROTOCOL, V5_PROTOCOL = "v4.channel.k8s.io", "v5.channel.k8s.io"
CONNECT_SECONDS = 10.0
PING_SECONDS = 20.0
# A connection without a message or a pong for this long counts as dead: three pings were not answered.
SILENCE_SECONDS = 60.0
# The channel number with which a message closes the channel in its second byte; since Kubernetes 1.30.
_CLOSE = 255
# The most messages (of at most 32 KiB) that are buffered before the API server has to wait, so that a slow
# reader here does not fill the memory.
_HELD_MESSAGES = 8
# The bound of the buffer for bytes sent to the API server, so that a program that does not read its input
# slows its sender down.
_HELD_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024
# The time to deliver the last bytes of a stream after its near side was closed: they may be the output of a
# command.
_FLUSH_SECONDS = 10.0
# The caller has given the stream up, so the server gets only a moment for the closing handshake.
_ABANDON_SECONDS = 1.0
# The interval of checks whether a half-closed near side has been closed entirely, which no event loop reports.
_HANG_UP_SECONDS = 0.2

Result = TypeVar("Result")
Query = Sequence[tuple[str, str]]


class ChannelSocket:
    """One websocket to a pod, open after construction. `near` is the caller's end, a blocking socket.

    Bytes written to `near` are sent on channel `outward`. `on_message(channel, data)` receives every message, on the
    event loop's thread, and returns the bytes to write to `near`; an OSError from it ends the stream. `is_closable`:
    when the caller shuts down writing, close the channel too, if the server's protocol can. `ended` is set when
    either side has closed; data received before remains readable. Raise ApiError if the server refuses, Unreachable
    if it does not answer or answers 5xx, Refused if the credentials give no token.
    """

    def __init__(
        self,
        access: Access,
        path: str,
        query: Query,
        protocols: Sequence[str],
        outward: int,
        on_message: Callable[[int, bytes], bytes],
        *,
        is_closable: bool = False,
    ) -> None:
        self._outward, self._on_message, self._is_closable = outward, on_message, is_closable
        self._loop = event_loop(STREAMS)
        self._websocket = _connected(self._loop, access, path, query, protocols)
        self.near, self._far = socket.socketpair()
        # The event loop's sock_recv and sock_sendall need a non-blocking socket.
        self._far.setblocking(False)
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._is_abandoned = False
        self.ended = threading.Event()
        self._finished = asyncio.run_coroutine_threadsafe(self._run(), self._loop)

    def send(self, channel: int, data: bytes) -> None:
        """Send a message on another channel than `outward`. Returns at once; the message is lost if the stream has
        ended."""
        asyncio.run_coroutine_threadsafe(self._send(bytes([channel]) + data), self._loop)

    def close(self) -> None:
        """End the stream in both directions. Blocks until the websocket is closed, at most _FLUSH_SECONDS; after that
        it closes in the background. Safe to repeat."""
        self._is_abandoned = True
        self._loop.call_soon_threadsafe(self._cancel)
        # The connection ends by itself later; the caller need not wait longer for it.
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._finished.result(_FLUSH_SECONDS)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _run(self) -> None:
        from_near = asyncio.create_task(self._from_near())
        self._tasks = asyncio.create_task(self._from_cluster()), from_near
        # `close` may have been called before the tasks existed.
        if self._is_abandoned:
            self._cancel()
        ended, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        is_flushing = from_near in ended and not self._is_abandoned
        self._cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("a stream to a pod was ended by an error of ours", exc_info=outcome)
        # Before the closing handshake, which may take seconds: the caller's reads end at once.
        self._far.close()
        self.ended.set()
        with contextlib.suppress(TimeoutError, WebSocketException):
            async with asyncio.timeout(_FLUSH_SECONDS if is_flushing else _ABANDON_SECONDS):
                await self._websocket.close()
        # A server that does not answer the closing handshake would keep the connection.
        self._websocket.transport.abort()

    async def _from_cluster(self) -> None:
        """Pass the server's messages to `on_message` and write what it returns to the caller's end, until either side
        ends."""
        with contextlib.suppress(ConnectionClosed, OSError):
            while True:
                message = await self._next()
                if data := self._on_message(message[0], message[1:]) if message else b"":
                    await self._loop.sock_sendall(self._far, data)

    async def _next(self) -> bytes:
        """Return the next message. Raise OSError after SILENCE_SECONDS without a message or a pong, ConnectionClosed
        at the end."""
        pong: asyncio.Future[float] | None = None
        silent_seconds = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_SECONDS):
                    return await self._websocket.recv(decode=False)
            silent_seconds = 0.0 if pong is not None and pong.done() else silent_seconds + PING_SECONDS
            if silent_seconds >= SILENCE_SECONDS:
                raise OSError("the API server does not answer pings")
            pong = asyncio.ensure_future(await self._websocket.ping())

    async def _from_near(self) -> None:
        """Send the caller's bytes on the channel. Return when the caller has closed its end for reading and writing."""
        with contextlib.suppress(OSError):
            while data := await self._loop.sock_recv(self._far, _READ_BYTES):
                await self._send(bytes([self._outward]) + data)
        if self._is_closable and self._websocket.subprotocol == V5_PROTOCOL:
            await self._send(bytes([_CLOSE, self._outward]))
        while not _is_hung_up(self._far):  # noqa: ASYNC110  no event loop reports the end of a half-closed socket
            await asyncio.sleep(_HANG_UP_SECONDS)

    async def _send(self, message: bytes) -> None:
        # A closed connection is no error here, because data received before may still be on its way to the near
        # side.
        with contextlib.suppress(ConnectionClosed):
            await self._websocket.send(message)


class _Connect(connect):
    """Connects without following redirects, so that credentials reach only the configured server."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


def _connected(
    loop: asyncio.AbstractEventLoop, access: Access, path: str, query: Query, protocols: Sequence[str]
) -> ClientConnection:
    url = f"ws{access.server.removeprefix('http')}{path}?{urlencode(query)}"
    for may_renew in (True, False):
        headers = access.headers()
        try:
            return _result(loop, _open(access, url, headers, protocols))
        except InvalidStatus as error:
            if error.response.status_code == 401 and may_renew and access.renew(headers):
                continue
            body = without_token(bytes(error.response.body or b""), headers)
            refusal = ApiError(error.response.status_code, body)
            raise (ApiFailed(refusal) if refusal.status >= 500 else refusal) from error
        except (WebSocketException, OSError) as error:
            raise Unreachable(f"{access.server} cannot be reached: {error}") from error
    raise AssertionError("the second round returns or raises")


async def _open(
    access: Access, url: str, headers: Mapping[str, str], protocols: Sequence[str]
) -> ClientConnection:
    tls: dict[str, Any] = {} if access.tls is None else {"ssl": access.tls}
    if access.tls is not None and access.server_name:
        tls["server_hostname"] = access.server_name
    return await _Connect(
        url,
        additional_headers=headers,
        subprotocols=[Subprotocol(protocol) for protocol in protocols],
        compression=None,
        # The same TLS and server name settings as for every other request.
        proxy=None,
        open_timeout=CONNECT_SECONDS,
        # Pings keep proxies on the way from closing an idle connection.
        ping_interval=PING_SECONDS,
        # The library must not time out by itself, because a slow reader on our side is no dead server; `_next`
        # decides.
        ping_timeout=None,
        max_queue=_HELD_MESSAGES,
        write_limit=_HELD_BYTES,
        logger=_library_log,
        **tls,
    )


def _is_hung_up(end: socket.socket) -> bool:
    poll = select.poll()
    # POLLHUP and POLLERR are reported without being requested.
    poll.register(end, 0)
    return any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))


def _result(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    return asyncio.run_coroutine_threadsafe(work, loop).result()
