"""The promise of borrowing, end to end: the owner gets its GPU within seconds, the borrower loses no work.

One GPU, two projects. team-a (no quota) borrows it for the quickstart; team-b (quota 1) takes it back; when that is
done the quickstart goes on from its checkpoint.
"""

from typing import Any

import pytest

from tests.servers import ControlPlane, control_plane
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


def submit(plane: ControlPlane, project: str, body: dict[str, Any]) -> str:
    status, answer = plane.call(
        "POST", f"/api/v1/projects/{project}/jobs", {"kind": "train", "gpus": 1, **body}
    )
    assert status == 201, answer
    return answer["id"]


def status_of(plane: ControlPlane, job: str) -> dict[str, Any]:
    return plane.call("GET", f"/api/v1/jobs/{job}")[1]["status"]


def log_of(plane: ControlPlane, job: str, attempt: int) -> list[str]:
    page = plane.call("GET", f"/api/v1/jobs/{job}/logs?attempt={attempt}&limit=500")[1]
    return [line["text"] for line in page.get("lines", [])]  # none before the attempt began


def started_line(plane: ControlPlane, job: str, attempt: int) -> str | None:
    """The quickstart's own word on where it began: `resumed at step 240 of 1920 on cpu`."""
    return next((line for line in log_of(plane, job, attempt) if " at step " in line), None)


def test_a_reclaimed_training_goes_on_where_it_stopped(tmp_path):
    with control_plane(tmp_path / "state", {"TRAINYARD_CLUSTERS": "local:dgx1-1=1x32768"}) as plane:
        for name, quota in (("team-a", 0), ("team-b", 1)):
            assert plane.call("POST", "/api/v1/projects", {"name": name, "gpu_quota": quota})[0] == 201
        borrower = submit(plane, "team-a", {"name": "borrower", "image": "quickstart"})
        wait_until(lambda: status_of(plane, borrower)["progress"].get("epoch", 0) >= 2, 60, "two epochs")
        owner = submit(plane, "team-b", {"name": "owner", "command": ["sleep", "1"]})
        wait_until(
            lambda: status_of(plane, owner)["state"] in ("running", "succeeded"), 15, "the owner's start"
        )
        waiting = status_of(plane, borrower)
        assert (waiting["state"], waiting["reason"]["code"]) == ("queued", "preempted")
        assert "owner" in waiting["reason"]["message"] or waiting["reason"]["details"]["by_name"] == "owner"
        first = log_of(plane, borrower, 1)
        assert any(line.startswith("stopping: saved") for line in first), first
        again = wait_until(lambda: started_line(plane, borrower, 2), 60, "the borrower's second attempt")
        assert int(again.split()[3]) > 0, again
        plane.call("POST", f"/api/v1/jobs/{borrower}/stop")
        wait_until(lambda: status_of(plane, borrower)["state"] == "stopped", 20, "the borrower's end")
