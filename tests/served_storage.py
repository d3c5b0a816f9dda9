"""Common parts of tests/served_ontap.py and tests/served_anf.py: an HTTPS server on loopback, faults that a test
injects, and volumes as directories. It is not a storage system: it copies bytes, and answers in the vendors'
published formats."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.certificates import make_certificate, server_context
from tests.serving import serving

# Status, body (text that is not JSON as it is), and headers.
Answer = tuple[int, dict[str, Any] | str, dict[str, str]]


class ServedStorage:
    """The state of a served system. `namespace`: the directory of mounted volumes; `requests`: all so far;
    `faults`: answers that the next requests get instead of their own."""

    def __init__(self, directory: Path) -> None:
        self.namespace, self._hidden = directory / "namespace", directory / "hidden"
        self.namespace.mkdir(parents=True)
        self._hidden.mkdir()
        self.certificate = make_certificate(directory)
        self.port = 0
        self.requests: list[tuple[str, str, Any]] = []
        # Answers that the next requests get instead of the real ones.
        self.faults: list[Answer] = []
        self.hangs = threading.Event()
        self.ends = threading.Event()
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, headers: Any) -> Answer:
        """Return the answer to a request; subclasses implement it."""
        raise NotImplementedError

    def show(self, name: str) -> None:
        """Mount a volume: move its directory into the namespace."""
        (self._hidden / name).rename(self.namespace / name)

    def hide(self, name: str) -> None:
        """Unmount a volume: move its directory out of the namespace."""
        (self.namespace / name).rename(self._hidden / name)

    def fill(self, name: str, source: str = "") -> None:
        """Create the directory of an unmounted volume: empty, or a copy of the volume `source`."""
        if source:
            shutil.copytree(self.where(source), self._hidden / name)
        else:
            (self._hidden / name).mkdir()

    def where(self, name: str) -> Path:
        shown = self.namespace / name
        return shown if shown.exists() else self._hidden / name

    def erase(self, name: str) -> None:
        shutil.rmtree(self.where(name))


def _body(kind: str, content: bytes) -> Any:
    if kind.startswith("application/x-www-form-urlencoded"):
        return dict(parse_qsl(content.decode()))
    return json.loads(content or b"null")


@contextmanager
def served(storage: ServedStorage) -> Iterator[None]:
    """Context manager that serves the storage; code that asks for mounts sees its directories as mounted."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one packet: two wait for the client's delayed acknowledgement.
        wbufsize = -1

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            path = unquote(parts.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = _body(self.headers.get("Content-Type", ""), self.rfile.read(length))
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            if storage.hangs.is_set():
                storage.ends.wait()
            with storage.lock:
                storage.requests.append((self.command, path, body))
                fault = storage.faults.pop(0) if storage.faults else None
                found = fault or storage.answer(self.command, path, query, body, self.headers)
            status, answer, headers = found
            text = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Type": "application/json"}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_any  # noqa: N815 - names of http.server

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore the errors of clients that close the connection or do not trust the certificate, which some
            tests need."""
            if not isinstance(sys.exception(), OSError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    server.socket = server_context(storage.certificate).wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    storage.port = server.server_address[1]
    # A mount is a rename here.
    mounts = mock.patch("datasets.storage.volume_files.is_mounted", lambda path, root: path.is_dir())
    with server, serving(server), mounts:
        try:
            yield
        finally:
            storage.ends.set()
