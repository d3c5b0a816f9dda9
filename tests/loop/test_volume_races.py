"""Volumes for one job, which several processes want or write snapshots of at once."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pytest
from django.db import connection, transaction
from django.utils import timezone

from controlplane.loop.wake import listen, stop_listening
from datasets.actions.snapshot_events import snapshot_on_events
from datasets.models import Snapshot, Volume
from datasets.queries.volume_waits import waiting_jobs
from jobs.models import Job
from tests.builders import make_cluster, make_counters, make_job, make_project, make_user
from tests.volumes import make_volume
from tests.waiting import patience, wait_until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("own_volumes"),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite has one writer at a time"),
]
T = TypeVar("T")


@pytest.fixture
def project(transactional_db):
    make_counters()
    make_cluster()
    # There is no Redis here that carries wake-ups.
    listen(ignore)
    yield make_project()
    stop_listening(ignore)


def ignore() -> None:
    """Do nothing when the loop is woken."""


def jobs_of(project, *names: str, volumes: tuple[str, ...] = ("data",), snapshot_on: tuple[str, ...] = ()):
    mounts = [{"volume": volume, "mount_path": f"/{volume}"} for volume in volumes]
    user = make_user()
    return [make_job(project, name, user, volumes=mounts, snapshot_on=list(snapshot_on)) for name in names]


def succeed(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(state="succeeded", attempt=1, finished_at=timezone.now())


def start(job: Job) -> frozenset[str]:
    """Ask, as the loop does in the transaction that starts the job, whether it has to wait. Return the jobs that do."""
    with transaction.atomic():
        return waiting_jobs([job.pk])


def beside(pool: ThreadPoolExecutor, work: Callable[[], T], blocks: str) -> Future[T]:
    """Begin the work on another connection; return once it waits for a lock."""

    def run() -> T:
        try:
            return work()
        finally:
            connection.close()

    later = pool.submit(run)
    wait_until(lambda: later.done() or waits_for_lock(), what=blocks)
    return later


def waits_for_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_of_two_processes_that_start_jobs_of_a_volume_at_once_one_does(project):
    make_volume(project)
    first, second = jobs_of(project, "first", "second")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert waiting_jobs([first.pk]) == frozenset()
            later = beside(pool, lambda: start(second), "the second process")
            assert not later.done()
            Job.objects.filter(pk=first.pk).update(state="starting")
        assert later.result(patience(10)) == {str(second.pk)}


def test_processes_that_start_jobs_of_the_same_volumes_do_not_wait_for_each_other(project):
    low, high = sorted((make_volume(project, name) for name in ("a", "b")), key=lambda one: one.pk)
    [job] = jobs_of(project, "first", volumes=(high.name, low.name))
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Volume.objects.select_for_update(no_key=True).get(pk=low.pk)
            later = beside(pool, lambda: start(job), "the second process")
            Volume.objects.select_for_update(no_key=True, nowait=True).get(pk=high.pk)
        assert later.result(patience(10)) == frozenset()


def test_a_snapshot_that_is_written_while_a_job_would_start_keeps_it_waiting(project):
    """Between the questions of that start whether a snapshot is pending and whether one is due."""
    make_volume(project)
    [first] = jobs_of(project, "first", snapshot_on=("success",))
    [second] = jobs_of(project, "second")
    succeed(first)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            assert waiting_jobs([second.pk]) == {str(second.pk)}
            later = beside(pool, snapshot_on_events, "the step that writes snapshots")
            assert not later.done()
            assert waiting_jobs([second.pk]) == {str(second.pk)}
        later.result(patience(10))
    assert Snapshot.objects.get().state == "pending"
    assert start(second) == {str(second.pk)}


def test_a_volume_that_is_deleted_while_its_snapshot_is_written_keeps_no_other_from_being_written(project):
    gone, _ = make_volume(project, "gone"), make_volume(project, "data")
    for job, volume in (("first", "gone"), ("second", "data")):
        [made] = jobs_of(project, job, volumes=(volume,), snapshot_on=("success",))
        succeed(made)
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            Volume.objects.select_for_update().get(pk=gone.pk)
            later = beside(pool, snapshot_on_events, "the step that writes snapshots")
            Volume.objects.filter(pk=gone.pk).delete()
        later.result(patience(10))
    assert [str(one) for one in Snapshot.objects.all()] == ["data@1"]
