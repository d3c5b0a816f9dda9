"""Shared parts of websockets into pods: authorisation, refusals with a message, and ending with the first
finished task."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import orjson

from controlplane.access import Actor, Forbidden, NotVisible
from controlplane.engines.base import Engine, EngineRefused, EngineUnreachable
from controlplane.live.asgi import Receive, Scope, Send, refuse_websocket
from controlplane.live.client import unknown
from controlplane.live.identity import BEARER, Credential, credential_of, is_own_origin
from jobs.gateway.admission import NoAnswer, NotRunning, NotSignedIn, admit, engine_of, running_pod
from jobs.gateway.limits import TooManyRequests
from jobs.gateway.pages import status_of
from jobs.models import Job

ENDED, SIGNED_OUT, NOT_NOW = 1000, 4401, 4409
NO_LONGER = "You are no longer signed in or no longer a member of the project."

_CODES = {NotRunning: "not_running", NoAnswer: "no_answer", EngineUnreachable: "engine_unreachable"}

T = TypeVar("T")
Opening = Callable[[Credential, re.Match[str]], Awaitable[T]]


async def opened(
    scope: Scope, receive: Receive, send: Send, path: re.Pattern[str], opening: Opening[T]
) -> tuple[T, Credential, str] | None:
    """Run `opening` for the websocket's user; return its result, the credential and the job's id (group `job_id` of
    `path`). Return None after a refusal, which is sent as an HTTP status for a wrong path, credential, origin or role,
    else as an error message after the handshake."""
    match, credential = path.fullmatch(scope["path"]), credential_of(scope)
    if match is None or credential is None or not is_own_origin(scope):
        status = 404 if match is None else 401 if credential is None else 403
        await refuse_websocket(scope, receive, send, status)
        return None
    try:
        return await opening(credential, match), credential, match["job_id"]
    except NotSignedIn:
        status = unknown(scope, credential).status
        await refuse_websocket(scope, receive, send, status)
    except (NotVisible, Forbidden) as error:
        status = status_of(error)
        await refuse_websocket(scope, receive, send, status)
    except (NotRunning, NoAnswer, TooManyRequests, EngineRefused, EngineUnreachable) as error:
        await accept(scope, receive, send)
        await end(send, {"op": "error", "code": _code(error), "detail": str(error)}, NOT_NOW)
    return None


async def accept(scope: Scope, receive: Receive, send: Send) -> None:
    """Complete the websocket handshake, with our bearer subprotocol if the client offered it."""
    await receive()  # websocket.connect
    is_by_protocol = BEARER in (scope.get("subprotocols") or ())
    await send({"type": "websocket.accept", "subprotocol": BEARER if is_by_protocol else None})


async def end(send: Send, message: dict[str, Any], close_code: int) -> None:
    """Send a last message as JSON and close the websocket with this code."""
    await send({"type": "websocket.send", "text": orjson.dumps(message).decode()})
    await send({"type": "websocket.close", "code": close_code})


def enter(
    credential: Credential, job_id: str, rank: int, scope: Scope, record: Callable[[Job, Actor], None]
) -> tuple[Engine, str]:
    """Authorise a member of the job's project and return the engine and the pod's name. `record` writes the audit
    entry. Call it on the gateway's database thread. Raises as `admit`, NotRunning if the job has no running pod
    of this rank, EngineUnreachable if its engine cannot be opened."""
    actor, job = admit(credential, job_id, scope)
    pod = running_pod(job, rank)
    record(job, actor)
    return engine_of(pod), pod.name


async def end_rights(send: Send) -> None:
    """Close the websocket with the reason that the client's access has ended."""
    await end(send, {"op": "error", "code": "signed_out", "detail": NO_LONGER}, SIGNED_OUT)


async def first_of(**works: Coroutine[Any, Any, None]) -> str:
    """Run all tasks until one ends, cancel the others, and return its name. If several end together, "client"
    or "gone" (the client left) takes precedence."""
    tasks = {name: asyncio.create_task(work) for name, work in works.items()}
    try:
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        done = [name for name, task in tasks.items() if task.done()]
        return next((name for name in ("client", "gone") if name in done), done[0])
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def readable(fd: int) -> None:
    """Wait until the descriptor is readable."""
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_reader, loop.remove_reader)


async def writable(fd: int) -> None:
    """Wait until the descriptor is writable."""
    loop = asyncio.get_running_loop()
    await _ready(fd, loop.add_writer, loop.remove_writer)


async def write_all(data: bytes, write: Callable[[bytes], int], fd: int) -> None:
    """Write all of `data` to the descriptor `fd`, in the pieces that `write` accepts; waits while it accepts
    nothing."""
    view = memoryview(data)
    while view:
        taken = write(bytes(view[:4096]))
        view = view[taken:]
        if not taken:
            await writable(fd)


def number(text: str | None, default: int) -> int:
    """Return a query value of at most five digits as a number; `default` if it is missing or anything else."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 6 else default


async def _ready(fd: int, add: Callable[..., None], remove: Callable[[int], object]) -> None:
    ready = asyncio.get_running_loop().create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(fd, wake)
    try:
        await ready
    finally:
        remove(fd)


def _code(error: Exception) -> str:
    """Return the error code for a message after the handshake; browsers do not show scripts the HTTP status
    of a refused one."""
    return error.code if isinstance(error, EngineRefused | TooManyRequests) else _CODES[type(error)]
