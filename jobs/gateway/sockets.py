"""Join a browser's websocket to the pod server's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from controlplane.http.departure import until_gone
from controlplane.live.asgi import Headers, Receive, Scope, Send, refuse_websocket
from controlplane.live.identity import BEARER
from jobs.gateway.admission import NoAnswer, Service
from jobs.gateway.limits import TooManyRequests, exchanging
from jobs.gateway.upstream import public_address

# JupyterLab answers a handshake only after the kernel has started.
OPEN_SECONDS = 30.0
MOST_MESSAGE_BYTES = 16 << 20
NORMAL, GOING_AWAY, NO_STATUS, BROKEN, SIGNED_OUT = 1000, 1001, 1005, 1006, 4401


async def carry_websocket(
    scope: Scope,
    receive: Receive,
    send: Send,
    service: Service,
    target: str,
    headers: Headers,
    rights: Coroutine[Any, Any, None],
) -> None:
    """Connect to `target` (path and query) at the pod with these request headers, then accept the browser's
    websocket and copy messages both ways. If the pod refuses, the browser gets its status. Ends when either side
    ends, or when `rights` returns because the user has lost access."""
    try:
        with exchanging(project=service.project_id, port=service.key):
            try:
                pod = await _connect(scope, service, target, headers)
            except (NoAnswer, OSError, TimeoutError, InvalidHandshake) as error:
                status = _refusal_status(error)
                await refuse_websocket(scope, receive, send, status)
            else:
                await _carry(pod, scope, receive, send, rights)
    except TooManyRequests:
        await refuse_websocket(scope, receive, send, 429)
    finally:
        # It was not started if the pod refused, or if the browser left before the handshake.
        rights.close()


async def _connect(scope: Scope, service: Service, target: str, headers: Headers) -> ClientConnection:
    stream = await service.connect()
    return await connect(
        f"ws://{public_address(stream, service.port)}{target}",
        sock=stream,
        subprotocols=[Subprotocol(name) for name in _subprotocols(scope)] or None,
        additional_headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
        user_agent_header=None,
        compression=None,
        max_size=MOST_MESSAGE_BYTES,
        open_timeout=OPEN_SECONDS,
        proxy=None,
    )


async def _carry(
    pod: ClientConnection, scope: Scope, receive: Receive, send: Send, rights: Coroutine[Any, Any, None]
) -> None:
    chosen = pod.subprotocol or (BEARER if BEARER in (scope.get("subprotocols") or ()) else None)
    try:
        await receive()  # websocket.connect
        await send({"type": "websocket.accept", "subprotocol": chosen})
        ending = await _join(pod, receive, send, rights, until_gone(scope))
        if ending is not None:
            await send({"type": "websocket.close", "code": ending[0], "reason": ending[1]})
    finally:
        await pod.close()


def _refusal_status(error: Exception) -> int:
    """Return the HTTP status with which to refuse the browser: that of a NoAnswer, that of the pod's server if it is
    from 400 to 499, else 503."""
    if isinstance(error, NoAnswer):
        return error.status
    status = error.response.status_code if isinstance(error, InvalidStatus) else 503
    return status if 400 <= status < 500 else 503


def _subprotocols(scope: Scope) -> list[str]:
    """Return the browser's subprotocols without our token, which is sent as one of them."""
    offered = list(scope.get("subprotocols") or ())
    return offered[2:] if offered[:1] == [BEARER] else offered


async def _join(
    pod: ClientConnection,
    receive: Receive,
    send: Send,
    rights: Coroutine[Any, Any, None],
    gone: Coroutine[Any, Any, None],
) -> tuple[int, str] | None:
    """Copy messages in both directions until a side closes or a task ends: `rights` (the user has lost access) or
    `gone` (the browser is gone). Return the code and reason with which to close the browser's side; None if it is
    closed."""
    up = asyncio.create_task(_to_pod(pod, receive))
    down = asyncio.create_task(_to_browser(pod, send))
    watch, leaving = asyncio.create_task(rights), asyncio.create_task(gone)
    tasks = {up, down, watch, leaving}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if up.done() or leaving.done():
            await pod.close(*(up.result() if up.done() else (GOING_AWAY, "")))
            return None
        return (SIGNED_OUT, "signed out") if watch.done() else down.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_pod(pod: ClientConnection, receive: Receive) -> tuple[int, str]:
    """Copy until the browser closes; return its close code and reason in a form that may be forwarded."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code") or NO_STATUS
            return (GOING_AWAY if code in (NO_STATUS, BROKEN) else code), message.get("reason") or ""
        data = message.get("bytes")
        try:
            await pod.send(data if data is not None else message["text"])
        except ConnectionClosed:
            # The other direction reports the closed connection.
            pass


async def _to_browser(pod: ClientConnection, send: Send) -> tuple[int, str]:
    """Copy until the pod closes; return the close code and reason to send to the browser."""
    try:
        while True:
            message = await pod.recv()
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except ConnectionClosed as closed:
        return _ending(closed)


def _ending(closed: ConnectionClosed) -> tuple[int, str]:
    """Return the code and reason with which the pod's server closed, for the browser; codes that may not be sent
    are replaced."""
    if closed.rcvd is None:
        return GOING_AWAY, "the service closed the connection"
    return (NORMAL if closed.rcvd.code == NO_STATUS else closed.rcvd.code), closed.rcvd.reason
