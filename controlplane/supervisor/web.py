"""One web process: uvicorn on a listening socket that the supervisor keeps open."""

import importlib
import os
import socket
import sys

import django
import uvicorn
from django.conf import settings

from controlplane.config.garbage import collect_rarely
from controlplane.http.connections import Limits, ServerConfig

# After this time open event streams and websockets are closed; clients continue by event number.
GRACE_SECONDS = 3


def serve(handle: int, ready_reader: int) -> None:
    """Serve controlplane.asgi on the inherited listening socket until SIGTERM.

    `ready_reader`: the read end of a pipe. Modules are loaded while the database is being prepared; reading
    from the pipe blocks until the supervisor closes the write end. The application is created only then,
    because whitenoise stores the sizes of static files at its creation.
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
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=handle)])


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
