"""Caches of pods, and of the jobs that they may move, equal fresh reads whatever any session has written."""

import random
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.loop.placements import PlacementCache
from controlplane.loop.pod_diff import PodCache
from controlplane.loop.unsettled import UnsettledJobs
from controlplane.models import Cluster, Project
from jobs.change_list import Changed, changes_since
from jobs.models import Attempt, Job, Pod
from tests.builders import make_cluster, make_counters, make_job, make_project
from tests.loop.random_sessions import RandomSession, check_while_they_write, empty_change_list

on_postgres = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="SQLite has no ids of transactions; there all rows are read."
)
pytestmark = pytest.mark.django_db(transaction=True)


class Caches:
    """The caches of one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pods, self._placements, self._unsettled = PodCache(), PlacementCache(), UnsettledJobs()

    def read(self) -> tuple[Any, ...]:
        """Return all that they contain after a read."""
        cluster = self._cluster
        unsettled = [job.pk for job in self._unsettled.read(cluster)]
        return dict(self._pods.read(cluster)), dict(self._placements.read(cluster)), unsettled

    def unsettled(self) -> list[str]:
        """Return the names of the unsettled jobs."""
        return sorted(job.name for job in self._unsettled.read(self._cluster))


@pytest.fixture
def cluster() -> Cluster:
    """A cluster with three running jobs, a, b and c, with two pods each."""
    if connection.vendor == "postgresql":
        # The emptying of tables between tests is listed, and stands for all jobs.
        empty_change_list()
    make_counters()
    cluster, project = make_cluster(), make_project()
    node = cluster.nodes.order_by("name")[0]
    for letter in "abc":
        job = make_job(project, letter)
        attempt = Attempt.objects.create(job=job, number=1)
        Job.objects.filter(pk=job.pk).update(state="running", attempt=1)
        for rank in range(2):
            Pod.objects.create(
                job=job, attempt=attempt, node=node, rank=rank, name=f"{letter}{rank}", state="running"
            )
    return cluster


@pytest.fixture
def caches(cluster: Cluster) -> Caches:
    """Caches that have read the cluster."""
    caches = Caches(cluster)
    assert caches.read() == Caches(cluster).read()
    return caches


def test_pods_that_end_are_dropped_and_their_jobs_are_unsettled(cluster: Cluster, caches: Caches):
    assert caches.unsettled() == []
    Pod.objects.filter(name="a0").update(state="succeeded")
    assert caches.unsettled() == ["a"]
    Pod.objects.filter(name="b1").update(released_at=timezone.now())
    assert caches.unsettled() == ["a", "b"]
    assert caches.read() == Caches(cluster).read()
    Job.objects.filter(name="a").update(state="succeeded")
    Job.objects.filter(name="b").update(attempt=2)
    assert caches.unsettled() == []


def test_an_unsettled_job_stays_so_until_it_changes(caches: Caches):
    Job.objects.filter(name="c").update(state="stopping")
    assert [caches.unsettled() for _ in range(3)] == [["c"]] * 3


def test_a_new_time_limit_of_a_project_concerns_its_running_jobs(caches: Caches):
    assert caches.unsettled() == []
    Project.objects.update(interactive_max_seconds=3600)
    assert caches.unsettled() == ["a", "b", "c"]
    Project.objects.update(interactive_max_seconds=None)
    assert caches.unsettled() == []


def test_starting_jobs_are_unsettled_once_a_pod_reports(caches: Caches):
    Pod.objects.update(state="pending")
    Job.objects.filter(name="a").update(state="starting")
    assert caches.unsettled() == []
    Pod.objects.filter(name="a1").update(reason="image_pull")
    assert caches.unsettled() == ["a"]


def test_unchanged_pods_are_the_same_objects(cluster: Cluster):
    pods, placements = PodCache(), PlacementCache()
    known, placed = dict(pods.read(cluster)), dict(placements.read(cluster))
    Pod.objects.filter(name="b0").update(message="Waits.")
    assert {name for name, pod in pods.read(cluster).items() if pod is not known[name]} == {"b0"}
    assert all(places is placed[job] for job, places in placements.read(cluster).items())
    assert placements.changed == frozenset()


@on_postgres
def test_telemetry_is_not_listed(cluster: Cluster):
    later, _ = changes_since(None, Changed.PODS)
    empty_change_list()
    Pod.objects.update(log_offset=100, gpu_utilization=0.5, started_at=timezone.now())
    assert changes_since(later, Changed.PODS)[1] == []
    Job.objects.update(details={"changed": True})
    assert changes_since(later, Changed.PODS)[1] == []
    Pod.objects.filter(name="a0").update(state="failed")
    assert changes_since(later, Changed.PODS)[1] == [str(Job.objects.get(name="a").pk)]


@on_postgres
def test_without_changes_no_pod_is_read(caches: Caches):
    empty_change_list()
    with CaptureQueriesContext(connection) as queries:
        caches.read()
    assert not [query for query in queries if 'FROM "jobs_pod"' in query["sql"]]


@on_postgres
@pytest.mark.parametrize("seed", range(8))
def test_no_change_of_any_transaction_is_missed(
    cluster: Cluster, caches: Caches, seed: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("jobs.change_list.LISTED_SECONDS", -1)
    draw = random.Random(seed)

    def check() -> None:
        assert caches.read() == Caches(cluster).read()

    check_while_they_write([PodSession(letter, draw) for letter in "abc"], draw, 80, check)


class PodSession(RandomSession):
    """Changes one job and its pods."""

    def changes(self) -> tuple[str, ...]:
        mine = f"WHERE name LIKE '{self.letter}%'"
        some = f"id IN (SELECT id FROM jobs_pod {mine} ORDER BY random() LIMIT 2)"
        columns = ", ".join(field.column for field in Pod._meta.concrete_fields if field.column != "id")
        new = columns.replace("rank", "(random() * 1000000000)::int").replace(
            "name", f"'{self.letter}' || random()"
        )
        state, job_state = (
            self.draw.choice(("pending", "running", "failed")),
            self.draw.choice(("starting", "running", "stopping", "stopped")),
        )
        undone = f"SAVEPOINT one; DELETE FROM jobs_pod {mine}; ROLLBACK TO one"
        return (
            f"UPDATE jobs_pod SET state = '{state}' WHERE {some}",
            f"UPDATE jobs_pod SET reason = 'r' || random() WHERE {some}",
            f"UPDATE jobs_pod SET released_at = now() WHERE {some}",
            f"UPDATE jobs_pod SET released_at = NULL WHERE {some}",
            f"UPDATE jobs_pod SET log_offset = log_offset + 1 WHERE {some}",
            f"DELETE FROM jobs_pod WHERE {some}",
            f"INSERT INTO jobs_pod ({columns}) SELECT {new} FROM jobs_pod {mine} LIMIT 1",
            f"UPDATE jobs_job SET state = '{job_state}' {mine}",
            f"UPDATE jobs_job SET attempt = {self.draw.randrange(1, 3)} {mine}",
            undone if self.is_open else "SELECT 1",
        )
