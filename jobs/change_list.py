"""The list of changed jobs, which triggers keep on PostgreSQL: the table jobs_change (migrations 0007 and 0008).

The entries of a transaction have its id. Each read notes the oldest transaction that is still running
(`pg_snapshot_xmin`): every change that the read cannot see is listed with that id or a higher one. The next read
fetches the jobs that are listed so. Transaction ids are comparable only on one server: after a failover, a restore or
a crash an id may be used again.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models.expressions import RawSQL


class Moment(NamedTuple):
    """The point up to which a read saw all changes. `oldest`: id of the oldest transaction that was running, with its
    epoch; `server`: when the server started, when it last recovered from a crash, and the triggers as they were made
    or enabled last; None while changes are not listed."""

    oldest: int
    server: str | None


class Changed(Enum):
    """What of a job changed. The value is the condition on an entry of the list."""

    ROW = "NOT is_pod"
    PODS = "is_pod"
    ROW_OR_PODS = "true"


# After the crash of one of its processes a server recovers without a new start time. It uses ids of transactions that
# left nothing in its log again, such as those that were rolled back; and it resets its statistics.
SERVER = "concat(pg_postmaster_start_time(), ' ', pg_stat_get_bgwriter_stat_reset_time())"
# A restore makes the triggers anew, or disables them meanwhile; both change their rows. Without all of them the text is
# NULL.
_LISTING = """(
    SELECT CASE count(*) WHEN 8 THEN string_agg(concat(' ', oid, '/', xmin), '' ORDER BY oid) END
    FROM pg_trigger
    WHERE tgrelid IN ('jobs_job'::regclass, 'jobs_pod'::regclass)
      AND (starts_with(tgname, 'job_listed_') OR starts_with(tgname, 'pod_listed_')) AND tgenabled = 'A'
)"""
_OLDEST = "pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
_NOW = f"SELECT {_OLDEST}, {SERVER} || {_LISTING}"
_CHANGED = {
    what: f"""{_NOW}, (
        SELECT array_agg(DISTINCT job) FROM jobs_change WHERE xid >= %s AND (job IS NULL OR {what.value})
    )"""  # noqa: S608  # constants
    for what in Changed
}
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


def forget_changes(_now: datetime) -> None:
    """Delete from the list of changes those that are older than LISTED_SECONDS and that all current reads have seen.
    Does nothing on SQLite, which has no list."""
    connection = connections[DEFAULT_DB_ALIAS]
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(_FORGET, [LISTED_SECONDS])


def changes_since(since: Moment | None, what: Changed) -> tuple[Moment | None, list[str] | None]:
    """Return the position for the next call, and the ids of the jobs that changed after `since` (None: never read);
    None instead of the ids if any job may have changed. Read the rows after this call: they may be newer, or gone, and
    the next call lists what has changed since. On databases other than PostgreSQL both are None."""
    if connections[DEFAULT_DB_ALIAS].vendor != "postgresql":
        return None, None
    if since is None or since.server is None:
        [now] = fetch(_NOW, ())
        return Moment(*now), None
    [(oldest, server, jobs)] = fetch(_CHANGED[what], [since.oldest])
    following, listed = Moment(oldest, server), list[Any](jobs or ())
    # Another server, or one that lost transactions in a crash, counts on from other ids.
    is_comparable = following.server == since.server and following.oldest >= since.oldest
    return following, listed if is_comparable and None not in listed else None


def is_same_server(one: Moment | None, other: Moment | None) -> bool:
    """Return whether no failover, crash or restore lies between two moments. True on databases other than
    PostgreSQL."""
    if one is None or other is None:
        return one is other
    return one.server is not None and one.server == other.server


def among(jobs: Any) -> RawSQL:
    """Return the right side of a filter for jobs in a PostgreSQL array, such as the argument of a prepared query that
    gets the text of `array_of`."""
    return RawSQL("SELECT unnest(%s::uuid[])", (jobs,))


def array_of(jobs: Iterable[object]) -> str:
    """Return these ids as the text of a PostgreSQL array."""
    return f"{{{','.join(map(str, jobs))}}}"


def fetch(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Execute a query. Return its rows with ids as text and, on PostgreSQL, times with a zone."""
    connection = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # Imported here, since SQLite needs no driver of PostgreSQL.
            from psycopg.types.datetime import TimestamptzLoader
            from psycopg.types.string import TextLoader

            # The driver's own loader, which is written in C. Django's parses each time in Python.
            cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
            # The ids are used as text, so they are not parsed into UUIDs first.
            cursor.adapters.register_loader("uuid", TextLoader)
        cursor.execute(sql, parameters)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found
