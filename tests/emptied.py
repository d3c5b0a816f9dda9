"""The end of a test that commits: its rows are deleted, table by table where there are any.

Django truncates all tables instead, for each of which PostgreSQL makes new files, and then makes permissions anew,
of which nothing here has any.
"""

from functools import lru_cache
from typing import Any

from django.apps import apps
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

KEPT = ("auth", "contenttypes")  # as migrations leave them


def install() -> None:
    """Do so in this process."""
    TransactionTestCase._fixture_teardown = _empty_all


def empty(connection: BaseDatabaseWrapper) -> None:
    """Delete every row that any test may have made."""
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
    """All of the models, those between two models too."""
    return tuple(
        model._meta.db_table
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and not model._meta.proxy and model._meta.app_label not in KEPT
    )


def _empty_all(case: Any) -> None:
    for name in case._databases_names(include_mirrors=False):
        empty(connections[name])
