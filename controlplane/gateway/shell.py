"""/ws/shell/<job>?rank=&columns=&rows=: a terminal in a running pod.

Binary frames carry what is typed and what is shown. Text frames are JSON: the client sends
{"op":"resize","columns", "rows"}; the server ends with {"op":"exit","exit_code"} or
{"op":"error","code","detail"} and closes.
"""

from __future__ import annotations

import re

import orjson

from controlplane.access import Actor
from controlplane.engines.base import Shell
from controlplane.gateway.admission import in_engine, in_thread, until_refused
from controlplane.gateway.podsocket import enter, number, opened, readable, serve, write_all
from controlplane.live.asgi import Receive, Scope, Send, query
from controlplane.live.identity import Credential
from jobs.actions import record_shell
from jobs.models import Job

PATH = re.compile(r"/ws/shell/(?P<job_id>[0-9a-fA-F-]{36})/?")
DEFAULT_COLUMNS, DEFAULT_ROWS = 80, 24


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI websocket application of everything below /ws/shell/."""
    fields = query(scope)
    rank = number(fields.get("rank"), 0)
    columns = number(fields.get("columns"), DEFAULT_COLUMNS)
    rows = number(fields.get("rows"), DEFAULT_ROWS)

    async def open_shell(credential: Credential, match: re.Match[str]) -> Shell:
        def record(job: Job, actor: Actor) -> None:
            record_shell(job, rank, actor=actor)

        engine, pod_name = await in_thread(enter, credential, match["job_id"], rank, scope, record)
        return await in_engine(engine.open_shell, pod_name, columns, rows)

    found = await opened(scope, receive, send, PATH, open_shell)
    if found is None:
        return
    shell, credential, job_id = found
    works = {
        "output": _show(shell, send),
        "keys": _type(shell, receive),
        "rights": until_refused(credential, job_id),
    }
    await serve(scope, receive, send, close=shell.close, **works)


async def _show(shell: Shell, send: Send) -> None:
    """Send output to the client, at the client's pace."""
    while True:
        await readable(shell.fileno())
        data = shell.read()
        if not data:
            return
        try:
            await send({"type": "websocket.send", "bytes": data})
        except OSError:
            # The client has left, which `_type` notices too.
            return


async def _type(shell: Shell, receive: Receive) -> None:
    """Send keys to the shell until the client leaves."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        if message.get("text") is not None:
            _resize(shell, message["text"])
        await write_all(message.get("bytes") or b"", shell.write, shell.fileno())


def _resize(shell: Shell, text: str) -> None:
    """Resize the terminal; ignore any other message."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    if isinstance(message, dict) and message.get("op") == "resize":
        columns, rows = message.get("columns"), message.get("rows")
        if isinstance(columns, int) and isinstance(rows, int):
            shell.resize(columns, rows)
