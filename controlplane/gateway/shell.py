"""/ws/shell/<job>?rank=&columns=&rows=: a terminal in a running pod.

Binary frames carry what is typed and what is shown. Text frames are JSON: the client sends
{"op":"resize","columns", "rows"}; the server ends with {"op":"exit","exit_code"} or
{"op":"error","code","detail"} and closes.
"""

from __future__ import annotations

import asyncio
import re

import orjson

from controlplane.engines.base import Engine, Shell
from controlplane.gateway.admission import admit, engine_of, in_engine, in_thread, running_pod, until_refused
from controlplane.gateway.podsocket import (
    ENDED,
    NO_LONGER,
    SIGNED_OUT,
    accept,
    end,
    first_of,
    number,
    opened,
    readable,
    write_all,
)
from controlplane.live.identity import Credential
from controlplane.live.wire import Receive, Scope, Send, query
from jobs.actions import record_shell

PATH = re.compile(r"/ws/shell/(?P<job_id>[0-9a-fA-F-]{36})/?")
DEFAULT_COLUMNS, DEFAULT_ROWS = 80, 24


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI websocket application of everything below /ws/shell/."""
    fields = query(scope)
    rank = number(fields.get("rank"), 0)
    columns = number(fields.get("columns"), DEFAULT_COLUMNS)
    rows = number(fields.get("rows"), DEFAULT_ROWS)

    async def open_shell(credential: Credential, match: re.Match[str]) -> Shell:
        engine, pod_name = await in_thread(_enter, credential, match["job_id"], rank, scope)
        return await in_engine(engine.open_shell, pod_name, columns, rows)

    found = await opened(scope, receive, send, PATH, open_shell)
    if found is not None:
        await _serve(scope, receive, send, *found)


def _enter(credential: Credential, job_id: str, rank: int, scope: Scope) -> tuple[Engine, str]:
    """On the gateway's thread: check, and record who enters which pod."""
    actor, job = admit(credential, job_id, scope)
    pod = running_pod(job, rank)
    record_shell(job, rank, actor=actor)
    return engine_of(pod), pod.name


async def _serve(
    scope: Scope, receive: Receive, send: Send, shell: Shell, credential: Credential, job_id: str
) -> None:
    """Carry bytes until the shell ends, the client leaves or loses the right to be here."""
    try:
        await accept(scope, receive, send)
        ended = await first_of(
            shell=_show(shell, send), client=_type(shell, receive), rights=until_refused(credential, job_id)
        )
    finally:
        exit_code = await asyncio.get_running_loop().run_in_executor(None, shell.close)
    if ended == "shell":
        await end(send, {"op": "exit", "exit_code": exit_code}, ENDED)
    elif ended == "rights":
        await end(send, {"op": "error", "code": "signed_out", "detail": NO_LONGER}, SIGNED_OUT)


async def _show(shell: Shell, send: Send) -> None:
    """Output to the client, at the client's pace."""
    while True:
        await readable(shell.fileno())
        data = shell.read()
        if not data:
            return
        try:
            await send({"type": "websocket.send", "bytes": data})
        except OSError:
            return  # the client has left, which `_type` notices too


async def _type(shell: Shell, receive: Receive) -> None:
    """Keys to the shell, until the client leaves."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        if message.get("text") is not None:
            _resize(shell, message["text"])
        await write_all(message.get("bytes") or b"", shell.write, shell.fileno())


def _resize(shell: Shell, text: str) -> None:
    """Anything but a resize is not for us and changes nothing."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    if isinstance(message, dict) and message.get("op") == "resize":
        columns, rows = message.get("columns"), message.get("rows")
        if isinstance(columns, int) and isinstance(rows, int):
            shell.resize(columns, rows)
