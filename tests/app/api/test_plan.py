"""What a job would lead to before it is submitted, and when a queued one starts."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.loop import observe as observing
from controlplane.loop.observe import Observation
from controlplane.loop.record import record
from controlplane.models import AuditEntry, Cluster, Device, Event
from controlplane.scheduling.cycle import decide
from datasets.models import Cache
from jobs import planning
from jobs.models import Job, Pod
from tests.app.api.client import Api
from tests.app.api.placing import place
from tests.cast import Cast
from tests.datasets import make_dataset, make_version

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


DATA = {"datasets": [{"dataset": "xray", "mount_path": "/data", "cached": True}]}


def run_cycle(cluster: Cluster) -> None:
    """Decide once and record it, with no engine."""
    seen = observing.observe(cluster, timezone.now())
    record(cluster, decide(seen.view), seen, timezone.now())


def start_of(answer: dict[str, Any]) -> tuple[Any, ...]:
    """Return the reason and the estimate of a plan or an explanation, without the seconds that passed in between."""
    estimate = answer["start_estimate"]
    reason = answer["reason"]
    return reason["code"], reason["message"], estimate is None, answer["start_estimate_note"]


def test_a_plan_waits_for_data_as_the_submitted_job_does(cast: Cast, api: AsPerson):
    ben = api("ben")
    make_version(make_dataset(cast.project), {"a": "one"})
    before = Cache.objects.count(), Event.objects.count()
    plan = ben.post(PLAN, WANTED | DATA).body
    assert (Cache.objects.count(), Event.objects.count()) == before
    assert (plan["starts_now"], plan["placement"]) == (False, [])
    assert start_of(plan) == (
        "waiting_for_data",
        "Its dataset xray@1 is still to be brought to the cluster. It starts when the files are there.",
        True,
        "How fast its dataset is copied is not known yet.",
    )
    made = ben.post(JOBS, WANTED | DATA).body
    run_cycle(cast.project.cluster)
    assert start_of(ben.get(f"jobs/{made['id']}/explain").body) == start_of(plan)


def test_a_plan_begins_when_the_data_that_another_job_waits_for_is_there(cast: Cast, api: AsPerson):
    ben = api("ben")
    version = make_version(make_dataset(cast.project), {"a": "one"})
    first = ben.post(JOBS, WANTED | DATA).body
    half = version.size_bytes // 2
    type(version).objects.update(size_bytes=6_000)
    Cache.objects.update(state=Cache.FILLING, bytes_done=half, bytes_per_second=10)
    run_cycle(cast.project.cluster)
    plan = ben.post(PLAN, WANTED | DATA | {"name": "second"}).body
    queued = ben.get(f"jobs/{first['id']}/explain").body
    assert start_of(plan) == start_of(queued)
    assert plan["reason"]["details"]["eta_seconds"] == 600
    assert "About 10 min left; it starts then." in plan["reason"]["message"]
    assert (plan["starts_now"], plan["start_estimate_note"]) == (False, None)
    begins, ends = (datetime.fromisoformat(plan["start_estimate"][edge]) for edge in ("earliest", "latest"))
    assert timezone.now() + timedelta(minutes=9) < begins < ends


def test_a_plan_that_starts_now_has_no_reason_to_wait(api: AsPerson):
    plan = api("ben").post(PLAN, WANTED).body
    assert (plan["reason"], plan["start_estimate_note"]) == (None, None)


def test_a_queued_job_has_a_range(cast: Cast, api: AsPerson):
    fill(cast, api)
    made = api("chi").post("projects/team-b/jobs", WANTED).body
    found = api("chi").get(f"jobs/{made['id']}/explain").body["start_estimate"]
    assert made["created_at"] < found["earliest"] < found["latest"]
