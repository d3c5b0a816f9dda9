"""One web process: uvicorn on a listening socket that the supervisor keeps open."""

import asyncio
import contextlib
import importlib
import os
import socket
import sys
from types import FrameType

import django
import uvicorn
from django.conf import settings

from controlplane.config.garbage import collect_rarely
from controlplane.http.connections import Limits, ServerConfig

# After this time open event streams and websockets are closed; clients continue by event number.
GRACE_SECONDS = 3
# The interval at which uvicorn writes the Date header anew, which has whole seconds.
TICK_SECONDS = 1.0


class Server(uvicorn.Server):
    """uvicorn's server, ended by an event instead of polling. uvicorn itself checks for a signal ten times a second,
    which was most of an idle web process's work."""

    _loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._exiting, self._loop = asyncio.Event(), asyncio.get_running_loop()
        # At a count of 0 uvicorn writes the header; it returns whether to exit.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
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
