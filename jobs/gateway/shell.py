"""/ws/shell/<job>?rank=&columns=&rows=: a terminal in a running pod.

Binary frames carry what is typed and what is shown. Text frames are JSON: the client sends
{"op":"resize","columns", "rows"}; the server ends with {"op":"exit","exit_code"} or
{"op":"error","code","detail"} and closes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator

import orjson

from controlplane.access import Actor
from controlplane.engines.base import Shell
from controlplane.live.asgi import Message, Receive, Scope, Send, client_address, query
from controlplane.live.identity import Credential
from jobs.actions import record_shell
from jobs.gateway.admission import in_engine
from jobs.gateway.podsocket import enter, number, write_all
from jobs.gateway.program import serve_program
from jobs.gateway.turns import in_thread
from jobs.models import Job

PATH = re.compile(r"/ws/shell/(?P<job_id>[0-9a-fA-F-]{36})/?")
DEFAULT_COLUMNS, DEFAULT_ROWS = 80, 24


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the websockets below /ws/shell/ (ASGI)."""
    fields = query(scope)
    rank = number(fields.get("rank"), 0)
    columns = number(fields.get("columns"), DEFAULT_COLUMNS)
    rows = number(fields.get("rows"), DEFAULT_ROWS)

    async def open_shell(credential: Credential, match: re.Match[str]) -> Shell:
        def record(job: Job, actor: Actor) -> None:
            record_shell(job, rank, actor=actor)

        engine, pod_name = await in_thread(
            credential, client_address(scope), enter, credential, match["job_id"], rank, scope, record
        )
        return await in_engine(engine.open_shell, pod_name, columns, rows)

    await serve_program(scope, receive, send, PATH, open_shell, _read_output, _take_input)


def _read_output(shell: Shell) -> Iterator[bytes]:
    data = shell.read()
    if not data:
        raise EOFError
    yield data


def _take_input(shell: Shell) -> Callable[[Message], Awaitable[None]]:
    """Return a handler that sends keys to the shell and resizes its terminal."""

    async def take(message: Message) -> None:
        if message.get("text") is not None:
            _resize(shell, message["text"])
        await write_all(message.get("bytes") or b"", shell.write, shell.fileno())

    return take


def _resize(shell: Shell, text: str) -> None:
    """Resize the terminal; ignore any other text message."""
    try:
        message = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    if isinstance(message, dict) and message.get("op") == "resize":
        columns, rows = message.get("columns"), message.get("rows")
        if isinstance(columns, int) and isinstance(rows, int):
            shell.resize(columns, rows)
