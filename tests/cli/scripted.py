"""An HTTP server that sends the answers that a test gives it, and records the requests."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.serving import serving
from tests.waiting import wait_until


@dataclass(frozen=True)
class Reply:
    """One answer, sent once `when` returns True. `body` is sent as JSON, or as it is if bytes. `is_cut` closes
    the connection instead."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False
    when: Callable[[], bool] = lambda: True


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any


class ScriptedServer:
    """`on(method, path, *replies)` sets the answers of a path in order; the last is repeated. `asked`: all
    requests so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[Asked] = []
        self._replies: dict[tuple[str, str], list[Reply]] = defaultdict(list)

    def on(self, method: str, path: str, *replies: Any) -> None:
        path = path if path.startswith("/") else f"/api/v1/{path}"
        wrapped = [reply if isinstance(reply, Reply) else Reply(body=reply) for reply in replies]
        self._replies[method, path] = wrapped

    def answer(self, asked: Asked) -> Reply:
        self.asked.append(asked)
        replies = self._replies[asked.method, asked.path]
        if not replies:
            return problem(404, "not_found", f"nothing is scripted for {asked.method} {asked.path}")
        return replies.pop(0) if len(replies) > 1 else replies[0]

    def requests(self, method: str, path: str) -> list[Asked]:
        return [asked for asked in self.asked if (asked.method, asked.path) == (method, f"/api/v1/{path}")]


def problem(status: int, code: str, detail: str, **more: Any) -> Reply:
    headers = {"Content-Type": "application/problem+json", **more.pop("headers", {})}
    body = {
        "type": "about:blank",
        "title": code,
        "status": status,
        "code": code,
        "detail": detail,
        "errors": [],
    }
    return Reply(status, {**body, **more}, headers)


def page(*rows: Any, next_url: str | None = None) -> dict[str, Any]:
    return {"results": list(rows), "next": next_url, "previous": None}


def events(*each: tuple[Any, ...]) -> Reply:
    """Return an answer of server-sent events, each (name, data) or (name, data, id), that then ends the
    connection."""
    text = "".join(
        f"event: {name}\n{''.join(f'id: {mark}{chr(10)}' for mark in rest)}data: {json.dumps(data)}\n\n"
        for name, data, *rest in each
    )
    return Reply(body=text.encode(), headers={"Content-Type": "text/event-stream"})


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(size)
            parts = urlsplit(self.path)
            is_json = "json" in self.headers.get("Content-Type", "")
            asked = Asked(
                self.command,
                parts.path,
                dict(parse_qsl(parts.query)),
                dict(self.headers),
                json.loads(raw) if raw and is_json else raw or None,
            )
            reply = server_state.answer(asked)
            wait_until(reply.when, what="the moment of a scripted answer")
            self._send(reply)

        def _send(self, reply: Reply) -> None:
            if reply.is_cut:
                self.close_connection = True
                return
            is_raw = isinstance(reply.body, bytes)
            content = reply.body if is_raw else b"" if reply.body is None else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if is_raw:
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.close_connection = self.close_connection or is_raw

        def log_message(self, *args: Any) -> None:
            """Do nothing: requests are in `asked`."""

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.handle_any)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server_state = ScriptedServer(f"http://127.0.0.1:{http.server_port}")
    with http, serving(http):
        yield server_state
