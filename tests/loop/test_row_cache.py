"""Rows of jobs that are read again and again: what changed, what stays the same object, who has left."""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from django.db import connection, transaction
from django.utils import timezone

from controlplane.models import Project
from jobs.change_list import forget_changes
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job
from jobs.row_cache import RowCache, _Queries
from tests.builders import make_counters, make_job, make_project
from tests.loop.random_sessions import RandomSession, check_while_they_write, empty_change_list
from tests.waiting import wait_until

T = TypeVar("T")
COLUMNS = ("id", "name", "submit_rank", "state", "details")
on_postgres = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="SQLite has no ids of transactions; there all rows are read."
)
pytestmark = pytest.mark.django_db(transaction=True)


def queued(cache: RowCache) -> list[Any]:
    cache.read(lambda: Job.objects.filter(state=QUEUED).order_by("submit_rank"))
    return list(cache.rows)


def names(rows: Sequence[Any]) -> list[str]:
    return [row["name"] for row in rows]


def in_thread(work: Callable[[], T]) -> T:
    """Do something on a connection of its own, which is closed."""

    def closing() -> T:
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(closing).result()


@pytest.fixture
def cache() -> RowCache:
    """A cache that has read three queued jobs, a, b and c."""
    if connection.vendor == "postgresql":
        # The emptying of tables between tests is listed, and stands for all jobs as long as any transaction of the
        # server, such as an autovacuum, has run since before it.
        empty_change_list()
    make_counters()
    project = make_project()
    for name in "abc":
        make_job(project, name)
    cache = RowCache(COLUMNS)
    assert names(queued(cache)) == ["a", "b", "c"]
    return cache


def test_unchanged_rows_are_the_same_objects(cache: RowCache):
    before = list(queued(cache))
    Job.objects.filter(name="b").update(details={"ahead": 1})
    after = queued(cache)
    assert [now is then for now, then in zip(after, before, strict=True)] == [True, False, True]
    assert after[1]["details"] == {"ahead": 1}


def test_jobs_that_left_are_dropped_and_new_ones_added(cache: RowCache):
    Job.objects.filter(name="a").update(state="stopped")
    assert names(queued(cache)) == ["b", "c"]
    make_job(Project.objects.get(), "d")
    assert names(queued(cache)) == ["b", "c", "d"]
    Job.objects.filter(name="b").delete()
    Job.objects.filter(name="a").update(state="queued")
    assert names(queued(cache)) == ["a", "c", "d"]


def test_a_job_that_leaves_while_another_arrives(cache: RowCache):
    with transaction.atomic():
        Job.objects.filter(name="b").update(state="stopped")
        make_job(Project.objects.get(), "d")
    assert names(queued(cache)) == ["a", "c", "d"]


def test_a_changed_rank_changes_the_order(cache: RowCache):
    last = Job.objects.get(name="c").submit_rank
    Job.objects.filter(name="a").update(submit_rank=last + 1)
    assert names(queued(cache)) == ["b", "c", "a"]


def test_jobs_of_the_same_rank(cache: RowCache):
    rank = Job.objects.get(name="c").submit_rank
    Job.objects.filter(name="b").update(submit_rank=rank)
    assert sorted(names(queued(cache))) == ["a", "b", "c"]
    Job.objects.filter(name="b").update(state="stopped")
    assert names(queued(cache)) == ["a", "c"]


@on_postgres
def test_only_changed_rows_are_fetched(cache: RowCache):
    assert names(queued(cache)) == ["a", "b", "c"]
    assert cache.changed == frozenset()
    changed = Job.objects.get(name="b")
    Job.objects.filter(pk=changed.pk).update(details={"ahead": 1})
    queued(cache)
    assert cache.changed == {str(changed.pk)}


@on_postgres
def test_a_transaction_that_commits_late_is_seen(cache: RowCache):
    """It began before a read, and commits after later transactions were read."""
    with transaction.atomic():
        Job.objects.filter(name="a").update(details={"late": True})
        with transaction.atomic():
            Job.objects.filter(name="b").update(details={"late": True})
        in_thread(lambda: Job.objects.filter(name="c").update(details={"early": True}))
        seen = in_thread(lambda: list(queued(cache)))
        assert [row["details"] for row in seen] == [{}, {}, {"early": True}]
        in_thread(lambda: queued(cache))
    assert [row["details"] for row in queued(cache)] == [{"late": True}, {"late": True}, {"early": True}]


@on_postgres
def test_a_database_that_counts_its_transactions_anew_is_read_whole(cache: RowCache):
    Job.objects.filter(name="a").update(details={"restored": True})
    assert cache._since is not None
    cache._since = cache._since._replace(oldest=cache._since.oldest + 5_000_000_000)
    assert queued(cache)[0]["details"] == {"restored": True}
    assert cache.changed is None
    queued(cache)
    assert cache.changed == frozenset()


@on_postgres
def test_a_server_whose_transactions_have_passed_the_last_read_is_read_whole(cache: RowCache):
    """After a failover that lost transactions, their ids are used again before the first read."""
    Job.objects.filter(name="a").update(details={"restored": True})
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        [(now,)] = cursor.fetchall()
    assert cache._since is not None
    cache._since = cache._since._replace(oldest=now, server="the former one")
    assert queued(cache)[0]["details"] == {"restored": True}
    assert cache.changed is None


@on_postgres
def test_a_job_with_pods_that_ends_while_another_goes_back_to_the_queue(cache: RowCache):
    Job.objects.filter(name="a").update(state="running")
    Job.objects.filter(name="b").update(state="stopping")
    unfinished = _unfinished_cache()
    Job.objects.filter(name="a").update(state="succeeded")
    Job.objects.filter(name="b").update(state="queued")
    unfinished.read(_unfinished)
    assert names(list(unfinished.rows)) == ["b", "c"]
    gone = Job.objects.get(name="a")
    assert unfinished.changed is not None
    assert str(gone.pk) in unfinished.changed


@on_postgres
def test_a_job_that_leaves_between_the_two_statements_of_a_read(
    cache: RowCache, monkeypatch: pytest.MonkeyPatch
):
    """It is counted, and not found any more; the next read does not count it."""
    Job.objects.filter(name="b").update(details={"ahead": 1})
    with monkeypatch.context() as during:
        during.setattr("jobs.row_cache._Queries.rows", _stops_b_first())
        assert names(queued(cache)) == ["a", "c"]
    assert names(queued(cache)) == ["a", "c"]
    assert cache.changed == frozenset()


@on_postgres
def test_a_job_that_comes_and_leaves_between_the_two_statements_of_a_read(
    cache: RowCache, monkeypatch: pytest.MonkeyPatch
):
    Job.objects.filter(name="b").delete()
    make_job(Project.objects.get(), "b")
    with monkeypatch.context() as during:
        during.setattr("jobs.row_cache._Queries.rows", _stops_b_first())
        assert names(queued(cache)) == ["a", "c"]
    assert names(queued(cache)) == ["a", "c"]
    assert cache.changed == frozenset()


@on_postgres
def test_a_read_that_needs_deleted_entries_reads_all_rows(cache: RowCache, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobs.change_list.LISTED_SECONDS", -1)

    def reads_nothing() -> bool:
        return queued(cache) is not None and cache.changed == frozenset()

    def reads_all() -> bool:
        Job.objects.filter(name="a").update(details={"ahead": 1})
        forget_changes(timezone.now())
        assert queued(cache)[0]["details"] == {"ahead": 1}
        return cache.changed is None

    forget_changes(timezone.now())
    # Another transaction of the server, such as an autovacuum, delays the deletion and all that follows from it.
    wait_until(reads_nothing, what="a read that needs none of the deleted entries")
    wait_until(reads_all, what="a read of all rows")
    wait_until(reads_nothing, what="a read of no row")


@on_postgres
def test_what_a_running_transaction_may_hide_stays_listed(cache: RowCache, monkeypatch: pytest.MonkeyPatch):
    """Else each read would read all rows until that transaction ends."""
    monkeypatch.setattr("jobs.change_list.LISTED_SECONDS", -1)
    with transaction.atomic():
        Job.objects.filter(name="a").update(details={"late": True})
        in_thread(lambda: queued(cache))
        in_thread(lambda: Job.objects.filter(name="b").update(details={"early": True}))
        in_thread(lambda: forget_changes(timezone.now()))
        seen = in_thread(lambda: list(queued(cache)))
        assert [row["details"] for row in seen] == [{}, {"early": True}, {}]
        assert cache.changed is not None


@on_postgres
def test_emptied_tables_are_seen(cache: RowCache):
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs_job CASCADE")
    assert queued(cache) == []


@on_postgres
def test_changes_without_triggers_are_seen(cache: RowCache):
    """A restore of data disables them, and enables them when it is done."""
    statements = (
        "ALTER TABLE jobs_job DISABLE TRIGGER job_listed_update",
        "UPDATE jobs_job SET details = '{\"restored\": true}'",
        "ALTER TABLE jobs_job ENABLE ALWAYS TRIGGER job_listed_update",
    )
    for statement in statements:
        with connection.cursor() as cursor:
            cursor.execute(statement)
        if "DISABLE" in statement:
            queued(cache)
    assert [row["details"] for row in queued(cache)] == [{"restored": True}] * 3
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.replace("restored", "again"))
    assert [row["details"] for row in queued(cache)] == [{"again": True}] * 3
    queued(cache)
    assert cache.changed == frozenset()


@on_postgres
@pytest.mark.parametrize("seed", range(8))
def test_no_change_of_any_transaction_is_missed(cache: RowCache, seed: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jobs.change_list.LISTED_SECONDS", -1)
    draw = random.Random(seed)
    sessions = [JobSession(name, draw) for name in "abc"]
    check_while_they_write(sessions, draw, 60, lambda: assert_equals_a_fresh_read(cache))


def assert_equals_a_fresh_read(cache: RowCache) -> None:
    """Several jobs may have one rank, and so either order."""
    found, fresh = queued(cache), queued(RowCache(COLUMNS))
    assert {row["id"]: row for row in found} == {row["id"]: row for row in fresh}
    assert [row["submit_rank"] for row in found] == [row["submit_rank"] for row in fresh]


class JobSession(RandomSession):
    """Changes jobs, in parts of transactions too."""

    def changes(self) -> tuple[str, ...]:
        mine = f"WHERE name LIKE '{self.letter}%'"
        some = f"id IN (SELECT id FROM jobs_job {mine} ORDER BY random() LIMIT 2)"
        columns = ", ".join(field.column for field in Job._meta.concrete_fields)
        new = columns.replace("id,", "gen_random_uuid(),", 1).replace(
            "name", f"'{self.letter}' || random()", 1
        )
        new = new.replace("submit_rank", str(self.draw.randrange(9)))
        undone = f"SAVEPOINT one; DELETE FROM jobs_job {mine}; ROLLBACK TO one"
        return (
            f"UPDATE jobs_job SET details = jsonb_build_object('n', random()) WHERE {some}",
            f"UPDATE jobs_job SET submit_rank = {self.draw.randrange(9)} WHERE {some}",
            f"UPDATE jobs_job SET state = 'stopped' WHERE {some}",
            f"UPDATE jobs_job SET state = 'queued' WHERE {some}",
            f"DELETE FROM jobs_job WHERE {some}",
            f"INSERT INTO jobs_job ({columns}) SELECT {new} FROM jobs_job {mine} LIMIT 1",
            undone if self.is_open else "SELECT 1",
        )


def _unfinished() -> Any:
    return Job.objects.filter(state__in=(QUEUED, *ACTIVE_STATES)).order_by("submit_rank")


def _unfinished_cache() -> RowCache:
    cache = RowCache(COLUMNS)
    cache.read(_unfinished)
    return cache


def _stops_b_first() -> Callable[..., Any]:
    rows = _Queries.rows

    def read(queries: _Queries, keys: Sequence[Any]) -> Any:
        Job.objects.filter(name="b").update(state="stopped")
        return rows(queries, keys)

    return read
