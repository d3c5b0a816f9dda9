"""Limits on connections to the web server: their number, the time for a request to arrive, the size of its head.

uvicorn only has a keep-alive timeout: 600 of 600 half-open connections were alive after 75 s, and 100 MB of headers
took 42 s to parse. `ServerConfig` is uvicorn's configuration with the protocols below.

At the process's limit, the connection that has been idle longest is closed for a new one. The limit per address
exempts loopback, since a reverse proxy on this machine forwards for all clients. Behind a proxy on another machine,
set TRAINYARD_CONNECTIONS_PER_ADDRESS=0 and limit addresses in the proxy.
"""

import asyncio
import logging
import resource
from collections import Counter, OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import orjson
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from controlplane.http.client_address import address_key
from controlplane.http.departure import LEFT, has_hung_up
from controlplane.http.header_limits import HEADERS_MOST_BYTES, HEADERS_MOST_COUNT, STATUS, TOO_LARGE
from controlplane.http.problem_details import PROBLEM_JSON, problem_details

# One sweep checks the time limits of all connections, instead of a timer for each wait of each connection.
SWEEP_SECONDS = 0.5
# The interval of checks on a websocket whose data is not being read: no disconnect arrives then, and only a ping
# reveals one.
PROBE_SECONDS = 2.0
# After a refusal, the client's data is read for this long: closing at once would reset the connection before the
# response is read.
LINGER_SECONDS = 1.0
# The most requests that a client may send before earlier ones are answered, because they are held in memory.
PIPELINE_MOST = 16
# The most bytes of a websocket that are read after its close, since messages may have been on the way.
LATE_MOST_BYTES = 256 * 1024
# File descriptors kept free for the database, logs and connections to pods.
SPARE_FILES = 512
RETRY_SECONDS = 5
# The bytes of ": " and of the line's end.
HEADER_OVERHEAD = 4

# uvicorn logs a warning for each request that it cannot parse, with which an attacker could fill the log.
_logger = logging.getLogger("uvicorn.error.connections")
_logger.setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one web process. `connections`: open ones in all; `per_address` 0: no limit per address."""

    connections: int = 4000
    per_address: int = 500
    # From the connection, or the first byte of a later request, to the end of the headers.
    head_seconds: float = 10.0
    # The longest time without a byte while the server reads.
    body_idle_seconds: float = 20.0
    # The longest time in which the client accepts no byte.
    write_stall_seconds: float = 60.0


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration, with protocols that enforce `limits`. `options` are passed on to uvicorn."""

    def __init__(self, app: Any, limits: Limits, **options: Any) -> None:
        super().__init__(
            app,
            http=LimitedHttp,
            ws=LimitedWebsocket,
            # Compression doubles the CPU time of a send and takes 43 MB per 1,000 clients.
            ws_per_message_deflate=False,
            # None, because Django's settings configure logging.
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            **options,
        )
        self.open_connections = OpenConnections(limits)


class OpenConnections:
    """The open connections of one server: counts them, enforces the limits on their number, and checks each one's
    time limits every SWEEP_SECONDS. If the process may open few files, fewer connections are allowed than `limits`
    states. Use it on the event loop only."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._most = min(limits.connections, max(64, _file_limit() - SPARE_FILES))
        self._count = 0
        self._by_address: Counter[str] = Counter()
        self._http: dict[LimitedHttp, None] = {}
        self._websockets: dict[LimitedWebsocket, None] = {}
        # Connections that wait for a request, the longest wait first. OrderedDict, because finding the first key of
        # a dict is slow after many removals at its beginning.
        self._waiting: OrderedDict[LimitedHttp, None] = OrderedDict()
        self._sweeper: asyncio.TimerHandle | None = None

    def enter(self, connection: "LimitedHttp", address: str) -> tuple[int, str, str] | None:
        """Count a new connection, even a refused one, until `leave`. At the limit of all connections the longest idle
        one is closed instead. Return None, or (status, code, detail) of the refusal. `address`: a key of
        `address_key`."""
        has_room = self._count < self._most
        if not has_room and self._waiting:
            longest, _ = self._waiting.popitem(last=False)
            longest.drop()
            has_room = True
        self._count += 1
        self._by_address[address] += 1
        self._http[connection] = None
        self._sweep_later()
        if not has_room:
            return 503, "too_many_connections", "The server has too many open connections; try again."
        most = self.limits.per_address
        if most and self._by_address[address] > most and not is_loopback(address):
            detail = f"One address may have {most} open connections; close some."
            return 429, "too_many_connections_from_address", detail
        self._waiting[connection] = None
        return None

    def leave(self, address: str, connection: "LimitedHttp | None" = None) -> None:
        """Stop counting an ended connection. `connection` is None for a websocket, because `release` removed it at
        the upgrade."""
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        if connection is not None:
            self.release(connection)

    def upgrade(self, websocket: "LimitedWebsocket") -> None:
        """Register a connection that became a websocket; its `check` is then called every SWEEP_SECONDS."""
        self._websockets[websocket] = None

    def leave_websocket(self, address: str, websocket: "LimitedWebsocket") -> None:
        self._websockets.pop(websocket, None)
        self.leave(address)

    def release(self, connection: "LimitedHttp") -> None:
        """Stop checking an HTTP connection and closing it as idle, because it ended or became a websocket. It stays
        counted until `leave`."""
        self._http.pop(connection, None)
        self._waiting.pop(connection, None)

    def wait(self, connection: "LimitedHttp") -> None:
        """Mark the connection as waiting for its next request, so that it may be closed for a new connection."""
        self._waiting[connection] = None

    def serve(self, connection: "LimitedHttp") -> None:
        """Mark the connection as serving a request, so that it is not closed for a new connection."""
        self._waiting.pop(connection, None)

    def _sweep_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        now = asyncio.get_running_loop().time()
        for connection in list(self._http):
            connection.check(now)
        for websocket in list(self._websockets):
            websocket.check(now)
        if self._http or self._websockets:
            self._sweep_later()


class LimitedHttp(HttpToolsProtocol):
    """One HTTP connection with limits on the size of the request head and on the time of every wait for the client."""

    config: ServerConfig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.logger = _logger
        self._open = self.config.open_connections
        self._address = address_key(self.client)
        self._received_at = self._head_since = self.loop.time()
        self._stalled_at: float | None = None
        self._unsent = self._head_bytes = self._partial_bytes = 0
        self._is_in_head, self._is_refused = True, False
        self._left = asyncio.Event()
        if refusal := self._open.enter(self, self._address):
            self._refuse(*refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._left.set()
        self._open.leave(self._address, self)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._received_at = self.loop.time()
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            # The length of a header for which no callback was called yet: one without an end would otherwise never
            # count.
            self._partial_bytes += len(data)
            if self._partial_bytes > HEADERS_MOST_BYTES:
                self._refuse_head()
        elif self._is_idle:
            # uvicorn restarts its keep-alive time at any byte, even a blank line or the rest of a refused body.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[LEFT] = self._left  # type: ignore[literal-required]  # ours
        self._is_in_head, self._head_since = True, self._received_at
        self._head_bytes = self._partial_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._require_room(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._require_room(len(name) + len(value) + HEADER_OVERHEAD)
        if len(self.headers) > HEADERS_MOST_COUNT:
            self._refuse_head()
            raise HeadRefused

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._open.serve(self)
        if len(self.pipeline) >= PIPELINE_MOST:
            self.drop()
            raise HeadRefused
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._open.wait(self)

    def handle_websocket_upgrade(self) -> None:
        self._open.release(self)
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        if not self._is_refused and not self.transport.is_closing():
            super().send_400_response(msg)

    def check(self, now: float) -> None:
        """Close the connection if its client exceeds a time limit or has disconnected. `now`: the event loop's time.
        Called every SWEEP_SECONDS."""
        limits = self._open.limits
        if self._is_refused:
            if now - self._received_at > LINGER_SECONDS:
                self.drop()
        elif self._is_in_head and now - self._head_since > limits.head_seconds:
            self._refuse(408, "headers_too_slow", f"Send the headers within {limits.head_seconds:g} s.")
        elif (
            (self._is_body_awaited and now - self._received_at > limits.body_idle_seconds)
            or self._is_stalled(now)
            or (self.flow.read_paused and has_hung_up(self.transport))
        ):
            self.drop()

    def drop(self) -> None:
        """Close the connection at once; unsent data is lost."""
        self.transport.abort()

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        """Return the newest request, None before the first; uvicorn's own annotation omits None."""
        return self.cycle

    @property
    def _is_idle(self) -> bool:
        """Return whether the last request is answered and the next one has not begun."""
        cycle = self._cycle
        is_answered = cycle is not None and cycle.response_complete
        return is_answered and not self._is_in_head and not self.transport.is_closing()

    @property
    def _is_body_awaited(self) -> bool:
        cycle = self._cycle
        if cycle is None or cycle.response_complete or self.flow.read_paused:
            return False
        return cycle.more_body

    def _is_stalled(self, now: float) -> bool:
        """Return whether the client has read nothing for `write_stall_seconds` while data waits to be sent. Call it
        once per sweep: it compares with the previous call."""
        unsent, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if not self._unsent or self._unsent != unsent:
            self._stalled_at = None
        elif self._stalled_at is None:
            self._stalled_at = now
        return self._stalled_at is not None and now - self._stalled_at > self._open.limits.write_stall_seconds

    def _require_room(self, size: int) -> None:
        """Count `size` more bytes of the request head. Above HEADERS_MOST_BYTES, send the refusal and raise
        HeadRefused, which ends the parsing."""
        self._head_bytes += size
        if self._head_bytes > HEADERS_MOST_BYTES:
            self._refuse_head()
            raise HeadRefused

    def _refuse_head(self) -> None:
        self._refuse(STATUS, TOO_LARGE.code, TOO_LARGE.detail)

    def _refuse(self, status: int, code: str, detail: str) -> None:
        """Send an error response and close the connection, without calling the application. While an earlier response
        is being sent, only close."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused, self._received_at = True, self.loop.time()
        self._open.serve(self)
        cycle = self._cycle
        if cycle is not None and not cycle.response_complete:
            # The response to an earlier request is still being sent, so a refusal would be taken for its rest.
            self.drop()
            return
        self.transport.write(_refusal(status, code, detail))
        self.transport.write_eof()


class LimitedWebsocket(WebSocketsSansIOProtocol):
    """One websocket, counted until it ends. A client that sends more than LATE_MOST_BYTES after the close is
    disconnected, because uvicorn would parse its data for the 10 s in which it waits for the client's close."""

    config: ServerConfig
    late_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._left, self._probed_at = asyncio.Event(), self.loop.time()
        self.config.open_connections.upgrade(self)

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            # The application has not started yet, so its scope can still be extended.
            self.scope[LEFT] = self._left  # type: ignore[literal-required]  # ours

    def check(self, now: float) -> None:
        """Close the connection if its client disconnected while its messages wait to be read. With a full receive
        window no disconnect arrives, but the client's system rejects data, so a ping reveals it. `now`: the event
        loop's time."""
        if not self.read_paused or self.close_sent:
            self._probed_at = now
        elif has_hung_up(self.transport):
            self.transport.abort()
        elif now - self._probed_at > PROBE_SECONDS and self.transport.is_closing():
            # The client has started to close, and accepts none of the remaining data.
            self.transport.abort()
        elif now - self._probed_at > PROBE_SECONDS and self.handshake_complete:
            self._probed_at = now
            self.conn.send_ping(b"probe")
            self.transport.write(b"".join(self.conn.data_to_send()))

    def data_received(self, data: bytes) -> None:
        if self.close_sent:
            self.late_bytes += len(data)
            if self.late_bytes > LATE_MOST_BYTES:
                self.transport.abort()
                return
        super().data_received(data)

    async def send(self, message: Any) -> None:
        await super().send(message)
        # uvicorn logs an error for each incomplete handshake, and counts a refusal with an HTTP status as one.
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    def keepalive_timeout(self) -> None:
        if self.read_paused:
            # The pong may be queued behind messages for a slow program in a pod.
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            # Closing would wait forever for a client that does not read.
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._left.set()
        self.config.open_connections.leave_websocket(address_key(self.client), self)


class HeadRefused(Exception):
    """Ends the parsing of a request that exceeds a limit; the refusal was sent, or the connection closed."""


def is_loopback(key: str) -> bool:
    """Return whether a key of `address_key` is this machine; True for "", since Unix sockets have no address."""
    return key in ("", "::") or key.startswith("127.")


def _refusal(status: int, code: str, detail: str) -> bytes:
    body = orjson.dumps(problem_details(status, code, detail))
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"content-type: {PROBLEM_JSON}",
        f"content-length: {len(body)}",
        "connection: close",
        *([f"retry-after: {RETRY_SECONDS}"] if status in (429, 503) else []),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _file_limit() -> int:
    """Raise this process's limit on file descriptors as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20
