"""What it costs to find the jobs that may have to move, when a database has grown a hundredfold within a second."""

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.loop.job_transitions import move_jobs
from controlplane.loop.statistics import refresh_statistics
from jobs.models import Attempt, Job, Pod
from tests.builders import make_counters, make_job, make_project
from tests.loop.plant import Plant
from tests.waiting import wait_until

COUNT = 300
TABLES = {"jobs_job", "jobs_attempt", "jobs_pod"}
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
    """A running job when PostgreSQL looked last, and many since."""
    with connection.cursor() as cursor:
        # Tables as large as their rows: PostgreSQL would take the pages of deleted rows for a sign of many.
        cursor.execute("TRUNCATE jobs_job CASCADE")
    make_counters()
    plant = Plant()
    job = make_job(make_project())
    plant.settle()
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")  # it might look first
            cursor.execute(f"VACUUM (ANALYZE) {table}")  # of what tests before have left behind, too
    many_like(job)
    yield plant
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ALTER TABLE {table} RESET (autovacuum_enabled)")
    plant.close()


def test_jobs_are_gone_through_once(grown):
    """Also by a plan for one job; with one subquery instead of two, 300 were gone through for each other."""
    assert rows_to_settle(grown) < 5 * COUNT
    looked_at = set()
    wait_until(lambda: looked_at.update(refresh_statistics()) or looked_at >= TABLES, 10, "a look at all")
    assert rows_to_settle(grown) < 5 * COUNT


def test_what_changes_and_does_not_grow_is_left_alone(grown):
    wait_until(lambda: "jobs_pod" in refresh_statistics(), 10, "a look")
    Pod.objects.update(gpu_utilization=0.5)
    Pod.objects.update(gpu_utilization=0.6)
    wait_until(lambda: changes_since_the_look("jobs_pod") >= 2 * COUNT, 10, "PostgreSQL to count these")
    assert "jobs_pod" not in refresh_statistics()


def changes_since_the_look(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT n_mod_since_analyze FROM pg_stat_user_tables WHERE relname = %s", [table])
        return int(cursor.fetchone()[0])
