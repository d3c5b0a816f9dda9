"""One web process: uvicorn on a listening socket that the supervisor keeps open."""

import asyncio
import importlib
import os
import socket
import sys
import time
from email.utils import formatdate
from types import FrameType

import django
import uvicorn
from django.conf import settings

from controlplane.config.garbage import collect_rarely
from controlplane.http.connections import Limits, ServerConfig

# After this time open event streams and websockets are closed; clients continue by event number.
GRACE_SECONDS = 3


class State(uvicorn.server.ServerState):
    """What uvicorn's connections share. The Date header is made when it is read, at most once a second."""

    def __init__(self) -> None:
        self._others: list[tuple[bytes, bytes]] = []
        self._headers: list[tuple[bytes, bytes]] = []
        self._made_at = 0
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every response."""
        now = int(time.time())
        if now != self._made_at:
            self._headers = [(b"date", formatdate(now, usegmt=True).encode()), *self._others]
            self._made_at = now
        return self._headers

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._others = [header for header in headers if header[0] != b"date"]
        self._made_at = 0


class Server(uvicorn.Server):
    """uvicorn's server, woken by the signal that ends it.

    uvicorn itself wakes ten times a second, to look for a signal and to write the Date header. That was most of an idle
    web process's work.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state = State()

    async def main_loop(self) -> None:
        self._exiting, self._loop = asyncio.Event(), asyncio.get_running_loop()
        # It sets the other default headers, and returns whether to exit.
        while not await self.on_tick(0):
            await self._exiting.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        # Before the loop runs, its first tick finds the signal.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._exiting.set)


def serve(handle: int, ready_reader: int) -> None:
    """Serve controlplane.asgi on the inherited listening socket, file descriptor `handle`, until SIGTERM.

    `ready_reader`: the read end of a pipe. Modules are loaded while the database is being prepared; reading from the
    pipe blocks until the supervisor closes the write end. The application is created only then, because whitenoise
    stores the sizes of static files at its creation.
    """
    collect_rarely()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings")
    django.setup()
    importlib.import_module("controlplane.urls")
    os.read(ready_reader, 1)
    limits = Limits(connections=settings.CONNECTIONS, per_address=settings.CONNECTIONS_PER_ADDRESS)
    config = ServerConfig(
        "controlplane.asgi:application", limits, lifespan="auto", timeout_graceful_shutdown=GRACE_SECONDS
    )
    Server(config).run(sockets=[socket.socket(fileno=handle)])


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
