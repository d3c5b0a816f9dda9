"""Read rows of jobs repeatedly, decoding only those that changed; on PostgreSQL also fetching only those.

PostgreSQL stores in each row the id of the transaction that wrote it (`xmin`). Each read notes the oldest transaction
that is still running (`pg_snapshot_xmin`): every write that the read cannot see has that id or a higher one. The next
read therefore fetches the keys of the rows with such ids, and the number of all rows, which shows whether some have
left. Reading 100,000 rows takes seconds; this takes one scan in the server.

Transaction ids are comparable only on one server: after a failover, a restore or a crash an id may be used again.
"""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL

from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job
from jobs.queries import decoder_of, plain_id

T = TypeVar("T")
Row = Mapping[str, Any]
_Entry: TypeAlias = tuple[tuple[Any, ...], Row]
"""A row as the driver returned it, and decoded."""
_ROW = itemgetter(1)


class _Moment(NamedTuple):
    """The point up to which a read saw all changes. `oldest`: id of the oldest transaction that was running, with its
    epoch; `server`: when the server started and when it last recovered from a crash."""

    oldest: str
    server: str


# After the crash of one of its processes a server recovers without a new start time. It uses ids of transactions that
# left nothing in its log again, such as those that were rolled back; and it resets its statistics.
SERVER = "concat(pg_postmaster_start_time(), ' ', pg_stat_get_bgwriter_stat_reset_time())"
_NOW = f"pg_snapshot_xmin(pg_current_snapshot())::text, {SERVER}"
# Stands for the transaction id in the compiled query. `xmin` has no epoch; `age` compares such ids correctly when they
# have wrapped around.
_SINCE = "since"
# Stands for the keys in the query of some rows.
_KEYS = "keys"
_IS_CHANGED = RawSQL("age(jobs_job.xmin) <= age(%s::xid8::xid)", (_SINCE,), output_field=BooleanField())


class RowCache:
    """Rows in the form of `queries.plain_rows`, cached between reads. An unchanged row is the same object as
    before; equal JSON texts share one object. Do not modify what `read` returns.

    `columns` must contain "id", "state" and "submit_rank". `changed`: the ids of the jobs that appeared, changed or
    left with the last read; None if any may have.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.changed: frozenset[str] | None = None
        self._columns = tuple(columns)
        self._id_at, self._state_at, self._rank_at = map(self._columns.index, ("id", "state", "submit_rank"))
        self._decoders = [(name, decoder) for name in columns if (decoder := decoder_of(name)) is not None]
        self._queries: _Queries | None = None
        self._since: _Moment | None = None
        self._known: dict[str, _Entry] = {}
        # The known jobs that are not queued: most jobs that leave the known ones are of these.
        self._active: set[str] = set()
        self._rows: list[Row] = []

    @property
    def server(self) -> str | None:
        """Return a text that identifies the database server of the last read and differs after a restart,
        failover or restore; None if it is unknown."""
        return None if self._since is None else self._since.server

    def row_of(self, job: str) -> Row | None:
        """Return a job's row as the last read found it; None if it has none."""
        entry = self._known.get(job)
        return None if entry is None else entry[1]

    def read(self, jobs: Callable[[], QuerySet[Job]]) -> list[Row]:
        """Return the columns of these jobs, in the order of submit_rank, and set `changed`. Drops cached rows of
        other jobs. Only the first call evaluates `jobs`; pass an equal query each time."""
        if self._queries is None:
            self._queries = _Queries(jobs(), self._columns)
        if self._since is None or not self._read_changes(self._queries, self._since):
            self._read_all(self._queries)
        return self._rows

    def _read_all(self, queries: "_Queries") -> None:
        # Asked first: what commits between the two statements is read again by the next call.
        since = queries.moment()
        found = queries.all_rows()
        self._known = self._noted(found)
        self._active = {key for key, entry in self._known.items() if self._is_active(entry)}
        self._rows = [*map(_ROW, self._known.values())]
        self.changed, self._since = None, since

    def _read_changes(self, queries: "_Queries", since: _Moment) -> bool:
        """Read the rows that changed after `since`. Return False, without any effect, if all rows must be read
        again."""
        count, following, changed = queries.changed_since(since)
        if following.server != since.server or int(following.oldest) < int(since.oldest):
            # Another server, or one that lost transactions in a crash, counts on from other ids.
            return False
        # Read after the keys: these rows may be newer, or have left. The next read sees what has changed since.
        found = self._noted(queries.rows(changed)) if changed else {}
        counted = frozenset(map(plain_id, changed))
        missing = len(self._known) + len(counted - self._known.keys()) - count
        left = (self._known.keys() & counted) - found.keys()
        if missing:
            gone = self._gone(queries, missing, counted)
            if len(gone) < missing or missing < 0:
                return False
            left |= gone
        news = {key: entry for key, entry in found.items() if self._known.get(key) is not entry}
        self.changed = frozenset((*news, *left))
        if self.changed:
            self._known = in_order(self._known, news, left, self._rank_of)
            self._active -= self.changed
            self._active |= {key for key, entry in news.items() if self._is_active(entry)}
            self._rows = [*map(_ROW, self._known.values())]
        self._since = following
        return True

    def _gone(self, queries: "_Queries", missing: int, counted: Set[str]) -> frozenset[str]:
        """Return the cached jobs that are no longer among the rows, except those in `counted`. Returns fewer than
        `missing` if ranks do not identify all of them. Checks jobs in active states first: most of those that leave
        were active, and ten times as many may be queued."""
        known, active, at = self._known, queries.active_ranks(), self._rank_at
        absent = {
            key: known[key][0][self._id_at]
            for key in self._active - counted
            if known[key][0][at] not in active
        }
        # Some may be queued again since.
        still = {plain_id(raw[self._id_at]) for raw in queries.rows([*absent.values()])} if absent else set()
        gone = absent.keys() - still
        if len(gone) < missing:
            ranks = queries.ranks()
            gone = {key for key, (raw, _) in known.items() if raw[at] not in ranks and key not in counted}
        return frozenset(gone)

    def _is_active(self, entry: _Entry) -> bool:
        return bool(entry[0][self._state_at] != QUEUED)

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
        for name, decoder in self._decoders:
            row[name] = decoded[row[name]] if decoder is orjson.loads else decoder(row[name])
        return row


def in_order(
    known: Mapping[str, T], news: Mapping[str, T], left: Iterable[str], rank_of: Callable[[T], int]
) -> dict[str, T]:
    """Return a copy of `known`, sorted by rank as before, without the keys `left` and with the entries of `news`
    added or replaced. Fast if new entries have the highest ranks."""
    result = dict(known)
    for key in left:
        del result[key]
    last, is_sorted = (rank_of(next(reversed(result.values()))) if result else -1), True
    for key, entry in sorted(news.items(), key=lambda item: rank_of(item[1])):
        rank, before = rank_of(entry), result.get(key)
        is_sorted &= rank == rank_of(before) if before is not None else rank > last
        last = max(last, rank)
        result[key] = entry
    return result if is_sorted else dict(sorted(result.items(), key=lambda item: rank_of(item[1])))


class _Queries:
    """The compiled statements of one queryset."""

    def __init__(self, jobs: QuerySet[Job], columns: Sequence[str]) -> None:
        self._all = jobs.values_list(*columns).query.sql_with_params()
        jobs = jobs.order_by()
        self._ranks = jobs.values_list("submit_rank").query.sql_with_params()
        self._active_ranks = (
            jobs.filter(state__in=ACTIVE_STATES).values_list("submit_rank").query.sql_with_params()
        )
        some = jobs.filter(pk__in=RawSQL("SELECT unnest(%s::uuid[])", (_KEYS,)))
        self._some = some.values_list(*columns).query.sql_with_params()
        changes, of_changes = jobs.values_list("pk", _IS_CHANGED).query.sql_with_params()
        # One scan, and so one view of the table: the number and the keys belong together.
        counted = f"{_NOW}, count(*), array_agg(id) FILTER (WHERE is_changed)"
        self._since = f"SELECT {counted} FROM ({changes}) AS jobs (id, is_changed)", of_changes  # noqa: S608  # Django's own

    def moment(self) -> _Moment | None:
        """Return the position from which the next read looks for changes; None on databases other than PostgreSQL."""
        if connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
            return None
        [now] = _fetch(f"SELECT {_NOW}", ())
        return _Moment(*now)

    def all_rows(self) -> list[tuple[Any, ...]]:
        return _fetch(*self._all)

    def changed_since(self, since: _Moment) -> tuple[int, _Moment, list[uuid.UUID]]:
        """Return the number of all rows, the position for the next read, and the keys of the rows written after
        `since`."""
        sql, parameters = self._since
        [(oldest, server, count, keys)] = _fetch(sql, _with(parameters, _SINCE, since.oldest))
        return count, _Moment(oldest, server), keys or []

    def rows(self, keys: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows with these keys; omits jobs that are no longer in the queryset."""
        sql, parameters = self._some
        return _fetch(sql, _with(parameters, _KEYS, list(keys)))

    def active_ranks(self) -> frozenset[int]:
        """Return the ranks of the jobs in an active state."""
        return frozenset(rank for (rank,) in _fetch(*self._active_ranks))

    def ranks(self) -> frozenset[int]:
        return frozenset(rank for (rank,) in _fetch(*self._ranks))


def _with(parameters: Sequence[Any], placeholder: str, value: Any) -> tuple[Any, ...]:
    return tuple(value if one is placeholder else one for one in parameters)


def _fetch(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    connection = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # Imported here, since SQLite needs no driver of PostgreSQL.
            from psycopg.types.datetime import TimestamptzLoader

            # The driver's own loader, which is written in C. Django's parses each time in Python.
            cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        cursor.execute(sql, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


class _Decoded(dict[Any, Any]):
    """Decoded JSON by its text: thousands of jobs may have the same hold reason."""

    def __missing__(self, text: Any) -> Any:
        value = self[text] = orjson.loads(text)
        return value
