"""/ws/exec/<job>?rank=&command=&command=...: a command in a running pod, without a terminal; without `command` a shell
that reads its input.

The client sends its input as binary messages and {"op":"end_of_input"}. The server sends binary messages that begin
with a byte, 1 for standard output and 2 for error output, and ends with {"op":"exit","exit_code"} or
{"op":"error","code","detail"} and closes.
"""

from __future__ import annotations

import asyncio
import re
from urllib.parse import parse_qs

from controlplane.engines.base import Engine, Process
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
from controlplane.live.wire import Receive, Scope, Send
from jobs.actions import record_command

PATH = re.compile(r"/ws/exec/(?P<job_id>[0-9a-fA-F-]{36})/?")
END_OF_INPUT = '{"op":"end_of_input"}'


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI websocket application of everything below /ws/exec/."""
    fields = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    command = fields.get("command", [])
    rank = number(fields.get("rank", ["0"])[-1], 0)

    async def run(credential: Credential, match: re.Match[str]) -> Process:
        engine, pod_name = await in_thread(_enter, credential, match["job_id"], rank, command, scope)
        return await in_engine(engine.run_command, pod_name, command)

    found = await opened(scope, receive, send, PATH, run)
    if found is not None:
        await _serve(scope, receive, send, *found)


def _enter(
    credential: Credential, job_id: str, rank: int, command: list[str], scope: Scope
) -> tuple[Engine, str]:
    """On the gateway's thread: check, and record who runs what in which pod."""
    actor, job = admit(credential, job_id, scope)
    pod = running_pod(job, rank)
    record_command(job, rank, command, actor=actor)
    return engine_of(pod), pod.name


async def _serve(
    scope: Scope, receive: Receive, send: Send, process: Process, credential: Credential, job_id: str
) -> None:
    """Carry bytes until the command ends, the client leaves or loses the right to be here."""
    try:
        await accept(scope, receive, send)
        ended = await first_of(
            command=_show(process, send),
            client=_feed(process, receive),
            rights=until_refused(credential, job_id),
        )
    finally:
        exit_code = await asyncio.get_running_loop().run_in_executor(None, process.close)
    if ended == "command":
        await end(send, {"op": "exit", "exit_code": exit_code}, ENDED)
    elif ended == "rights":
        await end(send, {"op": "error", "code": "signed_out", "detail": NO_LONGER}, SIGNED_OUT)


async def _show(process: Process, send: Send) -> None:
    """Both outputs to the client, at the client's pace."""
    while True:
        await readable(process.fileno())
        try:
            while (piece := process.read())[1]:
                await send({"type": "websocket.send", "bytes": bytes([piece[0]]) + piece[1]})
        except (EOFError, OSError):
            return  # an OSError: the client has left, which `_feed` notices too


async def _feed(process: Process, receive: Receive) -> None:
    """Input to the command, until the client leaves."""
    is_open = True
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        if is_open and message.get("text") == END_OF_INPUT:
            is_open = False
            process.close_input()
        elif is_open:
            await write_all(message.get("bytes") or b"", process.write, process.input_fileno())
