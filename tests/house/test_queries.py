"""Lists ask a fixed number of questions, however many rows there are; query_counts.json says how many."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.access import SYSTEM
from controlplane.models import Project
from datasets.actions.caches import cache_version, location_for
from datasets.models import Dataset, Snapshot, Volume
from jobs.models import Job
from tests.app.api.client import Api
from tests.builders import make_job, make_project, make_user
from tests.cast import make_cast
from tests.datasets import make_dataset, make_subset, make_version
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


def data_pages() -> dict[str, str]:
    """The page of one dataset, of one volume, of one job with its snapshots, and of their lineage, by name."""
    project = Project.objects.get(name="first-0")
    dataset, volume = Dataset.objects.get(project=project), Volume.objects.get(project=project)
    job = Job.objects.filter(project=project).earliest("created_at")
    version = dataset.versions.whole().get(number=1)
    return {
        "dataset": f"/datasets/{dataset.pk}",
        "files": f"/datasets/{dataset.pk}/files",
        "diff": f"/datasets/{dataset.pk}/diff",
        "volume": f"/volumes/{volume.pk}",
        "job": f"/jobs/{job.pk}",
        "lineage": f"/lineage/job/{job.pk}",
        "lineage of a version": f"/lineage/version/{version.pk}",
    }


def add_data(count: int) -> None:
    """More of everything that these pages show: versions, caches, subsets, snapshots, and jobs that mount them."""
    project = Project.objects.get(name="first-0")
    dataset, volume = Dataset.objects.get(project=project), Volume.objects.get(project=project)
    location = location_for(project.cluster)
    job = Job.objects.filter(project=project).earliest("created_at")
    for _ in range(count):
        version = make_version(dataset, {f"file-{dataset.latest}": "text"})
        make_subset(version, "part", "file-*")
        cache_version(version, location, actor=SYSTEM)
        snapshot = make_snapshot(volume)
        Snapshot.objects.filter(pk=snapshot.pk).update(job=job)
        name, at = f"reads-{snapshot.number}", {"mount_path": "/data"}
        datasets, volumes = (
            [{"dataset": "data", "version": "latest"} | at],
            [{"volume": "data", "mount_path": "/mnt"}],
        )
        make_job(project, name, gpus=0, datasets=datasets, volumes=volumes)


@pytest.mark.usefixtures("own_lakes", "own_volumes")
def test_pages_of_data_ask_the_same_questions_of_few_and_of_many_rows(plant: Plant) -> None:
    add_data(2)
    few = {name: count_of(path) for name, path in data_pages().items()}
    add_data(5)
    many = {name: count_of(path) for name, path in data_pages().items()}
    assert many == few, "queries grow with rows"


def test_lists_ask_the_same_questions_of_few_and_of_many_rows(plant: Plant) -> None:
    few = {path: count_of(path) for path in COUNTS}
    add_rows(plant, "more", count=5)
    many = {path: count_of(path) for path in COUNTS}
    assert many == few, "queries grow with rows"
    above = {path: count for path, count in few.items() if count > COUNTS[path]}
    assert not above, f"more queries than query_counts.json allows: {above}"
