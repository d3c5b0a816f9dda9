"""Insert many rows at once. Django converts and quotes each value of each row in Python; PostgreSQL takes one JSON
document of all rows apart by itself."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from django.db import connection, models

from controlplane.models.bulk_update import PLAIN, AnyField, document_of, quoted, table_of, typed
from controlplane.models.prepared import AnyModel


def insert_rows(rows: Iterable[AnyModel]) -> list[AnyModel]:
    """Insert rows of one model, set the keys that the database generates, and return the rows. On PostgreSQL it takes
    one statement, for columns and values that JSON can express. Either all rows have a primary key or none has. Floats
    must be finite. Raises what Django's `bulk_create` raises."""
    rows = list(rows)
    if not rows:
        return rows
    model = type(rows[0])
    fields = [
        field for field in model._meta.concrete_fields if rows[0].pk is not None or not field.primary_key
    ]
    if connection.vendor != "postgresql" or not all(
        isinstance(field, (*PLAIN, models.FloatField)) for field in fields
    ):
        return model._default_manager.bulk_create(rows)
    try:
        document = _document(rows, fields)
    except TypeError:
        # Such as an integer of more than 64 bits, an expression, or half of a character.
        return model._default_manager.bulk_create(rows)
    for row, key in zip(rows, _insert(model, fields, document), strict=True):
        row.pk, row._state.adding, row._state.db = key, False, connection.alias
    return rows


def _document(rows: Sequence[models.Model], fields: Sequence[AnyField]) -> str:
    return document_of(fields, map(attrgetter(*(field.attname for field in fields)), rows))


def _insert(model: type[models.Model], fields: Sequence[AnyField], document: str) -> list[object]:
    """Insert the rows of this JSON document; return their primary keys in the same order."""
    columns = ", ".join(map(quoted, fields))
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table_of(model)} ({columns}) "  # noqa: S608  # our own table
            f"SELECT * FROM json_to_recordset(%s) AS new ({typed(fields)}) RETURNING {quoted(model._meta.pk)}",
            [document],
        )
        return [key for (key,) in cursor.fetchall()]
