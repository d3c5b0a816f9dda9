"""Read rows of jobs repeatedly, decoding only those that changed; on PostgreSQL also fetching only those.

There, triggers list the changed jobs of each transaction in the table jobs_change (migration 0007), with its id. Each
read notes the oldest transaction that is still running (`pg_snapshot_xmin`): every change that the read cannot see is
listed with that id or a higher one. The next read fetches the keys that are listed so. A key without a row now has
left. Reading 100,000 rows takes seconds, and a scan of them that fetches nothing a tenth of a second.

Transaction ids are comparable only on one server: after a failover, a restore or a crash an id may be used again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from jobs.models import Job
from jobs.queries import decoder_of, plain_id

T = TypeVar("T")
Row = Mapping[str, Any]
_Entry: TypeAlias = tuple[tuple[Any, ...], Row]
"""A row as the driver returned it, and decoded."""
_ROW = itemgetter(1)


class _Moment(NamedTuple):
    """The point up to which a read saw all changes. `oldest`: id of the oldest transaction that was running, with its
    epoch; `server`: when the server started, when it last recovered from a crash, and the triggers as they were made
    or enabled last; None while changes are not listed."""

    oldest: int
    server: str | None


# After the crash of one of its processes a server recovers without a new start time. It uses ids of transactions that
# left nothing in its log again, such as those that were rolled back; and it resets its statistics.
SERVER = "concat(pg_postmaster_start_time(), ' ', pg_stat_get_bgwriter_stat_reset_time())"
# A restore makes the triggers anew, or disables them meanwhile; both change their rows. Without all of them the text is
# NULL.
_LISTING = """(
    SELECT CASE count(*) WHEN 4 THEN string_agg(concat(' ', oid, '/', xmin), '' ORDER BY oid) END
    FROM pg_trigger
    WHERE tgrelid = 'jobs_job'::regclass AND starts_with(tgname, 'job_listed_') AND tgenabled = 'A'
)"""
_OLDEST = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NOW = f"SELECT {_OLDEST}, {SERVER} || {_LISTING}"
_CHANGED = f"{_NOW}, (SELECT array_agg(DISTINCT job) FROM jobs_change WHERE xid >= %s)"  # noqa: S608  # constants
# How long a change stays listed; a loop reads several times a minute. A read that may need older ones reads all rows.
LISTED_SECONDS = 300
# Keeps what later reads need because of a transaction that still runs. The entry without a job stands for the deleted
# ones; it has their highest id, so that each read that may need one of them finds it.
_FORGET = f"""
WITH gone AS (
    DELETE FROM jobs_change
    WHERE at < statement_timestamp() - make_interval(secs => %s) AND xid < {_OLDEST} RETURNING xid
) INSERT INTO jobs_change (xid, job) SELECT max(xid), NULL FROM gone HAVING count(*) > 0
"""  # noqa: S608  # constants
# Stands for the keys in the query of some rows.
_KEYS = "keys"


def forget_changes(_now: datetime) -> None:
    """Delete from the list of changes those that are older than LISTED_SECONDS and that all current reads have seen.
    Does nothing on SQLite, which has no list."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(_FORGET, [LISTED_SECONDS])


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
        self._since: _Moment | None = None
        self._known: dict[str, _Entry] = {}

    @property
    def rows(self) -> Iterator[Row]:
        """Return the rows as the last read found them, in the order of submit_rank."""
        return map(_ROW, self._known.values())

    @property
    def server(self) -> str | None:
        """Return a text that identifies the database server of the last read and differs after a restart,
        failover or restore; None if it is unknown."""
        return None if self._since is None else self._since.server

    def row_of(self, job: str) -> Row | None:
        """Return a job's row as the last read found it; None if it has none."""
        entry = self._known.get(job)
        return None if entry is None else entry[1]

    def read(self, jobs: Callable[[], QuerySet[Job]]) -> None:
        """Read the columns of these jobs into `rows`, and set `changed`. Drops cached rows of other jobs. Only the
        first call evaluates `jobs`; pass an equal query each time."""
        if self._queries is None:
            self._queries = _Queries(jobs(), self._columns)
        if (
            self._since is None
            or self._since.server is None
            or not self._read_changes(self._queries, self._since)
        ):
            self._read_all(self._queries)

    def _read_all(self, queries: "_Queries") -> None:
        # Asked first: what commits between the two statements is read again by the next call.
        since = queries.moment()
        found = queries.all_rows()
        self._known = self._noted(found)
        self.changed, self._since = None, since

    def _read_changes(self, queries: "_Queries", since: _Moment) -> bool:
        """Read the rows that changed after `since`. Return False, without any effect, if all rows must be read
        again."""
        following, changed = queries.changed_since(since)
        if changed is None or following.server != since.server or following.oldest < since.oldest:
            # Another server, or one that lost transactions in a crash, counts on from other ids.
            return False
        # Read after the keys: these rows may be newer, or have left. The next read sees what has changed since.
        found = self._noted(queries.rows(changed)) if changed else {}
        left = (self._known.keys() & map(plain_id, changed)) - found.keys()
        news = {key: entry for key, entry in found.items() if self._known.get(key) is not entry}
        self.changed = frozenset((*news, *left))
        if self.changed:
            self._known = updated_in_order(self._known, news, left, self._rank_of)
        self._since = following
        return True

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
        jobs = jobs.order_by()
        some = jobs.filter(pk__in=RawSQL("SELECT unnest(%s::uuid[])", (_KEYS,)))
        self._some = some.values_list(*columns).query.sql_with_params()

    def moment(self) -> _Moment | None:
        """Return the position from which the next read looks for changes; None on databases other than PostgreSQL."""
        if connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
            return None
        [now] = _fetch(_NOW, ())
        return _Moment(*now)

    def all_rows(self) -> list[tuple[Any, ...]]:
        return _fetch(*self._all)

    def changed_since(self, since: _Moment) -> tuple[_Moment, list[str] | None]:
        """Return the position for the next read, and the keys of the jobs that changed after `since`, of any queryset;
        None if the list does not contain all of them."""
        [(*following, keys)] = _fetch(_CHANGED, [since.oldest])
        changed: list[str] = keys or []
        return _Moment(*following), None if None in changed else changed

    def rows(self, keys: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the rows with these keys; omits jobs that are no longer in the queryset."""
        sql, parameters = self._some
        return _fetch(sql, _with(parameters, _KEYS, list(keys)))


def _with(parameters: Sequence[Any], placeholder: str, value: Any) -> tuple[Any, ...]:
    return tuple(value if one is placeholder else one for one in parameters)


def _fetch(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    connection = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # Imported here, since SQLite needs no driver of PostgreSQL.
            from psycopg.types.datetime import TimestamptzLoader
            from psycopg.types.string import TextLoader

            # The driver's own loader, which is written in C. Django's parses each time in Python.
            cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
            # The ids are used as text.
            cursor.adapters.register_loader("uuid", TextLoader)
        cursor.execute(sql, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


class _Decoded(dict[Any, Any]):
    """Decoded JSON by its text: thousands of jobs may have the same hold reason."""

    def __missing__(self, text: Any) -> Any:
        value = self[text] = orjson.loads(text)
        return value
