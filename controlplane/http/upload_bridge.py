"""Serve requests whose body is too large for memory: check the sender, write the body to a file, then call WSGI.

A sender without the right to upload is refused before any of the body is read, and a body larger than `admit`
allows is cut off. The view authenticates and authorises again, as for every request. Small bodies stay in memory, as
those of other routes: to write one to a file takes longer than most of their requests.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, ParamSpec, TypeVar

from django.db import connections

from controlplane.http.fair_queue import Clients
from controlplane.http.wsgi_bridge import BodyTooLarge, Disconnected, WsgiApplication, WsgiBridge
from controlplane.live.asgi import Receive, Scope, Send, header, problem
from controlplane.live.client import Refused, sign_in
from controlplane.live.identity import Identity
from controlplane.notation import binary_bytes

# The time limit for a whole body, so that slow senders cannot hold disk space without end.
SECONDS_MOST = 900.0
# The number of bytes written at a time, because each write costs a switch of threads.
BATCH_BYTES = 1 << 20
# Bodies up to this size are received as those of other routes, in less time: a link of 35 kbit/s is fast enough.
SMALL_BYTES = 256 << 10
BODY_METHODS = frozenset({"POST", "PUT"})

P = ParamSpec("P")
T = TypeVar("T")
Admit = Callable[[Scope, Identity], int]


class UploadBridge(WsgiBridge):
    """The bridge for uploads. `admit(scope, identity)` returns how many bytes the user may send with the request, or
    raises Refused; it runs on a thread of its own. `folder`: where bodies are stored meanwhile, in unnamed files, so
    that a crash leaves none behind."""

    def __init__(
        self, application: WsgiApplication, clients: Clients, folder: Path, admit: Admit, *, threads: int = 2
    ) -> None:
        super().__init__(application, clients, threads=threads, most_of_client=8, most=64, name="upload")
        self._folder, self._admit = folder, admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in BODY_METHODS or _is_small(scope):
            await super().__call__(scope, receive, send)
            return
        most_bytes = 0
        try:
            most_bytes = await self._most_bytes(scope)
            with await self._in_thread(_open_file, self._folder) as file:
                size = await self._receive(scope, receive, file, most_bytes)
                await self._answer(scope, receive, send, file, size)
        except BodyTooLarge:
            await problem(send, 413, "body_too_large", f"Send at most {binary_bytes(most_bytes)} here.")
        except TimeoutError:
            detail = f"Send the whole body within {SECONDS_MOST:g} s, or fewer files at a time."
            await problem(send, 408, "body_too_slow", detail, [(b"connection", b"close")])
        except Refused as refused:
            await problem(send, refused.status, refused.code, refused.detail)
        except Disconnected:
            return

    async def _most_bytes(self, scope: Scope) -> int:
        identity = await sign_in(scope)
        return await self._in_thread(self._ask, scope, identity)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs))

    def _ask(self, scope: Scope, identity: Identity) -> int:
        try:
            return self._admit(scope, identity)
        finally:
            connections.close_all()

    async def _receive(self, scope: Scope, receive: Receive, file: BinaryIO, most_bytes: int) -> int:
        """Write the body to the file, rewind the file, and return the size in bytes. Raise BodyTooLarge above
        `most_bytes`, TimeoutError after SECONDS_MOST, Disconnected if the client disconnects."""
        if (_announced(scope) or 0) > most_bytes:
            raise BodyTooLarge
        size, waiting, has_more = 0, bytearray(), True
        async with asyncio.timeout(SECONDS_MOST):
            while has_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                waiting += message.get("body", b"")
                has_more = message.get("more_body", False)
                if size + len(waiting) > most_bytes:
                    raise BodyTooLarge
                if len(waiting) >= BATCH_BYTES or not has_more:
                    size += len(waiting)
                    await self._in_thread(file.write, bytes(waiting))
                    waiting.clear()
        file.seek(0)
        return size


def _is_small(scope: Scope) -> bool:
    """Return whether a body of at most SMALL_BYTES is announced."""
    announced = _announced(scope)
    return announced is not None and announced <= SMALL_BYTES


def _announced(scope: Scope) -> int | None:
    """Return the size of the body in bytes, None if the request does not say it."""
    size = header(scope, b"content-length") or ""
    return int(size) if size.isdecimal() else None


def _open_file(folder: Path) -> BinaryIO:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file: BinaryIO = TemporaryFile(dir=folder)  # noqa: SIM115  # the caller closes it
    return file
