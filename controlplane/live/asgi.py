"""Types and helpers of our ASGI applications: headers, query fields, errors as problem+json."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import orjson

from controlplane.http.problem_details import PROBLEM_JSON, problem_details

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]


def header(scope: Scope, name: bytes) -> str | None:
    """Return the value of a request header, None if it is absent. `name` must be in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def host_of(scope: Scope) -> str:
    """Return the Host header; "" if it is absent, or repeated, because proxies differ in which of several they use."""
    hosts = [bytes(value).decode("latin-1") for key, value in scope["headers"] if key == b"host"]
    return hosts[0] if len(hosts) == 1 else ""


def client_address(scope: Scope) -> str:
    """Return the address of the connection's client; "" for a Unix socket. For a request of a trusted proxy it is
    that of the proxy's client (see controlplane/asgi.py)."""
    return (scope.get("client") or ("",))[0] or ""


def query(scope: Scope) -> dict[str, str]:
    """Return the URL's query fields by name; of a repeated field the last value."""
    fields = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    return {name: values[-1] for name, values in fields.items()}


async def answer(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a complete response; its Content-Length header is added."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def problem(send: Send, status: int, code: str, detail: str, headers: Headers | None = None) -> None:
    """Send an application/problem+json response. `code`: stable, for programs; `detail`: what happened and the next
    step."""
    kind = (b"content-type", PROBLEM_JSON.encode())
    await answer(send, status, [kind, *(headers or [])], orjson.dumps(problem_details(status, code, detail)))


async def refuse_websocket(scope: Scope, receive: Receive, send: Send, status: int) -> None:
    """Refuse a websocket before it opens: with the HTTP `status` if the server supports that, else by closing it with
    code 4000 + status."""
    await receive()  # websocket.connect
    if "websocket.http.response" in (scope.get("extensions") or {}):
        text = (b"content-type", b"text/plain; charset=utf-8")
        await send({"type": "websocket.http.response.start", "status": status, "headers": [text]})
        await send({"type": "websocket.http.response.body", "body": HTTPStatus(status).phrase.encode()})
    else:
        await send({"type": "websocket.close", "code": 4000 + status})


async def serve_stream(application: Application, scope: Scope, receive: Receive, send: Send) -> None:
    """Run an application with an endless response. If a stopping server cancels it after the response began, end the
    response properly, so that the client reconnects and continues after its last event number."""
    has_started = False

    async def noting(message: Message) -> None:
        nonlocal has_started
        has_started = True
        await send(message)

    try:
        await application(scope, receive, noting)
    except asyncio.CancelledError:
        if not has_started:
            raise
        await send({"type": "http.response.body", "body": b""})
