"""Shared parts of terminals and commands in a pod: copy output to the client and input from it until either
ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

from controlplane.http.departure import until_gone
from controlplane.live.asgi import Message, Receive, Scope, Send
from jobs.gateway.admission import until_refused
from jobs.gateway.podsocket import ENDED, Opening, accept, end, end_rights, first_of, opened, readable


class Program(Protocol):
    """A program that runs in a pod. `fileno` is readable when there is output; `close` ends it and returns its exit
    code."""

    def fileno(self) -> int: ...

    def close(self) -> int | None: ...


P = TypeVar("P", bound=Program)
# Yields the available output as binary messages; raises EOFError or OSError at its end.
ReadOutput = Callable[[P], Iterator[bytes]]
# Returns the handler of the client's messages.
TakeInput = Callable[[P], Callable[[Message], Awaitable[None]]]


async def serve_program(
    scope: Scope,
    receive: Receive,
    send: Send,
    path: re.Pattern[str],
    opening: Opening[P],
    read_output: ReadOutput[P],
    take_input: TakeInput[P],
) -> None:
    """Open a program in a pod by `opening` (see podsocket.opened; `path` matches the URL). Copy output, as
    `read_output` yields it, and input, by the handler that `take_input` returns, until the output ends, the
    client leaves or its access ends. Then close the program and send its exit code or the reason."""
    found = await opened(scope, receive, send, path, opening)
    if found is None:
        return
    program, credential, job_id = found
    ended = ""
    try:
        await accept(scope, receive, send)
        ended = await first_of(
            output=show(program, read_output, send),
            client=_feed(take_input(program), receive),
            rights=until_refused(credential, job_id),
            # Backpressure: if the program does not read its input, stop reading the client's messages.
            gone=until_gone(scope),
        )
    finally:
        exit_code = await asyncio.get_running_loop().run_in_executor(None, program.close)
    if ended == "output":
        await end(send, {"op": "exit", "exit_code": exit_code}, ENDED)
    elif ended == "rights":
        await end_rights(send)


async def show(program: P, read_output: ReadOutput[P], send: Send) -> None:
    """Send the program's output, as `read_output` yields it, to the client until it ends; waits while the client
    reads slowly."""
    while True:
        await readable(program.fileno())
        try:
            for piece in read_output(program):
                await send({"type": "websocket.send", "bytes": piece})
                # `send` suspends only if the client is slower than the output.
                await asyncio.sleep(0)
        except (EOFError, OSError):
            # An OSError means that the client has left; another task handles that.
            return


async def _feed(take: Callable[[Message], Awaitable[None]], receive: Receive) -> None:
    """Pass the client's messages to `take` until the client leaves."""
    while (message := await receive())["type"] != "websocket.disconnect":
        await take(message)
