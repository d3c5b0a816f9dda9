"""Serve the WSGI application inside the ASGI server, with one switch of threads per request.

Synchronous Django views under Django's own ASGI handler cost 2-10 times more than under WSGI. Here a request body
is read on the event loop, the view runs on the process's only worker thread, and a short response returns with the
same switch. One thread, because CPU-bound views on several threads only compete for the interpreter lock. Streamed
responses are pulled chunk by chunk, so that a slow client never holds the thread.

Requests that hash a password (controlplane/http/password_routes.py) run on threads of their own: a hash takes 0.3
to 1.3 s, releases the interpreter lock, and would delay every page on the one thread.
"""

import asyncio
import io
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias

from django.conf import settings
from django.db import connections

from controlplane.http.fair_queue import Clients, FairQueue, QueueFull
from controlplane.http.request_user import USER_KEY
from controlplane.live.asgi import Headers, Message, Receive, Scope, Send, client_address, problem
from controlplane.live.database_thread import DatabaseThread

logger = logging.getLogger(__name__)

BODY_MOST_BYTES = 1 << 20
# Small, because forms are parsed for their CSRF token before the sender is authenticated: 1 MiB of escapes took 0.2
# s.
FORM_MOST_BYTES = 256 * 1024
FORM_TYPES = (b"application/x-www-form-urlencoded", b"multipart/form-data")
# The time limit for the whole body; the server ends a pause within it sooner.
BODY_MOST_SECONDS = 60.0
CHUNK_BYTES = 64 * 1024
RETRY_SECONDS = b"2"
# The most requests that wait for the thread: a refusal at once is better than an answer after the client's
# time-out.
WAITING_MOST_OF_CLIENT, WAITING_MOST = 256, 2000
# A response up to this size returns together with the call that made it, because each further chunk costs a
# switch of threads.
FIRST_HOP_BYTES = 256 * 1024

_SESSION_COOKIE = re.compile(rb"(?:^|;) *" + re.escape(settings.SESSION_COOKIE_NAME.encode()) + rb"=([^;]+)")

Environ: TypeAlias = dict[str, Any]
ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType]
WsgiApplication: TypeAlias = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class BodyTooLarge(Exception):
    """The request's body is larger than its content type or its sender allows."""


class BodyTooSlow(Exception):
    """The request's body was not complete within BODY_MOST_SECONDS."""


class Disconnected(Exception):
    """The client disconnected before its request was complete."""


@dataclass(slots=True)
class _Answer:
    """A started response. `ready`: the first part of its body; `chunks`: the parts after it, None if there are none.
    Call `close` after the last part."""

    status: int
    headers: Headers
    ready: bytes
    chunks: Iterator[bytes] | None
    close: Callable[[], None]


class WsgiBridge:
    """An ASGI application that serves HTTP through a WSGI application on `threads` threads; clients take turns.

    `clients`: shared by all bridges of a process. `most_of_client`, `most`: the most waiting requests, per client and
    in all. `body_most_bytes`: of a request; forms have a lower limit of their own. With several threads, database
    connections are closed after each request; a single thread keeps its own.
    """

    def __init__(
        self,
        application: WsgiApplication,
        clients: Clients | None = None,
        *,
        threads: int = 1,
        most_of_client: int = WAITING_MOST_OF_CLIENT,
        most: int = WAITING_MOST,
        body_most_bytes: int = BODY_MOST_BYTES,
        name: str = "wsgi",
    ) -> None:
        # The shutdown can close the database connection of one thread, but not of several.
        self._application = application if threads == 1 else without_kept_connections(application)
        self._clients = clients or Clients()
        self._threads = threads
        # One turn more than threads, so that the next request is ready when a thread becomes free, without waiting
        # for the event loop.
        self._queue = FairQueue(at_once=threads + 1, most_of_client=most_of_client, most=most)
        self._body_most_bytes = body_most_bytes
        self._thread = DatabaseThread(name, threads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most_bytes = min(self._body_most_bytes, body_limit(scope["headers"]))
        try:
            body = await read_body(scope, receive, most_bytes)
        except BodyTooLarge:
            detail = f"Send at most {most_bytes} bytes."
            await problem(send, 413, "body_too_large", detail)
            return
        except BodyTooSlow:
            detail = f"Send the whole body within {BODY_MOST_SECONDS:g} s."
            await problem(send, 408, "body_too_slow", detail, [(b"connection", b"close")])
            return
        except Disconnected:
            return
        await self._answer(scope, receive, send, io.BytesIO(body), len(body))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, body: BinaryIO, size: int) -> None:
        """Send the application's response to a request whose body of `size` bytes has been read; 500 if it fails, 429
        or 503 if too many requests wait."""
        try:
            made = await self._made(scope, body, size)
        except QueueFull as full:
            await _refuse_turn(send, full)
            return
        except Exception:
            # Django turns its own exceptions into responses; this one occurred outside Django, and the client needs
            # a response too.
            logger.exception("the WSGI application failed on %s", scope["path"])
            await problem(send, 500, "internal_error", "The server failed; its log says why.")
            return
        await self._deliver(made, scope, receive, send)

    def shutdown(self) -> None:
        """Block until the running requests have ended, then end the threads. Of several threads, only one closes its
        database connection."""
        self._thread.shutdown()

    async def _made(self, scope: Scope, body: BinaryIO, size: int) -> _Answer:
        """Run the application when it is the client's turn, and return the started response. Raise QueueFull if too
        many requests wait."""
        credential = credential_in(scope["headers"])
        client = self._clients.client_of(credential, client_address(scope))
        environ = make_environ(scope, body, size, is_multithread=self._threads > 1)
        async with self._queue.turn(client):
            made = await self._thread.run(self._begin, environ)
        if credential and made.status == 401:
            self._clients.forget(credential)
        elif credential and USER_KEY in environ:
            self._clients.remember(credential, environ[USER_KEY])
        return made

    async def _deliver(self, made: _Answer, scope: Scope, receive: Receive, send: Send) -> None:
        if made.chunks is None:
            body = b"" if scope["method"] == "HEAD" else made.ready
            await send({"type": "http.response.start", "status": made.status, "headers": made.headers})
            await send({"type": "http.response.body", "body": body})
            return
        watcher = asyncio.create_task(_until_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": made.status, "headers": made.headers})
            if scope["method"] != "HEAD":
                await self._stream(made, made.chunks, watcher, send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            watcher.cancel()
            await self._thread.run(made.close)

    async def _stream(
        self, made: _Answer, chunks: Iterator[bytes], watcher: "asyncio.Task[None]", send: Send
    ) -> None:
        """Send the ready part, then chunk by chunk, until the body ends or the client disconnects."""
        chunk = made.ready
        while chunk and not watcher.done():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            chunk = await self._thread.run(_pull, chunks, CHUNK_BYTES)

    def _begin(self, environ: Environ) -> _Answer:
        """Call the application, on the request's thread, and read the start of its response."""
        started: list[tuple[str, list[tuple[str, str]]]] = []
        is_sent = False

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: ExcInfo | None = None
        ) -> Callable[[bytes], None]:
            if exc_info is not None and is_sent:
                raise exc_info[1].with_traceback(exc_info[2])
            if started and exc_info is None:
                raise AssertionError("start_response was called twice")
            started.append((status, headers))
            return _no_write

        result = self._application(environ, start_response)
        close: Callable[[], None] = getattr(result, "close", _nothing)
        try:
            chunks = iter(result)
            ready = _pull(chunks, FIRST_HOP_BYTES)
            if not started:
                raise RuntimeError("the application sent a body before its status")
        except BaseException:
            close()
            raise
        is_sent = True
        status, headers = started[-1]
        is_whole = len(ready) < FIRST_HOP_BYTES
        if is_whole:
            # Sends Django's request_finished on the thread that owns the database connection.
            close()
        return _Answer(int(status[:3]), _encoded(headers), ready, None if is_whole else chunks, close)


async def _refuse_turn(send: Send, full: QueueFull) -> None:
    if full.is_of_all:
        status, code, detail = 503, "server_busy", "Too many requests are waiting; try again."
    else:
        status, code, detail = (
            429,
            "too_many_requests",
            "Too many of your requests are waiting; send fewer at a time.",
        )
    await problem(send, status, code, detail, [(b"retry-after", RETRY_SECONDS)])


def body_limit(headers: Headers) -> int:
    """Return the most bytes of a body with the content type in these headers; forms may be smaller than other
    bodies."""
    kind = next((value for name, value in headers if name == b"content-type"), b"")
    return FORM_MOST_BYTES if kind.strip().lower().startswith(FORM_TYPES) else BODY_MOST_BYTES


def credential_in(headers: Headers) -> bytes:
    """Return what identifies the sender of a request: the Authorization header, else the session cookie's value, else
    b""."""
    cookie = b""
    for name, value in headers:
        if name == b"authorization":
            return value
        if name == b"cookie" and (found := _SESSION_COOKIE.search(value)):
            cookie = found[1]
    return cookie


async def read_body(scope: Scope, receive: Receive, most_bytes: int = BODY_MOST_BYTES) -> bytes:
    """Return the request's body. Raise BodyTooLarge above `most_bytes`, before reading if Content-Length is larger;
    BodyTooSlow after BODY_MOST_SECONDS; Disconnected if the client disconnects."""
    announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if announced.isdigit() and int(announced) > most_bytes:
        raise BodyTooLarge
    try:
        async with asyncio.timeout(BODY_MOST_SECONDS):
            return await _read_body(receive, most_bytes)
    except TimeoutError:
        raise BodyTooSlow from None


async def _read_body(receive: Receive, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size > most_bytes:
            raise BodyTooLarge
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def without_kept_connections(application: WsgiApplication) -> WsgiApplication:
    """Wrap the application so that the thread's database connections are closed after each call."""

    def serve(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            return application(environ, start_response)
        finally:
            connections.close_all()

    return serve


def make_environ(scope: Scope, body: BinaryIO, size: int, *, is_multithread: bool = False) -> Environ:
    """Return the WSGI environment (PEP 3333) of an ASGI HTTP request. `body`: the whole body, of `size` bytes."""
    root = scope.get("root_path", "")
    path = scope["path"].removeprefix(root) if root else scope["path"]
    host, port = scope.get("server") or ("localhost", None)
    client_host, client_port = scope.get("client") or ("", 0)
    environ: Environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": root.encode().decode("latin-1"),
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "SERVER_NAME": host,
        "SERVER_PORT": str(port or 80),
        "REMOTE_ADDR": client_host,
        "REMOTE_PORT": str(client_port),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.input": body,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": is_multithread,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileChunks,
    }
    _add_headers(environ, scope["headers"])
    # A chunked body has no Content-Length, so its size is set here.
    environ["CONTENT_LENGTH"] = str(size)
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    return environ


class FileChunks:
    """Iterates over a file in chunks of CHUNK_BYTES, because each chunk costs a switch of threads; Django's have 4
    KiB."""

    def __init__(self, file: io.BufferedIOBase, _block_size: int = CHUNK_BYTES) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self._file.read(CHUNK_BYTES), b"")

    def close(self) -> None:
        self._file.close()


def _add_headers(environ: Environ, headers: Headers) -> None:
    for raw_name, raw_value in headers:
        if b"_" in raw_name:
            # WSGI would treat it like the header with a dash, which a proxy may protect.
            continue
        name = raw_name.decode("latin-1").upper().replace("-", "_")
        key = name if name in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{name}"
        value = raw_value.decode("latin-1")
        if key in environ:
            value = f"{environ[key]}{'; ' if key == 'HTTP_COOKIE' else ','}{value}"
        environ[key] = value


def _encoded(headers: list[tuple[str, str]]) -> Headers:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]


def _pull(chunks: Iterator[bytes], most: int) -> bytes:
    """Join chunks until they have at least `most` bytes or end. A result shorter than `most` is the last; b"" is the
    end."""
    parts: list[bytes] = []
    size = 0
    while size < most:
        part = next(chunks, None)
        if part is None:
            break
        parts.append(part)
        size += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _no_write(_data: bytes) -> None:
    raise NotImplementedError("the write() callable of WSGI 1.0 is not offered; return an iterable")


def _nothing() -> None:
    return
