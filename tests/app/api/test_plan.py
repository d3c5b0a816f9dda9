"""What a job would lead to before it is submitted, and when a queued one starts."""

from collections.abc import Callable
from typing import Any

import pytest

from controlplane.loop import observe as observing
from controlplane.loop.observe import Observation
from controlplane.models import AuditEntry, Device, Event
from jobs import planning
from jobs.models import Job, Pod
from tests.app.api.client import Api
from tests.app.api.placing import place
from tests.cast import Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
JOBS, PLAN = "projects/team-a/jobs", "projects/team-a/jobs/plan"
WANTED = {"name": "hyper9", "kind": "train", "gpus": 1, "expected_runtime_seconds": 7200}


def fill(cast: Cast, api: AsPerson) -> None:
    """Jobs of team-b on every GPU."""
    for number in range(Device.objects.count()):
        body = {"name": f"long-{number}", "kind": "train", "gpus": 1, "expected_runtime_seconds": 3600}
        made = api("chi").post("projects/team-b/jobs", body).body
        place(Job.objects.get(pk=made["id"]))


def test_a_plan_says_where_and_when_and_leaves_nothing(api: AsPerson):
    ben = api("ben")
    before = Event.objects.count(), AuditEntry.objects.count()
    reply = ben.post(PLAN, WANTED)
    assert reply.status == 200
    assert reply.body["starts_now"] is True
    assert [pod["rank"] for pod in reply.body["placement"]] == [0]
    assert reply.body["start_estimate"]["earliest"] == reply.body["start_estimate"]["latest"]
    assert (reply.body["gpu_hours"], reply.body["preempts"]) == (2.0, [])
    assert (Event.objects.count(), AuditEntry.objects.count()) == before
    assert not Job.objects.exists()
    assert not Pod.objects.exists()


def test_the_cluster_is_read_after_the_submission_was_rolled_back(
    api: AsPerson, monkeypatch: pytest.MonkeyPatch
):
    there: list[bool] = []

    def observe(*given: Any) -> Observation:
        there.append(Job.objects.exists())
        return observing.observe(*given)

    monkeypatch.setattr(planning, "observe", observe)
    assert api("ben").post(PLAN, WANTED).status == 200
    assert there == [False]


def test_a_plan_is_refused_as_the_submission_would_be(api: AsPerson):
    assert api("ben").post(PLAN, WANTED | {"gpus": 99}).pointers == ["/gpus"]
    assert api("vera").post(PLAN, WANTED).status == 403


def test_victims_of_other_projects_are_named_only_to_their_readers(cast: Cast, api: AsPerson):
    fill(cast, api)
    stranger = api("ben").post(PLAN, WANTED).body
    assert stranger["starts_now"] is False
    assert [(one["project"], one["job"], one["name"]) for one in stranger["preempts"]] == [
        ("team-b", None, None)
    ]
    [seen] = api("root").post(PLAN, WANTED).body["preempts"]
    assert seen["name"].startswith("long-")


def test_a_queued_job_has_a_range(cast: Cast, api: AsPerson):
    fill(cast, api)
    made = api("chi").post("projects/team-b/jobs", WANTED).body
    found = api("chi").get(f"jobs/{made['id']}/explain").body["start_estimate"]
    assert made["created_at"] < found["earliest"] < found["latest"]
