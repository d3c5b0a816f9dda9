"""Which jobs a cycle looks at, and what that costs a database that knows nothing of its tables yet."""

import re

from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.loop.settle import move_jobs
from tests.builders import make_job, make_project

ASKED_OF_EVERY_ROW = re.compile(r"CORRELATED|(?<!hashed )SubPlan \d+\)")  # SQLite's words, PostgreSQL's


def explained(sql: str) -> str:
    word = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        cursor.execute(f"{word} {sql}")
        return "\n".join(str(row) for row in cursor.fetchall())


def test_no_question_is_asked_of_every_job(plant):
    """With 800 jobs that took 1.4 s a cycle, until PostgreSQL had looked at its tables."""
    project = make_project()
    for number in range(5):
        make_job(project, name=f"job-{number}")
    plant.tick()
    with CaptureQueriesContext(connection) as seen:
        move_jobs(plant.cluster, plant.clock())
    plans = [explained(query["sql"]) for query in seen if query["sql"].startswith("SELECT")]
    assert plans
    assert not [plan for plan in plans if ASKED_OF_EVERY_ROW.search(plan)]
