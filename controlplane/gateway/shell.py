"""/ws/shell/<job>?rank=&columns=&rows=: a terminal in a running pod.

Binary frames carry what is typed and what is shown. Text frames are JSON: the client sends
{"op":"resize","columns", "rows"}; the server ends with {"op":"exit","exit_code"} or
{"op":"error","code","detail"} and closes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import orjson

from controlplane.access import Forbidden, NotVisible
from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable, Shell
from controlplane.gateway.admission import (
    NotRunning,
    NotSignedIn,
    admit,
    engine_of,
    in_engine,
    in_thread,
    running_pod,
    until_refused,
)
from controlplane.live.identity import BEARER, Credential, credential_of, is_own_origin
from controlplane.live.wire import Receive, Scope, Send, query, refuse_websocket
from jobs.actions import record_shell

PATH = re.compile(r"/ws/shell/(?P<job_id>[0-9a-fA-F-]{36})/?")
ENDED, SIGNED_OUT, NOT_NOW = 1000, 4401, 4409
DEFAULT_COLUMNS, DEFAULT_ROWS = 80, 24


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI websocket application of everything below /ws/shell/."""
    match = PATH.fullmatch(scope["path"])
    credential = credential_of(scope)
    if match is None:
        await refuse_websocket(scope, receive, send, 404, 4404)
        return
    if not is_own_origin(scope):
        await refuse_websocket(scope, receive, send, 403, 4403)
        return
    fields = query(scope)
    rank, columns, rows = (
        _number(fields.get("rank"), 0),
        _number(fields.get("columns"), DEFAULT_COLUMNS),
        _number(fields.get("rows"), DEFAULT_ROWS),
    )
    try:
        engine, pod_name = await in_thread(_enter, credential, match["job_id"], rank, scope)
        shell = await in_engine(engine.open_shell, pod_name, columns, rows)
    except NotSignedIn:
        await refuse_websocket(scope, receive, send, 401, 4401)
    except NotVisible:
        await refuse_websocket(scope, receive, send, 404, 4404)
    except Forbidden:
        await refuse_websocket(scope, receive, send, 403, 4403)
    except NotRunning as error:
        await _accept_and_end(scope, receive, send, "not_running", str(error))
    except EngineRefused as refusal:
        await _accept_and_end(scope, receive, send, refusal.code, refusal.message)
    except EngineUnreachable as error:
        await _accept_and_end(scope, receive, send, "engine_unreachable", str(error))
    else:
        assert credential is not None
        await _serve(scope, receive, send, shell, credential, match["job_id"])


def _enter(credential: Credential | None, job_id: str, rank: int, scope: Scope) -> tuple[Engine, str]:
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
        await _accept(scope, receive, send)
        ended = await _first_of(
            shell=_show(shell, send), client=_type(shell, receive), rights=until_refused(credential, job_id)
        )
    finally:
        exit_code = await asyncio.get_running_loop().run_in_executor(None, shell.close)
    if ended == "shell":
        await _end(send, {"op": "exit", "exit_code": exit_code}, ENDED)
    elif ended == "rights":
        detail = "You are no longer signed in or no longer a member of the project."
        await _end(send, {"op": "error", "code": "signed_out", "detail": detail}, SIGNED_OUT)


async def _first_of(**works: Coroutine[Any, Any, None]) -> str:
    """Run all until one ends, end the others, and say which it was: the client's leaving counts before
    all."""
    tasks = {name: asyncio.create_task(work) for name, work in works.items()}
    try:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        done = [name for name, task in tasks.items() if task.done()]
        return "client" if "client" in done else done[0]
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _show(shell: Shell, send: Send) -> None:
    """Output to the client, at the client's pace."""
    loop = asyncio.get_running_loop()
    while True:
        await _ready(shell.fileno(), loop.add_reader, loop.remove_reader)
        data = shell.read()
        if not data:
            return
        try:
            await send({"type": "websocket.send", "bytes": data})
        except OSError:
            return  # the client has left, which `_type` hears too


async def _type(shell: Shell, receive: Receive) -> None:
    """Keys to the shell, until the client leaves."""
    loop = asyncio.get_running_loop()
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        if message.get("text") is not None:
            _resize(shell, message["text"])
        view = memoryview(message.get("bytes") or b"")
        while view:
            taken = shell.write(bytes(view[:4096]))
            view = view[taken:]
            if not taken:
                await _ready(shell.fileno(), loop.add_writer, loop.remove_writer)


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


async def _ready(fd: int, add: Callable[..., None], remove: Callable[[int], object]) -> None:
    """Wait until the descriptor can be read from or written to."""
    ready = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(fd, wake)
    try:
        await ready
    finally:
        remove(fd)


async def _accept(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()  # websocket.connect
    is_by_protocol = BEARER in (scope.get("subprotocols") or ())
    await send({"type": "websocket.accept", "subprotocol": BEARER if is_by_protocol else None})


async def _accept_and_end(scope: Scope, receive: Receive, send: Send, code: str, detail: str) -> None:
    """A refusal that has words, which an HTTP status before the handshake would not carry."""
    await _accept(scope, receive, send)
    await _end(send, {"op": "error", "code": code, "detail": detail}, NOT_NOW)


async def _end(send: Send, message: dict[str, Any], close_code: int) -> None:
    await send({"type": "websocket.send", "text": orjson.dumps(message).decode()})
    await send({"type": "websocket.close", "code": close_code})


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else default
