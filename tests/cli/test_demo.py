"""`yard demo four-teams` leaves alone what it did not make."""

import pytest

from controlplane.cli.commands.demo import MARK
from controlplane.cli.scenario import QUOTAS, expectations, steps
from tests.cli.scripted import Reply, page, problem

DEVICES = [{"index": index, "allocated": 0} for index in range(8)]
NODE = {"name": "dgx1-1", "gpus": 8, "devices": DEVICES}
NODES = page(NODE, {**NODE, "name": "dgx1-2"})
OTHERS_JOB = {"id": "1", "name": "mine", "project": "team-a", "status": {"state": "running"}}


@pytest.fixture
def cluster(server):
    """An empty cluster without any of the demo's projects, where somebody has a team-a with a job."""
    for name in QUOTAS:
        server.on("GET", f"projects/{name}", problem(404, "not_found", "No such project."))
    server.on("GET", "nodes", NODES)
    server.on("GET", "jobs", page(OTHERS_JOB))
    return server


def written(server) -> list[tuple[str, str]]:
    return [
        (asked.method, asked.path.removeprefix("/api/v1/")) for asked in server.asked if asked.method != "GET"
    ]


@pytest.mark.parametrize("flags", [[], ["--reset"], ["--clear"], ["--anyway"]])
def test_a_project_of_somebodys_own_is_refused_before_anything_happens(cluster, yard, flags):
    cluster.on("GET", "projects/demo-team-a", {"name": "demo-team-a", "description": MARK})
    cluster.on("GET", "projects/demo-team-c", {"name": "demo-team-c", "description": "Our X-rays"})
    ran = yard("demo", "four-teams", *flags)
    assert ran.code == 5
    assert "project demo-team-c was not made by this demo" in ran.err
    assert written(cluster) == []


def test_clear_deletes_what_the_demo_made_and_nothing_else(cluster, yard):
    cluster.on("GET", "projects/demo-team-b", {"name": "demo-team-b", "description": MARK})
    cluster.on("DELETE", "projects/demo-team-b", Reply(204))
    cluster.on("DELETE", "jobs/2", Reply(204))
    its_own = {**OTHERS_JOB, "id": "2", "project": "demo-team-b"}
    cluster.on("GET", "jobs", page(OTHERS_JOB, its_own), page(OTHERS_JOB))
    assert yard("demo", "four-teams", "--clear").out == "deleted with their jobs: demo-team-b\n"
    assert written(cluster) == [("DELETE", "jobs/2"), ("DELETE", "projects/demo-team-b")]
    cluster.asked.clear()
    cluster.on("GET", "projects/demo-team-b", problem(404, "not_found", "No such project."))
    assert yard("demo", "four-teams", "--clear").out == "there was nothing to delete\n"
    assert written(cluster) == []


def test_jobs_of_others_are_not_played_with_unasked(cluster, yard):
    cluster.on(
        "GET", "nodes", page({**NODE, "devices": [{"index": 0, "allocated": 0.5}, *DEVICES[1:]]}, NODE)
    )
    ran = yard("demo", "four-teams")
    assert ran.code == 5
    assert "other jobs hold 1 of the GPUs" in ran.err
    assert "--anyway" in ran.err
    assert written(cluster) == []
    cluster.on("POST", "projects", problem(403, "forbidden", "Only admins."))
    assert yard("demo", "four-teams", "--anyway").code == 4
    assert cluster.requests("POST", "projects")[0].body == {
        "name": "demo-team-a",
        "gpu_quota": 4,
        "description": MARK,
    }


def test_the_published_numbers_under_names_of_their_own():
    assert {step.project for step in steps()} == set(QUOTAS)
    assert expectations()[13].allocated == ((4.0, 4.0, 4.0, 4.0),)
    assert expectations()[14].allocated == ((4.0, 2.0, 4.0, 6.0), (4.0, 4.0, 2.0, 6.0))
