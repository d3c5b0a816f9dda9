"""What it costs to find the jobs that may have to move, when a database has grown a hundredfold within a second."""

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.loop.settle import move_jobs
from controlplane.loop.statistics import refresh_statistics
from jobs.models import Attempt, Job, Pod
from tests.builders import make_counters, make_job, make_project
from tests.loop.plant import Plant
from tests.waiting import wait_until

COUNT = 300
pytestmark = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="PostgreSQL plans by statistics, SQLite does not"
)


def many_like(job: Job) -> None:
    """More running jobs, each with an attempt and a pod like this one's."""
    (attempt,), (pod,) = job.attempts.all(), job.pods.all()
    for number in range(COUNT):
        job.pk, job.name, job.submit_rank = uuid4(), f"job-{number}", job.submit_rank + 1
        job.save(force_insert=True)
        attempt.pk, attempt.job = None, job
        attempt.save(force_insert=True)
        pod.pk, pod.job, pod.attempt, pod.name = None, job, attempt, f"{job.pk}-1-0"
        pod.save(force_insert=True)
    assert Attempt.objects.count() == Pod.objects.count() == COUNT + 1


def most_rows(plan: dict) -> int:
    """How many rows its longest step goes through."""
    removed = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    here = plan["Actual Loops"] * (plan["Actual Rows"] + removed)
    return max(here, *map(most_rows, plan.get("Plans", ())), 0)


def rows_to_settle(plant: Plant) -> int:
    """How many rows the longest step of any query goes through that looks for jobs which may have to move."""
    with CaptureQueriesContext(connection) as seen:
        move_jobs(plant.cluster, plant.clock())
    return max(most_rows(plan_of(query["sql"])) for query in seen if query["sql"].startswith("SELECT"))


def plan_of(sql: str) -> dict:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        (found,) = cursor.fetchone()
    return (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]


@pytest.fixture
def grown(transactional_db) -> Iterator[Plant]:
    make_counters()
    plant = Plant()
    job = make_job(make_project())
    plant.settle()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    many_like(job)
    yield plant
    plant.close()


def test_jobs_are_gone_through_once(grown):
    """Planned for one job, 300 are gone through for each other; nothing is looked at twice."""
    assert rows_to_settle(grown) > 100 * COUNT
    seen = set()
    wait_until(
        lambda: seen.update(refresh_statistics()) or {"jobs_job", "jobs_attempt", "jobs_pod"} <= seen, 10
    )
    assert rows_to_settle(grown) < 5 * COUNT
    assert refresh_statistics() == []
