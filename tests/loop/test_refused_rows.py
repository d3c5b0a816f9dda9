"""A row that the database refuses keeps no other from being written: a tenant or a node may have chosen its words."""

from dataclasses import replace

import pytest

from controlplane.models import Device, Node
from jobs.models import Pod
from tests.builders import make_job, make_project

pytestmark = pytest.mark.django_db
TOO_MUCH = 10**20  # no database takes it as an integer


def test_a_pod_that_cannot_be_written_stops_no_other(plant, monkeypatch):
    bad, good = make_job(make_project(), "bad"), make_job(make_project("other"), "good")
    plant.tick()
    tell = plant.engine.pods
    monkeypatch.setattr(
        plant.engine,
        "pods",
        lambda: tuple(
            replace(one, state="failed", exit_code=TOO_MUCH) if one.name.startswith(str(bad.pk)) else one
            for one in tell()
        ),
    )
    late = make_job(make_project("late"), "late")
    plant.settle()
    good.refresh_from_db()
    late.refresh_from_db()
    assert (good.state, late.state) == ("running", "running")
    assert Pod.objects.get(job=bad).exit_code is None


def test_a_node_that_cannot_be_written_stops_no_other(plant, monkeypatch):
    first, *others = plant.engine.nodes()
    told = (replace(first, devices=(replace(first.devices[0], model="another"), *first.devices[1:])), *others)
    huge = replace(told[0], name="huge", memory_mib=TOO_MUCH)
    monkeypatch.setattr(plant.engine, "nodes", lambda: (huge, *told, replace(told[0], name="new")))
    job = make_job(make_project())
    plant.tick(6)  # nodes are looked at every few seconds
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"
    assert set(Node.objects.values_list("name", flat=True)) == {*(node.name for node in told), "new"}
    assert Device.objects.get(node__name=first.name, index=0).model == "another"
