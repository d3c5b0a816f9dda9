"""Database access on threads that outlive a request."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections

T = TypeVar("T")


class DatabaseThread:
    """A thread that keeps its database connection between calls. It starts with the first call, and after `shutdown`
    with the next one. With a larger `count`, several threads: `shutdown` closes the connection of only one of them."""

    def __init__(self, name: str, count: int = 1) -> None:
        self._name, self._count = name, count
        self._executor: ThreadPoolExecutor | None = None

    def run(self, work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """Run a function on the thread; return a future of the running event loop. A database error closes the
        connection, so that the next call opens a new one."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=self._count, thread_name_prefix=self._name)
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, _on_own_connection, work, *arguments)

    def shutdown(self) -> None:
        """Wait for calls that have begun or wait, close the connection and end the thread."""
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
