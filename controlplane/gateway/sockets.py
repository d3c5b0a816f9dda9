"""A websocket to a pod's server, joined to the browser's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.typing import Subprotocol

from controlplane.live.identity import BEARER
from controlplane.live.wire import Headers, Receive, Scope, Send, refuse_websocket

OPEN_SECONDS = 5.0
MOST_MESSAGE_BYTES = 16 << 20
SIGNED_OUT, GOING_AWAY, NO_STATUS, BROKEN = 4401, 1001, 1005, 1006


async def carry_websocket(
    scope: Scope,
    receive: Receive,
    send: Send,
    uri: str,
    headers: Headers,
    rights: Coroutine[Any, Any, None],
) -> None:
    """Open the pod's side first: what it refuses, the browser sees refused. Ends when either side or
    `rights` ends."""
    offered = _subprotocols(scope)
    try:
        pod = await connect(
            uri,
            subprotocols=[Subprotocol(name) for name in offered] or None,
            additional_headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
            user_agent_header=None,
            compression=None,
            max_size=MOST_MESSAGE_BYTES,
            open_timeout=OPEN_SECONDS,
            proxy=None,
        )
    except (OSError, TimeoutError, InvalidHandshake):
        rights.close()
        await refuse_websocket(scope, receive, send, 503, 4503)
        return
    await receive()  # websocket.connect
    chosen = pod.subprotocol or (BEARER if BEARER in (scope.get("subprotocols") or ()) else None)
    await send({"type": "websocket.accept", "subprotocol": chosen})
    try:
        code = await _join(pod, receive, send, rights)
        if code is not None:
            await send({"type": "websocket.close", "code": code})
    finally:
        await pod.close()


def _subprotocols(scope: Scope) -> list[str]:
    """What the browser offers, without a token that stands there for us."""
    offered = list(scope.get("subprotocols") or ())
    return offered[2:] if offered[:1] == [BEARER] else offered


async def _join(
    pod: ClientConnection, receive: Receive, send: Send, rights: Coroutine[Any, Any, None]
) -> int | None:
    """Carry messages both ways. The code to close the browser's side with; None when it closed itself."""
    up = asyncio.create_task(_to_pod(pod, receive))
    down = asyncio.create_task(_to_browser(pod, send))
    watch = asyncio.create_task(rights)
    tasks = {up, down, watch}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if up.done():
            await pod.close(*up.result())
            return None
        return SIGNED_OUT if watch.done() else down.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _to_pod(pod: ClientConnection, receive: Receive) -> tuple[int, str]:
    """Until the browser closes: its close code and reason, as far as they may be sent on."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            code = message.get("code") or NO_STATUS
            return (GOING_AWAY if code in (NO_STATUS, BROKEN) else code), message.get("reason") or ""
        data = message.get("bytes")
        try:
            await pod.send(data if data is not None else message["text"])
        except ConnectionClosed:
            pass  # the other direction tells the browser


async def _to_browser(pod: ClientConnection, send: Send) -> int:
    """Until the pod closes: the code that the browser is told."""
    try:
        async for message in pod:
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except ConnectionClosed:
        return GOING_AWAY
    code = pod.close_code or NO_STATUS
    return 1000 if code in (NO_STATUS, BROKEN) else code
