"""Update many rows at once, each under its guard; or write a batch so that one refused row does not block the
others."""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import orjson
from django.db import DataError, IntegrityError, connection, models, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models.expressions import RawSQL

logger = logging.getLogger(__name__)

T = TypeVar("T")
AnyField: TypeAlias = "models.Field[Any, Any]"
# The columns whose values have the same form in JSON as in the row. FloatField is another such one if its values are
# finite. Other kinds of columns are left to Django.
PLAIN = (
    models.BooleanField, models.CharField, models.DateTimeField, models.ForeignKey,
    models.IntegerField, models.JSONField, models.TextField, models.UUIDField,
)  # fmt: skip
# From this number on, keys go to PostgreSQL as one array.
MANY = 50
# Errors that a single row can cause; a lost connection is not among them.
REFUSED = (DataError, IntegrityError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class Change:
    """New column values (`fields`) for the row with primary key `key`, written only while its columns match `guard`."""

    key: Any
    guard: Mapping[str, Any]
    fields: Mapping[str, Any]

    def repeat_in(self, row: models.Model) -> None:
        """Set the new values on `row` in memory, after they were written to the database."""
        for name, value in self.fields.items():
            setattr(row, name, value)


def change_rows(rows: type[models.Model], changes: Sequence[Change]) -> frozenset[Any]:
    """Write the changes whose guards match; return the primary keys of the rows written. Needs an open transaction,
    which keeps all these rows locked. They are locked in key order, so that concurrent writers cannot deadlock."""
    by_key = {change.key: change for change in changes}
    columns = {name for change in changes for name in change.guard}
    locked = rows._default_manager.filter(pk__in=_one_of(rows, list(by_key))).select_for_update(no_key=True)
    alike: dict[str, list[Change]] = defaultdict(list)
    for row in locked.order_by("pk").values("pk", *columns):
        change = by_key[row["pk"]]
        if all(row[name] == value for name, value in change.guard.items()):
            alike[repr(change.fields)].append(change)
    unlike: dict[tuple[str, ...], list[Change]] = defaultdict(list)
    for group in alike.values():
        if len(group) == 1:
            unlike[tuple(group[0].fields)].append(group[0])
        else:
            same = rows._default_manager.filter(pk__in=[change.key for change in group])
            same.update(**group[0].fields)
    for names, others in unlike.items():
        _change_each(rows, names, others)
    return frozenset(change.key for group in alike.values() for change in group)


def _one_of(rows: type[models.Model], keys: list[Any]) -> Any:
    """Return the right side of a filter for these primary keys."""
    if connection.vendor != "postgresql" or len(keys) < MANY:
        return keys
    # One array, which takes less time to prepare, to send and to plan than hundreds of parameters.
    return RawSQL(f"SELECT unnest(%s::{column_type(rows._meta.pk)}[])", [keys])


def _change_each(rows: type[models.Model], names: Sequence[str], changes: Sequence[Change]) -> None:
    """Write different values of the columns `names` into each row, with one statement. One UPDATE per row costs more
    time to build in Django than to execute."""
    by_name = {field.name: field for field in rows._meta.concrete_fields}
    fields = [by_name[name] for name in (*names, rows._meta.pk.name)]
    plain = [(*change.fields.values(), change.key) for change in changes]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            _update_together(cursor, rows, fields, plain)
        else:
            *assigned, key = (f"{quoted(field)} = %s" for field in fields)
            statement = f"UPDATE {table_of(rows)} SET {', '.join(assigned)} WHERE {key}"  # noqa: S608  # our own table
            cursor.executemany(statement, _prepared(fields, plain))


def _update_together(
    cursor: CursorWrapper,
    rows: type[models.Model],
    fields: Sequence[AnyField],
    values: Sequence[Sequence[Any]],
) -> None:
    """Write all rows by one UPDATE; PostgreSQL takes three times as long for one UPDATE per row. It takes a JSON
    document of them apart in less time than Django and the driver need to convert and quote each value. `fields`: the
    columns to set, then the primary key. `values`: per row, one value for each of `fields`."""
    try:
        document = document_of(fields, values) if all(isinstance(field, PLAIN) for field in fields) else None
    except TypeError:
        # Such as an integer of more than 64 bits, or half of a character.
        document = None
    if document is None:
        _update_from_values(cursor, rows, fields, _prepared(fields, values))
        return
    *assigned, key = (f"{quoted(field)} = new.{quoted(field)}" for field in fields)
    cursor.execute(
        f"UPDATE {table_of(rows)} AS old SET {', '.join(assigned)} "  # noqa: S608  # our own table
        f"FROM json_to_recordset(%s) AS new ({typed(fields)}) WHERE old.{key}",
        [document],
    )


def _prepared(fields: Sequence[AnyField], values: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [
        [field.get_db_prep_save(value, connection) for field, value in zip(fields, line, strict=True)]
        for line in values
    ]


def _update_from_values(
    cursor: CursorWrapper,
    rows: type[models.Model],
    fields: Sequence[AnyField],
    values: Sequence[Sequence[Any]],
) -> None:
    """Write all rows by one UPDATE ... FROM (VALUES ...). `values`: in the driver's form."""
    *assigned, key = (f"{quoted(field)} = new.{quoted(field)}::{column_type(field)}" for field in fields)
    columns, row = ", ".join(map(quoted, fields)), f"({', '.join(['%s'] * len(fields))})"
    cursor.execute(
        f"UPDATE {table_of(rows)} AS old SET {', '.join(assigned)} "  # noqa: S608  # our own table
        f"FROM (VALUES {', '.join([row] * len(values))}) AS new ({columns}) WHERE old.{key}",
        [value for line in values for value in line],
    )


def column_type(field: AnyField) -> str:
    """Return the column's SQL type without its length, for casts: a cast to varchar(63) would silently cut a longer
    text."""
    return str(field.rel_db_type(connection)).partition("(")[0]


def document_of(fields: Sequence[AnyField], rows: Iterable[Sequence[Any]]) -> str:
    """Return the rows as a JSON document, from which PostgreSQL reads them by json_to_recordset. `rows`: per row, one
    value for each of `fields`. Raise TypeError for values that JSON cannot express."""
    columns = [field.column for field in fields]
    return orjson.dumps([dict(zip(columns, values, strict=True)) for values in rows]).decode()


def typed(fields: Sequence[AnyField]) -> str:
    """Return the columns with their types, for json_to_recordset."""
    return ", ".join(f"{quoted(field)} {column_type(field)}" for field in fields)


def table_of(rows: type[models.Model]) -> str:
    return connection.ops.quote_name(rows._meta.db_table)


def quoted(field: AnyField) -> str:
    return connection.ops.quote_name(str(field.column))


def one_by_one(batch: Sequence[T], write: Callable[[Sequence[T]], None]) -> None:
    """Write a batch in one transaction. If the database refuses it, write each item in its own transaction; items
    refused then are logged and skipped. Errors other than REFUSED propagate."""
    try:
        with transaction.atomic():
            write(batch)
    except REFUSED:
        for one in batch:
            try:
                with transaction.atomic():
                    write([one])
            except REFUSED:
                logger.exception("%s was not written", one)
