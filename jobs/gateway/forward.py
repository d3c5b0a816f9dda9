"""/ws/forward/<job>/<port>: one connection to a declared port of a running pod, its bytes as binary messages."""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import ExitStack

from controlplane.http.departure import until_gone
from controlplane.live.asgi import Receive, Scope, Send, client_address
from controlplane.live.identity import Credential
from jobs.gateway.admission import admit_service, until_refused
from jobs.gateway.limits import exchanging
from jobs.gateway.podsocket import ENDED, accept, end_rights, first_of, opened

PATH = re.compile(r"/ws/forward/(?P<job_id>[0-9a-fA-F-]{36})/(?P<port>[0-9]{1,5})/?")
READ_BYTES = 65536


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the websockets below /ws/forward/ (ASGI)."""

    with ExitStack() as slots:

        async def dial(credential: Credential, match: re.Match[str]) -> socket.socket:
            service = await admit_service(
                credential, match["job_id"], int(match["port"]), client_address(scope)
            )
            slots.enter_context(exchanging(project=service.project_id, port=service.key))
            return slots.enter_context(await service.connect())

        found = await opened(scope, receive, send, PATH, dial)
        if found is not None:
            await _serve(scope, receive, send, *found)


async def _serve(
    scope: Scope, receive: Receive, send: Send, stream: socket.socket, credential: Credential, job_id: str
) -> None:
    """Copy bytes until either side ends or the client loses access."""
    await accept(scope, receive, send)
    port, client = _from_port(stream, send), _to_port(stream, receive)
    ended = await first_of(
        port=port, client=client, rights=until_refused(credential, job_id), gone=until_gone(scope)
    )
    if ended == "port":
        await send({"type": "websocket.close", "code": ENDED})
    elif ended == "rights":
        await end_rights(send)


async def _from_port(stream: socket.socket, send: Send) -> None:
    try:
        while data := await asyncio.get_running_loop().sock_recv(stream, READ_BYTES):
            await send({"type": "websocket.send", "bytes": data})
    except OSError:
        # One side broke the connection; both ends are closed by the caller.
        return


async def _to_port(stream: socket.socket, receive: Receive) -> None:
    """Send the client's bytes to the port. An empty message closes the sending direction only; the port can
    still answer."""
    while (message := await receive())["type"] != "websocket.disconnect":
        data = message.get("bytes")
        try:
            if data:
                await asyncio.get_running_loop().sock_sendall(stream, data)
            elif data is not None:
                stream.shutdown(socket.SHUT_WR)
        except OSError:
            return
