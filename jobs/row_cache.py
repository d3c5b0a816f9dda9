"""Read rows of jobs repeatedly, decoding only those that changed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import QuerySet

from jobs.models import Job
from jobs.queries import decoder_of, plain_id

Row = Mapping[str, Any]


class RowCache:
    """Rows in the form of `queries.plain_rows`, cached between reads. An unchanged row is the same object as
    before; equal JSON texts share one object. Do not modify what `read` returns."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._id_at = self._columns.index("id")
        self._decoders = [(name, decoder) for name in columns if (decoder := decoder_of(name)) is not None]
        self._query: tuple[str, Any] | None = None
        self._known: dict[Any, tuple[tuple[Any, ...], Row]] = {}

    def read(self, jobs: Callable[[], QuerySet[Job]]) -> list[Row]:
        """Return the columns of these jobs, in their order. Drops cached rows of other jobs. The first call compiles
        the query, which must be the same one in every call."""
        if self._query is None:
            self._query = jobs().values_list(*self._columns).query.sql_with_params()
        with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
            cursor.execute(*self._query)
            found = cursor.fetchall()
        known, at, decoded = self._known, self._id_at, _Decoded()
        self._known = {}
        rows = []
        for raw in found:
            before = known.get(raw[at])
            if before is None or before[0] != raw:
                before = raw, self._decode(raw, decoded)
            self._known[raw[at]] = before
            rows.append(before[1])
        return rows

    def _decode(self, raw: tuple[Any, ...], decoded: "_Decoded") -> Row:
        row = dict(zip(self._columns, raw, strict=True))
        row["id"] = plain_id(row["id"])
        for name, decoder in self._decoders:
            row[name] = decoded[row[name]] if decoder is orjson.loads else decoder(row[name])
        return row


class _Decoded(dict[Any, Any]):
    """Decoded JSON by its text: thousands of jobs may have the same hold reason."""

    def __missing__(self, text: Any) -> Any:
        value = self[text] = orjson.loads(text)
        return value
