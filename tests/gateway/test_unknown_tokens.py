"""Tokens that no user has are counted by address, whichever way of the gateway they are tried on."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from controlplane.http.throttle import Throttle
from controlplane.live.asgi import Message, Scope
from jobs.gateway import command, entrance, forward, proxy, shell

JOB = uuid.uuid4()
OWN_HOST, JOB_HOST = "localhost", f"{JOB}-8888.localhost"
PAGE_LOAD = " as a page"
WAYS: dict[str, tuple[Callable[..., Awaitable[Any]], str, str, str]] = {
    "terminal": (shell.application, "websocket", OWN_HOST, f"/ws/shell/{JOB}"),
    "exec": (command.application, "websocket", OWN_HOST, f"/ws/exec/{JOB}"),
    "port-forward": (forward.application, "websocket", OWN_HOST, f"/ws/forward/{JOB}/8888"),
    "entrance": (entrance.application, "http", OWN_HOST, f"/services/{JOB}/8888/"),
    "entrance as a page": (entrance.application, "http", OWN_HOST, f"/services/{JOB}/8888/"),
    "service as a page": (proxy.application, "http", JOB_HOST, "/"),
    "service": (proxy.application, "http", JOB_HOST, "/"),
    "service's websocket": (proxy.application, "websocket", JOB_HOST, "/"),
}


def status(way: str, token: str) -> int:
    """Return the HTTP status with which the gateway refuses the token."""
    application, kind, host, path = WAYS[way]
    headers = [(b"host", host.encode()), (b"authorization", f"Bearer {token}".encode())]
    if way.endswith(PAGE_LOAD):
        headers.append((b"accept", b"text/html"))
    scope: Scope = {
        "type": kind, "path": path, "query_string": b"", "headers": headers, "client": ("192.0.2.1", 1),
        "method": "GET", "extensions": {"websocket.http.response": {}},
    }  # fmt: skip
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async_to_sync(application)(scope, receive, send)
    answered: int = sent[0]["status"]
    return answered


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", WAYS)
def test_an_address_with_many_unknown_tokens_is_told_to_wait(way: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("controlplane.http.unknown_tokens._attempts", Throttle(2, 60))
    assert [status(way, f"yard_unknown{number}") for number in range(3)] == [401, 401, 429]
