"""Read rows of jobs repeatedly, decoding only those that changed; on PostgreSQL also fetching only those.

PostgreSQL keeps in each row the id of the transaction that wrote it (`xmin`). A transaction whose rows a read did not
see had not ended by then, so its id is at least that of the oldest one that was running (`pg_snapshot_xmin`). The next
read asks for rows with such ids, and for the number of all rows, which shows whether some have left. Reading 100,000
rows takes seconds; this takes a scan in the server. Ids of different servers do not compare: after a failover, a
restore or a crash of the server, an id may stand for another transaction.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import BooleanField, QuerySet
from django.db.models.expressions import RawSQL

from jobs.models import Job
from jobs.queries import decoder_of, plain_id

Row = Mapping[str, Any]
_Entry: TypeAlias = tuple[tuple[Any, ...], Row]
"""A row as the driver returned it, and decoded."""


class _Moment(NamedTuple):
    """Up to where a read saw the changes. `oldest`: the oldest transaction that was running, with its epoch; `server`:
    when the server was started, and when it last recovered from a crash."""

    oldest: str
    server: str


# After the crash of one of its processes a server recovers without a new start time. It uses ids of transactions that
# left nothing in its log again, such as those that were rolled back; and it resets its statistics.
SERVER = "concat(pg_postmaster_start_time(), ' ', pg_stat_get_bgwriter_stat_reset_time())"
_NOW = f"pg_snapshot_xmin(pg_current_snapshot())::text, {SERVER}"
# Stands for the transaction id in the compiled query. `xmin` has no epoch; `age` compares such ids correctly when they
# have wrapped around.
_SINCE = "since"
_IS_CHANGED = RawSQL("age(jobs_job.xmin) <= age(%s::xid8::xid)", (_SINCE,), output_field=BooleanField())


class RowCache:
    """Rows in the form of `queries.plain_rows`, cached between reads. An unchanged row is the same object as
    before; equal JSON texts share one object. Do not modify what `read` returns.

    `columns` must contain "id" and "submit_rank". `changed`: the ids of the jobs that appeared, changed or left
    with the last read; None if any may have.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.changed: frozenset[str] | None = None
        self._columns = tuple(columns)
        self._id_at, self._rank_at = self._columns.index("id"), self._columns.index("submit_rank")
        self._decoders = [(name, decoder) for name in columns if (decoder := decoder_of(name)) is not None]
        self._queries: _Queries | None = None
        self._since: _Moment | None = None
        self._known: dict[Any, _Entry] = {}
        self._rows: list[Row] = []

    @property
    def server(self) -> str | None:
        """The server of the last read: another text after a restart, a failover or a restore; None if unknown."""
        return None if self._since is None else self._since.server

    def read(self, jobs: Callable[[], QuerySet[Job]]) -> list[Row]:
        """Return the columns of these jobs, in the order of submit_rank. Drops cached rows of other jobs. The first
        call compiles the query, which must be the same one in every call."""
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
        self._rows = [row for _, row in self._known.values()]
        self.changed, self._since = None, since

    def _read_changes(self, queries: "_Queries", since: _Moment) -> bool:
        """Read what changed since then. Return False, with nothing changed, if all must be read."""
        count, following, found = queries.rows_since(since)
        if following.server != since.server or int(following.oldest) < int(since.oldest):
            # Another server, or one that lost transactions in a crash, counts on from other ids.
            return False
        noted = self._noted(sorted(found, key=lambda raw: int(raw[self._rank_at])))
        news = {key: entry for key, entry in noted.items() if self._known.get(key) is not entry}
        expected = len(self._known) + sum(key not in self._known for key in news)
        left: frozenset[Any] = frozenset()
        if count != expected:
            ranks = queries.ranks()
            left = frozenset(key for key, (raw, _) in self._known.items() if raw[self._rank_at] not in ranks)
            if count != expected - len(left):
                return False
        self.changed = frozenset(
            row["id"] for _, row in (*news.values(), *(self._known[key] for key in left))
        )
        if self.changed:
            self._replace(news, left)
        self._since = following
        return True

    def _replace(self, news: Mapping[Any, _Entry], left: frozenset[Any]) -> None:
        """Put changed rows, sorted by rank, in the place of the former ones; new ones usually go to the end."""
        known, at = self._known, self._rank_at
        for key in left:
            del known[key]
        last, is_sorted = (next(reversed(known.values()))[0][at] if known else -1), True
        for key, entry in news.items():
            rank, before = entry[0][at], known.get(key)
            is_sorted &= rank == before[0][at] if before is not None else rank > last
            last = max(last, rank)
            known[key] = entry
        if not is_sorted:
            self._known = dict(sorted(known.items(), key=lambda item: int(item[1][0][at])))
        self._rows = [row for _, row in self._known.values()]

    def _noted(self, found: Sequence[tuple[Any, ...]]) -> dict[Any, _Entry]:
        """Return the rows by key; what is known already is the same entry as before."""
        decoded, noted = _Decoded(), dict[Any, _Entry]()
        for raw in found:
            key = _key(raw[self._id_at])
            before = self._known.get(key)
            if before is None or before[0] != raw:
                before = raw, self._decode(raw, decoded)
            noted[key] = before
        return noted

    def _decode(self, raw: tuple[Any, ...], decoded: "_Decoded") -> Row:
        row = dict(zip(self._columns, raw, strict=True))
        row["id"] = plain_id(row["id"])
        for name, decoder in self._decoders:
            row[name] = decoded[row[name]] if decoder is orjson.loads else decoder(row[name])
        return row


class _Queries:
    """The compiled statements of one queryset."""

    def __init__(self, jobs: QuerySet[Job], columns: Sequence[str]) -> None:
        self._id_at = list(columns).index("id")
        self._all = jobs.values_list(*columns).query.sql_with_params()
        self._ranks = jobs.order_by().values_list("submit_rank").query.sql_with_params()
        changed, of_changed = (
            jobs.order_by().filter(_IS_CHANGED).values_list(*columns).query.sql_with_params()
        )
        # One statement, and so one view of the table: the number and the rows belong together.
        counted = f"SELECT {_NOW}, count(*) FROM ({self._ranks[0]}) AS ranks"  # noqa: S608  # Django's own
        self._since = (
            f"SELECT counted.*, changed.* FROM ({counted}) AS counted LEFT JOIN ({changed}) AS changed ON TRUE",  # noqa: S608  # Django's own
            (*self._ranks[1], *of_changed),
        )

    def moment(self) -> _Moment | None:
        """Return the present moment; None on databases that keep no transaction ids in their rows."""
        if connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
            return None
        [now] = _fetch(f"SELECT {_NOW}", ())
        return _Moment(*now)

    def all_rows(self) -> list[tuple[Any, ...]]:
        return _fetch(*self._all)

    def rows_since(self, since: _Moment) -> tuple[int, _Moment, list[tuple[Any, ...]]]:
        """Return the number of all rows, the moment to ask for next time, and the rows written since."""
        sql, parameters = self._since
        found = _fetch(sql, tuple(since.oldest if one is _SINCE else one for one in parameters))
        oldest, server, count, *_ = found[0]
        # Without changed rows there is one row, with nothing on the right side of the join.
        rows = [one[3:] for one in found if one[3 + self._id_at] is not None]
        return count, _Moment(oldest, server), rows

    def ranks(self) -> frozenset[int]:
        return frozenset(rank for (rank,) in _fetch(*self._ranks))


def _key(value: uuid.UUID | str) -> int | str:
    """Return a dictionary's key for an id in the driver's form. A UUID computes its hash in Python, an int does not."""
    return value.int if isinstance(value, uuid.UUID) else value


def _fetch(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(sql, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


class _Decoded(dict[Any, Any]):
    """Decoded JSON by its text: thousands of jobs may have the same hold reason."""

    def __missing__(self, text: Any) -> Any:
        value = self[text] = orjson.loads(text)
        return value
