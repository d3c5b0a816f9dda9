"""Database access on threads that outlive a request."""

from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections

T = TypeVar("T")


def on_own_connection(work: Callable[..., T], *arguments: object) -> T:
    """Run a function on a thread that keeps its database connection. An exception closes the connection, so that
    the next call opens a new one."""
    try:
        return work(*arguments)
    except (DatabaseError, InterfaceError):
        connections.close_all()
        raise
