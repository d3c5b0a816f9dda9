"""Queries that are compiled once per connection. Django takes ten times as long to build and compile the SQL of a small
query as the database takes to answer it, and the loop runs the same queries in every cycle.

    @prepared
    def _pods(cluster: int) -> QuerySet[Pod]:
        return Pod.objects.filter(node__cluster=cluster, released_at=None)

    pods = _pods(cluster.pk)
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression, Model, QuerySet
from django.db.models.sql.compiler import SQLCompiler

Arguments = ParamSpec("Arguments")
Row = TypeVar("Row")
AnyModel = TypeVar("AnyModel", bound=Model)
# Rows fetched from the driver at once; with Django's 100 each cycle fetched 10,000 devices in 100 calls.
CHUNK = 10_000
Rows: TypeAlias = QuerySet[AnyModel, tuple[Any, ...]]
"""The type of a `values_list` query with several columns."""


def prepared(build: Callable[Arguments, QuerySet[Any, Row]]) -> Callable[Arguments, list[Row]]:
    """Decorator: return a function that takes the arguments of `build` and returns the rows of its query, compiled
    once per connection.

    `build` is called with a placeholder for each argument, which it may use only as the right side of a filter;
    nothing else in its query may depend on the arguments. Callers pass integers, strings, datetimes or UUIDs, by
    position only; anything else raises TypeError.
    """
    count = build.__code__.co_argcount

    @wraps(build)
    def read(*arguments: Arguments.args, **named: Arguments.kwargs) -> list[Row]:
        if named or len(arguments) != count:
            raise TypeError(f"{build.__name__} takes {count} arguments by position")
        # Stored on the connection, because a compiled query is neither thread-safe nor valid for another connection.
        known: dict[Any, _Prepared] = vars(connections[DEFAULT_DB_ALIAS]).setdefault("prepared", {})
        query = known.get(build)
        if query is None:
            of_placeholders: Callable[..., QuerySet[Any, Row]] = build
            query = _Prepared(of_placeholders(*map(_Placeholder, range(count))))
            known[build] = query
        return query.rows(arguments)

    return read


class _Placeholder(Expression):
    """The placeholder for one argument while a query is compiled; it becomes a parameter of the SQL."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        return "%s", (self,)


class _Prepared:
    """A queryset with one compiler for all its executions, so that its SQL is compiled once."""

    def __init__(self, queryset: QuerySet[Any, Any]) -> None:
        self._queryset, query = queryset, queryset.query
        self._compiler = _Compiler(query, connections[queryset.db], queryset.db)
        vars(query)["get_compiler"] = lambda *_, **__: self._compiler

    def rows(self, arguments: Sequence[Any]) -> list[Any]:
        self._compiler.arguments = arguments
        iterable: Any = self._queryset._iterable_class
        return [*iterable(self._queryset, chunk_size=CHUNK)]


class _Compiler(SQLCompiler):
    """A compiler that keeps its query's SQL and inserts the current `arguments` at each execution."""

    compiled: tuple[str, Sequence[Any]] | None = None
    converters: dict[int, Any] | None = None
    arguments: Sequence[Any] = ()

    def as_sql(self, *args: Any, **kwargs: Any) -> tuple[str, tuple[Any, ...]]:
        if self.compiled is None:
            self.compiled = super().as_sql(*args, **kwargs)
        sql, parameters = self.compiled
        given = (self._given(one) if isinstance(one, _Placeholder) else one for one in parameters)
        return sql, tuple(given)

    def get_converters(self, expressions: Any) -> dict[int, Any]:
        if self.converters is None:
            self.converters = super().get_converters(expressions)
        return self.converters

    def _given(self, placeholder: _Placeholder) -> Any:
        value = self.arguments[placeholder.index]
        if isinstance(value, datetime):
            return self.connection.ops.adapt_datetimefield_value(value)
        if isinstance(value, UUID) and not self.connection.features.has_native_uuid_field:
            return value.hex
        return value
