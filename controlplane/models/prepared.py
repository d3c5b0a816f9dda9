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

from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Expression, Model, QuerySet
from django.db.models.sql.compiler import SQLCompiler
from django.db.models.sql.subqueries import UpdateQuery

Arguments = ParamSpec("Arguments")
Row = TypeVar("Row")
AnyModel = TypeVar("AnyModel", bound=Model)
# Rows fetched from the driver at once; with Django's 100 each cycle fetched 10,000 devices in 100 calls.
CHUNK = 10_000
Values: TypeAlias = dict[str, Any]
Rows: TypeAlias = QuerySet[AnyModel, tuple[Any, ...]]
"""The type of a `values_list` query with several columns."""


def prepared(build: Callable[Arguments, QuerySet[Any, Row]]) -> Callable[Arguments, list[Row]]:
    """Decorator: return a function that takes the arguments of `build` and returns the rows of its query, compiled
    once per connection.

    `build` is called with a placeholder for each argument, which it may use only as the right side of a filter;
    nothing else in its query may depend on the arguments. Callers pass integers, strings, datetimes or UUIDs, by
    position only; anything else raises TypeError.
    """
    of_placeholders: Callable[..., QuerySet[Any, Row]] = build
    return _calling(build, lambda given: _Prepared(of_placeholders(*given)).rows)


def prepared_update(build: Callable[Arguments, tuple[QuerySet[Any], Values]]) -> Callable[Arguments, int]:
    """Decorator: return a function that updates the rows of the query that `build` returns, to the values by column
    that it returns, and returns how many rows it updated.

    The SQL is compiled once per connection. For the arguments the rules of `prepared` hold; `build` may also use a
    placeholder as a value.
    """
    of_placeholders: Callable[..., tuple[QuerySet[Any], Values]] = build
    return _calling(build, lambda given: _PreparedUpdate(*of_placeholders(*given)).run)


def _calling(
    build: Callable[Arguments, Any], compiled: Callable[..., Callable[[Sequence[Any]], Row]]
) -> Callable[Arguments, Row]:
    """Return a function of the arguments of `build`. It passes them to what `compiled` returns for a placeholder of
    each argument, which it calls once per connection."""
    count = build.__code__.co_argcount

    @wraps(build)
    def call(*arguments: Arguments.args, **named: Arguments.kwargs) -> Row:
        if named or len(arguments) != count:
            raise TypeError(f"{build.__name__} takes {count} arguments by position")
        # Stored on the connection, because a compiled query is neither thread-safe nor valid for another connection.
        known: dict[Any, Any] = vars(connections[DEFAULT_DB_ALIAS]).setdefault("prepared", {})
        run = known.get(build)
        if run is None:
            run = known[build] = compiled(tuple(map(_Placeholder, range(count))))
        result: Row = run(arguments)
        return result

    return call


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
        return sql, _given(parameters, self.arguments, self.connection)

    def get_converters(self, expressions: Any) -> dict[int, Any]:
        if self.converters is None:
            self.converters = super().get_converters(expressions)
        return self.converters


class _PreparedUpdate:
    """An UPDATE whose SQL is compiled once."""

    def __init__(self, queryset: QuerySet[Any], values: Values) -> None:
        self._connection = connections[queryset.db]
        query: Any = queryset.query.chain(UpdateQuery)
        query.add_update_values(values)
        self._sql, self._parameters = query.get_compiler(connection=self._connection).as_sql()

    def run(self, arguments: Sequence[Any]) -> int:
        with transaction.mark_for_rollback_on_error(using=self._connection.alias):
            with self._connection.cursor() as cursor:
                cursor.execute(self._sql, _given(self._parameters, arguments, self._connection))
                return int(cursor.rowcount)


def _given(
    parameters: Sequence[Any], arguments: Sequence[Any], connection: BaseDatabaseWrapper
) -> tuple[Any, ...]:
    """Return the parameters of a statement with arguments in the place of placeholders."""
    return tuple(
        _adapted(arguments[one.index], connection) if isinstance(one, _Placeholder) else one
        for one in parameters
    )


def _adapted(value: Any, connection: BaseDatabaseWrapper) -> Any:
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    if isinstance(value, UUID) and not connection.features.has_native_uuid_field:
        return value.hex
    return value
