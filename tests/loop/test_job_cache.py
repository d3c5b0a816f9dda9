"""What one thread keeps of the jobs that it read: nothing of it may outlive what it was read from."""

from datetime import timedelta

import pytest
from django.db import connection

from controlplane.loop.observe import JobCache, observe
from jobs.models import Job, Pod
from jobs.row_cache import RowCache
from tests.builders import make_job, make_project
from tests.loop.plant import Plant


def test_run_times_learned_in_a_read_that_failed_are_not_lost(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    project, kept, now = make_project(), JobCache(), plant.clock()
    for number in range(30):
        make_job(project, f"ended-{number}")
    ended = Job.objects.all()
    ended.update(state="succeeded", attempt=1, started_at=now, finished_at=now + timedelta(seconds=100))
    make_job(project, user=ended[0].user)
    ended.filter(state="succeeded").update(attempt=0)
    [job] = observe(plant.cluster, now, kept=kept).view.jobs
    assert job.expected_runtime_seconds is None
    ended.filter(state="succeeded").update(attempt=1)
    later = now + timedelta(seconds=61)
    with monkeypatch.context() as broken:
        broken.setattr(RowCache, "read", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            observe(plant.cluster, later, kept=kept)
    [job] = observe(plant.cluster, later, kept=kept).view.jobs
    assert job.expected_runtime_seconds == 100


@pytest.mark.skipif(connection.vendor != "postgresql", reason="a file is not replaced under a running loop")
def test_on_another_server_a_key_may_be_another_pod(plant: Plant):
    """One that was written after the last change that the server has."""
    make_job(make_project())
    plant.settle()
    kept = JobCache()
    [before] = observe(plant.cluster, plant.clock(), kept=kept).view.jobs
    other = plant.cluster.nodes.exclude(name=before.placements[0].node).first()
    Pod.objects.update(node=other)
    since = kept._placements._since
    assert since is not None
    kept._placements._since = since._replace(server="of before")
    [after] = observe(plant.cluster, plant.clock(), kept=kept).view.jobs
    assert after.placements[0].node == other.name


def test_hold_reasons_are_the_same_object_while_none_of_them_changed(plant: Plant):
    """Progress of running jobs is written every second; the hold reasons of a long queue are not compared then."""
    project = make_project(quota=16)
    running = make_job(project, gpus=8)
    plant.settle()
    waits = make_job(project, "waits", gpus=8, workers=2)
    kept = JobCache()
    before = observe(plant.cluster, plant.clock(), kept=kept).holds
    Job.objects.filter(pk=running.pk).update(progress={"fraction": 0.5})
    assert observe(plant.cluster, plant.clock(), kept=kept).holds is before
    Job.objects.filter(pk=waits.pk).update(message="Waits.")
    assert observe(plant.cluster, plant.clock(), kept=kept).holds[str(waits.pk)].message == "Waits."
