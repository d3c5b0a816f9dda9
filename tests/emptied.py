"""Deletes all rows after a transactional test, only from tables that have any.

Django would truncate all tables, for which PostgreSQL creates new files, and create permissions again, which the
product does not use."""

from functools import lru_cache
from typing import Any

from django.apps import apps
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

KEPT = ("auth", "contenttypes")  # as migrations leave them


def install() -> None:
    """Make transactional tests of this process end with `empty`."""
    TransactionTestCase._fixture_teardown = _empty_all


def empty(connection: BaseDatabaseWrapper) -> None:
    """Delete all rows except permissions and content types."""
    quoted = [connection.ops.quote_name(name) for name in tables()]
    which = " UNION ALL ".join(
        f"SELECT {place} WHERE EXISTS (SELECT 1 FROM {name})" for place, name in enumerate(quoted)
    )
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # a server's thread that still writes is waited for, as by TRUNCATE; SQLite has one writer
            cursor.execute(f"LOCK TABLE {', '.join(quoted)} IN ACCESS EXCLUSIVE MODE")
        cursor.execute(which)
        for (place,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {quoted[place]}")


@lru_cache(maxsize=1)
def tables() -> tuple[str, ...]:
    """Return the names of all tables of models, including those of many-to-many relations."""
    return tuple(
        model._meta.db_table
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and not model._meta.proxy and model._meta.app_label not in KEPT
    )


def _empty_all(case: Any) -> None:
    for name in case._databases_names(include_mirrors=False):
        empty(connections[name])
