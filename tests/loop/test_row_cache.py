"""Rows of jobs that are read again and again: what changed, what stays the same object, who has left."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
from django.db import connection, transaction

from controlplane.models import Project
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.models import Job
from jobs.row_cache import RowCache, _Queries
from tests.builders import make_counters, make_job, make_project

T = TypeVar("T")
COLUMNS = ("id", "name", "submit_rank", "state", "details")
on_postgres = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="SQLite has no ids of transactions; there all rows are read."
)
pytestmark = pytest.mark.django_db(transaction=True)


def queued(cache: RowCache) -> list[Any]:
    return cache.read(lambda: Job.objects.filter(state=QUEUED).order_by("submit_rank"))


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
    cache._since = cache._since._replace(oldest=str(int(cache._since.oldest) + 5_000_000_000))
    assert queued(cache)[0]["details"] == {"restored": True}
    assert cache.changed is None
    queued(cache)
    assert cache.changed == frozenset()


@on_postgres
def test_a_server_whose_transactions_have_passed_the_last_read_is_read_whole(cache: RowCache):
    """After a failover that lost transactions, their ids are used again before the first read."""
    Job.objects.filter(name="a").update(details={"restored": True})
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
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
    assert names(unfinished.read(_unfinished)) == ["b", "c"]
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
def test_a_job_that_returns_to_the_queue_during_a_read_is_not_lost(
    cache: RowCache, monkeypatch: pytest.MonkeyPatch
):
    """Its rank is not among those of active jobs any more, while another job has left."""
    Job.objects.filter(name__in="ab").update(state="running")
    unfinished = _unfinished_cache()
    Job.objects.filter(name="a").update(state="succeeded")
    active_ranks = _Queries.active_ranks

    def requeued(queries: _Queries) -> frozenset[int]:
        Job.objects.filter(name="b").update(state="queued")
        return active_ranks(queries)

    monkeypatch.setattr(_Queries, "active_ranks", requeued)
    assert names(unfinished.read(_unfinished)) == ["b", "c"]


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
