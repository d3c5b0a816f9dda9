"""Read rows of jobs repeatedly, decoding only those that changed; on PostgreSQL also fetching only those.

Reading 100,000 rows takes seconds, and a scan of them that fetches nothing a tenth of a second.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias, TypeVar

import orjson
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import QuerySet

from jobs.change_list import Changed, Moment, among, changes_since, fetch
from jobs.models import Job
from jobs.queries import decoder_of, plain_id

T = TypeVar("T")
Row = Mapping[str, Any]
_Entry: TypeAlias = tuple[tuple[Any, ...], Row]
"""A row as the driver returned it, and decoded."""
_ROW = itemgetter(1)


# Stands for the keys in the query of some rows.
_KEYS = "keys"


class RowCache:
    """Rows in the form of `queries.plain_rows`, cached between reads. An unchanged row is the same object as
    before; equal JSON texts share one object. Do not modify the rows.

    `columns` must contain "id" and "submit_rank". `changed`: the ids of the jobs that appeared, changed or
    left with the last read; None if any may have.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.changed: frozenset[str] | None = None
        self._columns = tuple(columns)
        self._id_at, self._rank_at = map(self._columns.index, ("id", "submit_rank"))
        decoders = {name: decoder for name in columns if (decoder := decoder_of(name)) is not None}
        self._json = [name for name, decoder in decoders.items() if decoder is orjson.loads]
        # PostgreSQL's driver returns times with a zone.
        is_decoded = connections[DEFAULT_DB_ALIAS].vendor == "postgresql"
        self._times = [] if is_decoded else [(name, decoders[name]) for name in decoders.keys() - self._json]
        self._queries: _Queries | None = None
        self._since: Moment | None = None
        self._known: dict[str, _Entry] = {}

    @property
    def rows(self) -> Iterator[Row]:
        """Return the rows as the last read found them, in the order of submit_rank."""
        return map(_ROW, self._known.values())

    def row_of(self, job: str) -> Row | None:
        """Return a job's row as the last read found it; None if it has none."""
        entry = self._known.get(job)
        return None if entry is None else entry[1]

    def read(self, jobs: Callable[[], QuerySet[Job]]) -> None:
        """Read the columns of these jobs into `rows`, and set `changed`. Drops cached rows of other jobs. Only the
        first call evaluates `jobs`; pass an equal query each time."""
        if self._queries is None:
            self._queries = _Queries(jobs(), self._columns)
        following, changed = changes_since(self._since, Changed.ROW)
        if changed is None:
            self._known = self._noted(self._queries.all_rows())
            self.changed = None
        else:
            self._read_some(self._queries, changed)
        self._since = following

    def _read_some(self, queries: "_Queries", changed: Sequence[str]) -> None:
        found = self._noted(queries.rows(changed)) if changed else {}
        # A changed job without a row has left.
        left = (self._known.keys() & map(plain_id, changed)) - found.keys()
        news = {key: entry for key, entry in found.items() if self._known.get(key) is not entry}
        self.changed = frozenset((*news, *left))
        if self.changed:
            self._known = updated_in_order(self._known, news, left, self._rank_of)

    def _rank_of(self, entry: _Entry) -> int:
        return int(entry[0][self._rank_at])

    def _noted(self, found: Sequence[tuple[Any, ...]]) -> dict[str, _Entry]:
        """Return the rows by job id. An unchanged row keeps its cached entry."""
        decoded, noted = _Decoded(), dict[str, _Entry]()
        for raw in found:
            key = plain_id(raw[self._id_at])
            before = self._known.get(key)
            if before is None or before[0] != raw:
                before = raw, self._decode(raw, key, decoded)
            noted[key] = before
        return noted

    def _decode(self, raw: tuple[Any, ...], key: str, decoded: "_Decoded") -> Row:
        row = dict(zip(self._columns, raw, strict=True))
        row["id"] = key
        for name in self._json:
            row[name] = decoded[row[name]]
        for name, decoder in self._times:
            row[name] = decoder(row[name])
        return row


def updated_in_order(
    known: dict[str, T], news: Mapping[str, T], left: Iterable[str], rank_of: Callable[[T], int]
) -> dict[str, T]:
    """Return `known`, which is sorted by rank, without the keys `left` and with the entries of `news` added or
    replaced. Modifies `known`; if entries must move, the result is another mapping. Fast if new entries have the
    highest ranks."""
    for key in left:
        del known[key]
    last, is_sorted = (rank_of(next(reversed(known.values()))) if known else -1), True
    for key, entry in sorted(news.items(), key=lambda item: rank_of(item[1])):
        rank, before = rank_of(entry), known.get(key)
        is_sorted &= rank == rank_of(before) if before is not None else rank > last
        last = max(last, rank)
        # In place: a copy of 100,000 entries takes milliseconds.
        known[key] = entry
    return known if is_sorted else dict(sorted(known.items(), key=lambda item: rank_of(item[1])))


class _Queries:
    """The compiled statements of one queryset."""

    def __init__(self, jobs: QuerySet[Job], columns: Sequence[str]) -> None:
        self._all = jobs.values_list(*columns).query.sql_with_params()
        some = jobs.order_by().filter(pk__in=among(_KEYS))
        self._some = some.values_list(*columns).query.sql_with_params()

    def all_rows(self) -> list[tuple[Any, ...]]:
        return fetch(*self._all)

    def rows(self, keys: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows with these keys; omits jobs that are no longer in the queryset."""
        sql, parameters = self._some
        return fetch(sql, _with(parameters, _KEYS, list(keys)))


def _with(parameters: Sequence[Any], placeholder: str, value: Any) -> tuple[Any, ...]:
    return tuple(value if one is placeholder else one for one in parameters)


class _Decoded(dict[Any, Any]):
    """Decoded JSON by its text: thousands of jobs may have the same hold reason."""

    def __missing__(self, text: Any) -> Any:
        value = self[text] = orjson.loads(text)
        return value
