"""Database access on threads that outlive a request."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections

T = TypeVar("T")


class DatabaseThread:
    """`count` threads that each keep a database connection between calls. They start with the first call, and again
    with the first call after `shutdown`. Call it on the event loop."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._name, self._count = name, count
        self._executor: ThreadPoolExecutor | None = None

    def run(self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Run `work` on a thread; return a future of the running event loop. A database error also closes the
        thread's connection, so that the next call opens a new one."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=self._count, thread_name_prefix=self._name)
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, _on_own_connection, work, *arguments)

    def shutdown(self) -> None:
        """Block until all submitted calls have ended, then end the threads. With a `count` above 1 only one of the
        database connections is closed."""
        if self._executor is not None:
            executor, self._executor = self._executor, None
            # On the thread that opened it, because Django's connections are thread-local.
            executor.submit(connections.close_all)
            executor.shutdown(wait=True)


def _on_own_connection(work: Callable[..., T], *arguments: object) -> T:
    try:
        return work(*arguments)
    except (DatabaseError, InterfaceError):
        connections.close_all()
        raise
