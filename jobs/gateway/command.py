"""/ws/exec/<job>?rank=&command=&command=...: a command in a running pod, without a terminal; without `command` a shell
that reads its input.

The client sends its input as binary messages and {"op":"end_of_input"}. The server sends binary messages that begin
with a byte, 1 for standard output and 2 for error output, and ends with {"op":"exit","exit_code"} or
{"op":"error","code","detail"} and closes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator
from urllib.parse import parse_qs

from controlplane.access import Actor
from controlplane.engines.base import INVALID_POD, EngineRefused, Process
from controlplane.live.asgi import Message, Receive, Scope, Send, client_address
from controlplane.live.identity import Credential
from jobs.actions import record_command
from jobs.gateway.admission import in_engine
from jobs.gateway.podsocket import enter, number, write_all
from jobs.gateway.program import serve_program
from jobs.gateway.turns import in_thread
from jobs.models import Job

PATH = re.compile(r"/ws/exec/(?P<job_id>[0-9a-fA-F-]{36})/?")
END_OF_INPUT = '{"op":"end_of_input"}'


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the websockets below /ws/exec/ (ASGI)."""
    fields = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    command = fields.get("command", [])
    rank = number(fields.get("rank", ["0"])[-1], 0)

    async def run(credential: Credential, match: re.Match[str]) -> Process:
        def record(job: Job, actor: Actor) -> None:
            if any("\0" in word for word in command):
                raise EngineRefused(INVALID_POD, "A command cannot contain NUL characters.")
            record_command(job, rank, command, actor=actor)

        engine, pod_name = await in_thread(
            credential, client_address(scope), enter, credential, match["job_id"], rank, scope, record
        )
        return await in_engine(engine.run_command, pod_name, command)

    await serve_program(scope, receive, send, PATH, run, read_output, _take_input)


def read_output(process: Process) -> Iterator[bytes]:
    """Yield all output that is available now; each piece begins with the number of its stream, 1 or 2."""
    while (piece := process.read())[1]:
        yield bytes([piece[0]]) + piece[1]


def _take_input(process: Process) -> Callable[[Message], Awaitable[None]]:
    """Return a handler that writes the client's messages to the command's input until `end_of_input`."""
    is_open = True

    async def take(message: Message) -> None:
        nonlocal is_open
        if is_open and message.get("text") == END_OF_INPUT:
            is_open = False
            process.close_input()
        elif is_open:
            await write_all(message.get("bytes") or b"", process.write, process.input_fileno())

    return take
