"""What another share of the GPUs would do, over REST."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.models import AuditEntry, Cluster, Device, Event, Project
from controlplane.simulation.client import SimulationFailed
from controlplane.telemetry.usage import UsageCache
from jobs.models import Attempt, Job
from jobs.what_if import week_simulator
from tests.app.api.client import Api
from tests.app.api.placing import place
from tests.cast import Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
WHAT_IF = "projects/team-a/what-if"


@pytest.fixture
def full(cast: Cast, api: AsPerson) -> Job:
    """Jobs of team-b on every GPU, above its quota, and a queued job of team-a, whose quota is 0."""
    Project.objects.update(gpu_quota_milli=0)
    for number in range(Device.objects.count()):
        body = {"name": f"long-{number}", "kind": "train", "gpus": 1, "expected_runtime_seconds": 3600}
        made = api("chi").post("projects/team-b/jobs", body).body
        place(Job.objects.get(pk=made["id"]))
    waits = {"name": "waits", "kind": "train", "gpus": 1, "expected_runtime_seconds": 60}
    return Job.objects.get(pk=api("ben").post("projects/team-a/jobs", waits).body["id"])


def test_a_quota_says_who_starts_and_who_stops_and_changes_nothing(full: Job, api: AsPerson):
    ana = api("ana")
    before = Event.objects.count(), AuditEntry.objects.count()
    reply = ana.post(WHAT_IF, {"gpu_quota": 1})
    assert reply.status == 200, reply.body
    [sooner] = reply.body["sooner"]
    assert (sooner["name"], sooner["job"]) == ("waits", str(full.pk))
    assert sooner["wait_seconds"]["after"] == 0
    assert sooner["wait_seconds"]["before"] is None or sooner["wait_seconds"]["before"] > 600
    shares = {one["project"]: one["fair_share_gpus"] for one in reply.body["projects"]}
    assert shares["team-a"] == {"before": 0, "after": 1}
    assert reply.body["counts"] == {"sooner": 1, "later": 0, "preempted": 1, "spared": 0}
    assert (Event.objects.count(), AuditEntry.objects.count()) == before
    assert Project.objects.get(name="team-a").gpu_quota_milli == 0


def test_past_use_counts_with_the_change_too(full: Job, api: AsPerson, monkeypatch):
    Project.objects.update(over_quota_weight_milli=1000)
    monkeypatch.setattr(UsageCache, "of", lambda *given: {full.project_id: 1.0})
    reply = api("ana").post(WHAT_IF, {"gpu_quota": 0})
    shares = {one["project"]: one["fair_share_gpus"] for one in reply.body["projects"]}
    assert shares["team-a"] == {"before": 0, "after": 0}


@pytest.fixture
def recorded(cast: Cast, api: AsPerson) -> Job:
    """A record of the last hours: jobs of team-b that began to run on every GPU four hours ago, for three hours, and a
    job of team-a that waited from three hours ago on until they had ended."""
    Project.objects.update(gpu_quota_milli=0)
    for number in range(Device.objects.count()):
        ran(api("chi"), "team-b", f"long-{number}", submitted=4, started=4, ended=1)
    ran(api("chi"), "team-b", "never-ran", submitted=4, started=None, ended=3)
    return ran(api("ben"), "team-a", "waited", submitted=3, started=1, ended=0.5)


def ran(
    person: Api, project: str, name: str, *, submitted: float, started: float | None, ended: float
) -> Job:
    """A job that has ended; all times are so many hours ago."""
    made = person.post(f"projects/{project}/jobs", {"name": name, "kind": "train", "gpus": 1}).body
    ago = {key: timezone.now() - timedelta(hours=hours or 0) for key, hours in
           {"submitted": submitted, "started": started, "ended": ended}.items()}  # fmt: skip
    changes = {"state": "succeeded", "created_at": ago["submitted"], "finished_at": ago["ended"]}
    if started is not None:
        Attempt.objects.create(job_id=made["id"], number=1, created_at=ago["started"], ended_at=ago["ended"])
        changes |= {"started_at": ago["started"], "attempt": 1}
    Job.objects.filter(pk=made["id"]).update(**changes)
    return Job.objects.get(pk=made["id"])


def test_the_last_week_is_replayed_with_the_change(recorded: Job, api: AsPerson):
    reply = api("ana").post(f"{WHAT_IF}?last_week=true", {"gpu_quota": 1})
    assert reply.status == 200, reply.body
    [sooner] = reply.body["sooner"]
    assert (sooner["name"], sooner["job"]) == ("waited", str(recorded.pk))
    before, after = sooner["wait_seconds"]["before"], sooner["wait_seconds"]["after"]
    assert abs(before - 7200) <= 120
    assert after <= 60
    assert reply.body["counts"] == {"sooner": 1, "later": 0, "preempted": 1, "spared": 0}
    assert (reply.body["record"]["jobs"], reply.body["record"]["left_out"]) == (Device.objects.count() + 1, 1)
    assert reply.body["followed_seconds"] == 7 * 86400
    [team_a] = [one for one in reply.body["projects"] if one["project"] == "team-a"]
    assert abs(team_a["recorded_mean_wait_seconds"] - 7200) <= 2
    assert Project.objects.get(name="team-a").gpu_quota_milli == 0


def test_a_cluster_that_is_away_now_was_there_in_its_last_week(recorded: Job, api: AsPerson):
    Cluster.objects.update(is_reachable=False)
    reply = api("ana").post(f"{WHAT_IF}?last_week=true", {"gpu_quota": 1})
    assert [one["name"] for one in reply.body["sooner"]] == ["waited"]


def test_one_week_is_replayed_at_a_time(recorded: Job, api: AsPerson, monkeypatch):
    """Or outlooks of jobs would wait for the weeks, whose threads they share."""
    asked = []

    def ask(*given, **named):
        asked.append(api("ana").post(f"{WHAT_IF}?last_week=true", {"gpu_quota": 1}))
        raise SimulationFailed("It ended.")

    monkeypatch.setattr(week_simulator, "ask", ask)
    assert api("ana").post(f"{WHAT_IF}?last_week=true", {"gpu_quota": 1}).status == 503
    [second] = asked
    assert (second.status, second.code) == (409, "cannot_simulate")
    monkeypatch.undo()
    assert api("ana").post(f"{WHAT_IF}?last_week=true", {"gpu_quota": 1}).status == 200


def test_a_week_with_too_many_jobs_is_cut_to_days_and_then_refused(recorded: Job, api: AsPerson, monkeypatch):
    ana = api("ana")
    Job.objects.filter(name="waited").update(finished_at=timezone.now() - timedelta(days=2))
    monkeypatch.setattr("jobs.recorded_week.MOST_JOBS", Device.objects.count() + 1)
    reply = ana.post(f"{WHAT_IF}?last_week=true", {"gpu_quota": 1})
    assert reply.body["followed_seconds"] == 86400
    monkeypatch.setattr("jobs.recorded_week.MOST_JOBS", 1)
    assert ana.post(f"{WHAT_IF}?last_week=true", {"gpu_quota": 1}).code == "cannot_simulate"


def test_unfinished_jobs_are_replayed_for_as_long_as_they_are_expected_to_run(full: Job, api: AsPerson):
    reply = api("ana").post(f"{WHAT_IF}?last_week=true", {"gpu_quota": 1})
    assert reply.status == 200, reply.body
    assert reply.body["record"]["jobs"] == Device.objects.count() + 1
    assert reply.body["record"]["left_out"] == 0


def test_jobs_of_other_projects_are_named_only_to_their_readers(full: Job, api: AsPerson):
    [seen] = api("ana").post(WHAT_IF, {"gpu_quota": 1}).body["preempted"]
    assert (seen["project"], seen["job"], seen["name"]) == ("team-b", None, None)
    [named] = api("root").post(WHAT_IF, {"gpu_quota": 1}).body["preempted"]
    assert named["name"].startswith("long-")


def test_only_owners_and_admins_ask_and_values_are_checked(api: AsPerson):
    assert api("ben").post(WHAT_IF, {"gpu_quota": 1}).status == 403
    assert api("chi").post(WHAT_IF, {"gpu_quota": 1}).status == 404
    assert api("ana").post(WHAT_IF, {"gpu_quota": -1}).pointers == ["/gpu_quota"]
    assert api("ana").post(WHAT_IF, {"cluster": "other"}).pointers == ["/cluster"]


def test_a_cluster_with_another_scheduler_is_refused(cast: Cast, api: AsPerson, monkeypatch):
    monkeypatch.setattr("jobs.outlook.MOST_JOBS", -1)
    reply = api("ana").post(WHAT_IF, {"gpu_quota": 1})
    assert (reply.status, reply.code) == (409, "cannot_simulate")
