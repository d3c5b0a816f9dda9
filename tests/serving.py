"""Runs a test's server in a thread."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer

from websockets.sync.server import Server


@contextmanager
def serving(server: BaseServer | Server) -> Iterator[None]:
    """Context manager in which the server answers requests in a thread."""
    options = {"poll_interval": 0.02} if isinstance(server, BaseServer) else {}
    thread = threading.Thread(target=server.serve_forever, kwargs=options)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
