"""Database access on threads that outlive a request."""

from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections

T = TypeVar("T")


def on_own_connection(work: Callable[..., T], *arguments: object) -> T:
    """Run a function that reads the database, on a thread that keeps its connection. After an exception the
    connection is closed, so that the next call opens a new one."""
    try:
        return work(*arguments)
    except (DatabaseError, InterfaceError):
        connections.close_all()
        raise
