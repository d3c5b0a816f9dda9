"""What is said at the door: a yes may be from a moment ago, a no is of now."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.actions.errors import Conflict, Invalid
from jobs import admission
from tests.builders import make_cluster, make_job, make_node, make_project

pytestmark = pytest.mark.django_db


def test_what_the_nodes_have_is_read_once_for_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        admission._largest, "_seconds", 3600.0
    )  # on a slow machine a burst takes longer than 5 s
    project = make_project()
    make_job(project, "first")
    with CaptureQueriesContext(connection) as queries:
        make_job(project, "second")
    assert not [query for query in queries if "controlplane_device" in query["sql"]]


def test_a_node_that_has_just_come_is_seen_before_a_no() -> None:
    project = make_project()
    with pytest.raises(Invalid):
        make_job(project, "large", gpus=16)
    make_node(make_cluster(), "dgx2", gpus=16)
    assert make_job(project, "large", gpus=16).milli_gpus == 16_000


def test_a_queue_that_is_not_far_from_full_is_counted_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "QUEUE_MOST", 3)
    monkeypatch.setattr(admission, "FAR_FROM_FULL", 0)
    project = make_project()
    for number in range(3):
        make_job(project, f"job-{number}")
    with pytest.raises(Conflict, match="3 unfinished jobs"):
        make_job(project, "one-more")


def test_the_check_of_images_leaves_the_spec_as_it_is() -> None:
    project = make_project()
    spec = {"image": "jupyter", "command": (), "args": (), "ports": []}
    assert admission.images_unknown(project, {0: spec}) == []
    assert spec == {"image": "jupyter", "command": (), "args": (), "ports": []}


def test_a_job_without_ports_gets_that_of_its_image_before_it_is_checked() -> None:
    project = make_project()
    ports = {
        name: make_job(project, name, command=[], **body).spec["ports"]
        for name, body in {
            "serves": {"image": "jupyter"},
            "declares": {"image": "jupyter", "ports": [{"port": 9000}]},
            "computes": {"image": "quickstart"},
        }.items()
    }
    assert {name: [each["port"] for each in found] for name, found in ports.items()} == {
        "serves": [8888],
        "declares": [9000],
        "computes": [],
    }
