"""Consistent reads: all queries of a block see the same state of the database, without blocking writers."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


@contextmanager
def one_moment() -> Iterator[None]:
    """Context manager in which all queries see one state of the database, and nothing may be written. It does not
    block writers, as atomic() would on SQLite. Without effect inside an open transaction."""
    # The isolation level cannot be changed after the first query of a transaction.
    if connection.in_atomic_block:
        yield
    elif connection.vendor == "sqlite":
        with _deferred():
            yield
    else:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield


@contextmanager
def _deferred() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN DEFERRED")
    try:
        yield
    finally:
        # Nothing was written, so a commit is right after an error too.
        with connection.cursor() as cursor:
            cursor.execute("COMMIT")
