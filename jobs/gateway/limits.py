"""Limits of the gateway per port of a job and per project.

A connect occupies a thread, for seconds if the port never accepts: without limits, one job's port occupied all
threads and blocked the services of all projects for 46 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar
from weakref import WeakValueDictionary

from controlplane.http.throttle import Slots, TooManyAtOnce

T = TypeVar("T")

CONNECT_THREADS = 64
# Concurrent connects per port and per project, because each holds one of the threads that all projects share; further
# ones wait.
CONNECTS_OF_PORT = 4
CONNECTS_OF_PROJECT = 16
WAITING_OF_PORT = 64
EXCHANGES_OF_PORT = 100  # requests and websockets
EXCHANGES_OF_PROJECT = 400

_threads = ThreadPoolExecutor(CONNECT_THREADS, thread_name_prefix="gateway-connect")
_waiting = Slots(WAITING_OF_PORT)
_exchanges_of_port, _exchanges_of_project = Slots(EXCHANGES_OF_PORT), Slots(EXCHANGES_OF_PROJECT)
_connects: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()


class TooManyRequests(Exception):
    """A limit of a port or its project is reached; `code` names it."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


async def connect_on_thread(
    work: Callable[..., T], *arguments: object, project: Hashable, port: Hashable
) -> asyncio.Future[T]:
    """Run `work`, which connects to a port, on a thread once the port and its project have a free slot; return
    its future. The slot is held until the thread is free, even if the caller has left. Raises TooManyRequests if
    WAITING_OF_PORT connects to the port wait already."""
    try:
        with _waiting.hold(port):
            slots = (_slots("port", port, CONNECTS_OF_PORT), _slots("project", project, CONNECTS_OF_PROJECT))
            await slots[0].acquire()
            try:
                await slots[1].acquire()
            except asyncio.CancelledError:
                slots[0].release()
                raise
    except TooManyAtOnce:
        detail = f"{WAITING_OF_PORT} requests wait for this port to accept a connection; try again."
        raise TooManyRequests("too_many_connects_to_port", detail) from None
    opening = asyncio.get_running_loop().run_in_executor(_threads, work, *arguments)

    def free(_opening: asyncio.Future[T]) -> None:
        for slot in slots:
            slot.release()

    opening.add_done_callback(free)
    return opening


@contextmanager
def exchanging(*, project: Hashable, port: Hashable) -> Iterator[None]:
    """Context manager that counts a request or websocket as open. Raises TooManyRequests if the port or the project
    has as many as its limit allows."""
    _take(_exchanges_of_port, port, "port")
    try:
        _take(_exchanges_of_project, project, "project")
        try:
            yield
        finally:
            _exchanges_of_project.give_back(project)
    finally:
        _exchanges_of_port.give_back(port)


def _take(slots: Slots, key: Hashable, kind: str) -> None:
    try:
        slots.take(key)
    except TooManyAtOnce:
        detail = (
            f"{slots.most} requests to the services of this {kind} are open, which is the limit; try again."
        )
        raise TooManyRequests(f"too_many_requests_to_{kind}", detail) from None


def _slots(kind: str, key: Hashable, most: int) -> asyncio.Semaphore:
    """Return the semaphore with `most` slots of this `key`, a port or project as `kind` says. It is dropped when
    no task holds or awaits it."""
    found = _connects.get((kind, key))
    if found is None:
        found = _connects[kind, key] = asyncio.Semaphore(most)
    return found
