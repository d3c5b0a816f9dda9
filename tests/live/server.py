"""The web process's real application on uvicorn, in a thread of the test's process, and small clients for it."""

import http.client
import importlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from django.conf import settings
from websockets.sync.client import ClientConnection, connect

from controlplane.http.connections import Limits, ServerConfig
from tests.waiting import patience, wait_until


def load_application() -> Any:
    """Import and return the application. Done before any test runs, since the import sets up Django's logging,
    which would replace a test's own."""
    Path(settings.STATIC_ROOT).mkdir(parents=True, exist_ok=True)
    return importlib.import_module("controlplane.asgi").application


application = load_application()


@dataclass(frozen=True)
class Server:
    """A running server: its port, a function that stops it, and the connections to it, which are closed at its
    end."""

    port: int
    stop: Callable[[], None]
    connections: list[http.client.HTTPConnection] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request on a new connection; return the response, whose body is not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience(10))
        self.connections.append(connection)
        connection.request(method, path, body, headers or {})
        return connection.getresponse()

    def websocket(self, path: str = "/ws/live", **options) -> ClientConnection:
        return connect(
            f"ws://127.0.0.1:{self.port}{path}", compression=None, open_timeout=patience(10), **options
        )


class Events:
    """The server-sent events of a stream; iterate over it."""

    def __init__(self, server: Server, path: str, headers: dict[str, str]) -> None:
        response = server.request("GET", path, headers=headers)
        self.connection = server.connections[-1]
        assert response.status == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        self.response = response

    def __iter__(self) -> Iterator[tuple[str, str, dict]]:
        """Yield (name, id, data) of each event; comments are skipped."""
        name, mark, data = "", "", ""
        for raw in self.response:
            line = raw.decode().rstrip("\n")
            if not line:
                if data:
                    yield name, mark, orjson.loads(data)
                name, mark, data = "", "", ""
            elif not line.startswith(":"):
                field, _, value = line.partition(": ")
                name, mark, data = (
                    value if field == "event" else name,
                    value if field == "id" else mark,
                    data + value if field == "data" else data,
                )

    def close(self) -> None:
        """Close the stream's connection."""
        self.response.close()
        self.connection.close()


@contextmanager
def running(
    limits: Limits | None = None, served: Any = application, address: str = "127.0.0.1"
) -> Iterator[Server]:
    """Context manager: serve the ASGI application `served` as `make up` does, with these limits of the web
    process."""
    listener = socket.socket()
    listener.bind((address, 0))
    config = ServerConfig(served, limits or Limits(), lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), name="test-web", daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join(patience(10))

    try:
        wait_until(lambda: server.started, what="the web server's start")
        reached = Server(listener.getsockname()[1], stop)
        yield reached
        for connection in reached.connections:
            connection.close()
    finally:
        stop()
        listener.close()
