"""Lists ask a fixed number of questions, however many rows there are; query_counts.json says how many."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from tests.app.api.client import Api
from tests.builders import make_job, make_project, make_user
from tests.cast import make_cast
from tests.datasets import make_dataset
from tests.loop.plant import Plant
from tests.volumes import make_snapshot, make_volume

COUNTS: dict[str, int] = json.loads((Path(__file__).parent / "query_counts.json").read_text())


@pytest.fixture
def plant(db: None) -> Iterator[Plant]:
    """A cluster with the cast, one running job, one queued, one finished."""
    plant = Plant()
    cast = make_cast()
    add_rows(plant, "first", count=1)
    assert {*Job.objects.values_list("state", flat=True)} == {"running", "queued", "stopped"}
    yield plant
    assert cast.root.is_admin
    plant.close()


def add_rows(plant: Plant, prefix: str, count: int) -> None:
    """More of everything that a list shows: people, projects, running, queued and finished jobs, events."""
    for number in range(count):
        name = f"{prefix}-{number}"
        project = make_project(name, quota=0.2)
        make_user(name)
        make_dataset(project, "data")
        make_snapshot(make_volume(project, "data"))
        for share in ("a", "b"):
            make_job(project, f"{name}-{share}", gpus=0.2)
        make_job(project, f"{name}-big", gpus=8, workers=40)
        ended = make_job(project, f"{name}-ended", gpus=0)
        plant.settle()
        Job.objects.filter(pk=ended.pk).update(state="stopped")
        plant.settle()


def count_of(path: str) -> int:
    """Queries of one answered request, as the admin; the first request pays for what is remembered."""
    if path.startswith("/api/"):
        send = Api(make_user("root")).client.get
    else:
        client = Client()
        client.force_login(make_user("root"))
        send = client.get
    assert send(path).status_code == 200, path
    with CaptureQueriesContext(connection) as captured:
        send(path)
    return len(captured)


def test_lists_ask_the_same_questions_of_few_and_of_many_rows(plant: Plant) -> None:
    few = {path: count_of(path) for path in COUNTS}
    add_rows(plant, "more", count=5)
    many = {path: count_of(path) for path in COUNTS}
    assert many == few, "queries grow with rows"
    above = {path: count for path, count in few.items() if count > COUNTS[path]}
    assert not above, f"more queries than query_counts.json allows: {above}"
