"""Django on threads that live longer than a request."""

from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections

T = TypeVar("T")


def on_own_connection(work: Callable[..., T], *arguments: object) -> T:
    """Run a function on a thread that keeps its database connection; an error closes it, so that the next call opens
    another.
    """
    try:
        return work(*arguments)
    except (DatabaseError, InterfaceError):
        connections.close_all()
        raise
