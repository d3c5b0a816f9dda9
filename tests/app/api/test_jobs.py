"""Jobs over REST: the shape, the verbs, and what a job tells of itself."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import timezone

from controlplane.logstore.reader import log_path
from controlplane.models import Cluster, Event, Node, Sample
from controlplane.telemetry.rollup import STEPS
from jobs.models import Allocation, Job, Pod
from jobs.queries import job_detail, job_rows
from tests.app.api.client import Api
from tests.app.api.placing import place
from tests.builders import make_job
from tests.cast import Cast

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
JOBS = "projects/team-a/jobs"


def test_a_submitted_job_is_the_spec_with_defaults_and_a_status(api: AsPerson):
    sent = {
        "name": "hyper1",
        "kind": "train",
        "gpus": 0.25,
        "cpus": 1.5,
        "env": {"A": "1"},
        "labels": {"team": "x"},
    }
    made = api("ben").post(JOBS, sent)
    assert made.status == 201
    job = made.body
    assert job | sent == job
    assert (job["project"], job["user"], job["workers"], job["priority"], job["preemptible"]) == (
        "team-a",
        "ben",
        1,
        50,
        True,
    )
    assert job["status"] == {
        "state": "queued",
        "is_reachable": True,
        "reason": {
            "code": "just_submitted",
            "message": "Submitted; the scheduler considers it within a second.",
            "details": {},
        },
        "attempt": 0,
        "allocated_gpus": 0,
        "workers": None,
        "queue_position": None,
        "start_estimate": None,
        "started_at": None,
        "finished_at": None,
        "runtime_seconds": None,
        "exit_code": None,
        "gpu_utilization": None,
        "service_urls": [],
        "progress": {},
        "pods": [],
    }
    assert api("ben").get(f"jobs/{job['id']}").body == job
    assert api("ben").get("jobs").body["results"] == [job]
    spec = api("ben").get(f"jobs/{job['id']}/spec").body
    assert spec == {name: value for name, value in job.items() if name in spec}
    assert api("ben").post("projects/team-b/jobs", sent).status == 404
    assert api("ben").post("projects/none/jobs", sent).status == 404


def test_lists_hold_only_the_jobs_of_visible_projects(api: AsPerson, cast: Cast, job: Job):
    make_job(cast.other, "theirs", cast.chi)
    for person, names in {
        "ben": ["hyper1"],
        "vera": ["hyper1"],
        "chi": ["theirs"],
        "root": ["theirs", "hyper1"],
    }.items():
        assert [row["name"] for row in api(person).get("jobs").body["results"]] == names
    assert api("chi").get("jobs?project=team-a").body["results"] == []
    assert api("chi").get("jobs?name=hyper1&user=ben").body["results"] == []


def test_a_running_job_shows_its_pods_devices_and_services(api: AsPerson, cast: Cast):
    job = make_job(cast.project, "hyper1", cast.ben, gpus=1, workers=2, ports=[{"port": 8888}])
    place(job, ranks=2)
    began = timezone.now() - timedelta(seconds=90)
    Job.objects.filter(pk=job.pk).update(started_at=began, progress={"step": 40}, gpu_utilization=0.97)
    for shown in (api("ben").get(f"jobs/{job.pk}").body, api("ben").get("jobs").body["results"][0]):
        status = shown["status"]
        assert (status["state"], status["allocated_gpus"], status["progress"]) == ("running", 2, {"step": 40})
        assert 90 <= status["runtime_seconds"] <= (timezone.now() - began).total_seconds()
        assert status["service_urls"] == [f"http://{job.pk}-8888.localhost:{settings.PORT}/"]
        assert status["reason"]["details"] == {"project": "team-a", "quota_gpus": 4}
        first, second = status["pods"]
        assert (first["name"], first["rank"], first["node"]) == ("hyper1-1-0", 0, "dgx1-1")
        assert first["devices"] == [{"index": 0, "share": 1.0}]
        assert (second["name"], second["devices"]) == ("hyper1-1-1", [{"index": 1, "share": 1.0}])


def test_a_preempted_job_that_waits_again_shows_no_pods(api: AsPerson, job: Job):
    for pod in place(job):
        Allocation.objects.filter(pod=pod).update(released_at=timezone.now())
        Pod.objects.filter(pk=pod.pk).update(released_at=timezone.now(), state="stopped")
    Job.objects.filter(pk=job.pk).update(
        state="queued", reason="preempted", details={"by_project": "team-b", "by_job": "x"}
    )
    shown = api("ben").get(f"jobs/{job.pk}").body["status"]
    assert (shown["pods"], shown["reason"]["code"]) == ([], "preempted")
    assert shown["reason"]["details"]["by_project"] == "team-b"
    assert len(api("ben").get(f"jobs/{job.pk}/pods").body["results"]) == 1


def test_a_job_tells_whether_its_cluster_answers(api: AsPerson, job: Job):
    Cluster.objects.update(is_reachable=False)
    ben = api("ben")
    detail, listed = ben.get(f"jobs/{job.pk}").body, ben.get("jobs").body["results"][0]
    assert detail["status"]["is_reachable"] is listed["status"]["is_reachable"] is False
    assert ben.get(f"jobs/{job.pk}/explain").body["is_reachable"] is False


def test_rows_and_detail_are_one_shape(cast: Cast, job: Job):
    place(job)
    Job.objects.filter(pk=job.pk).update(finished_at=timezone.now())
    job.refresh_from_db()
    assert job_rows(Job.objects.filter(pk=job.pk)) == [job_detail(job)]


def test_stop_suspend_resume_and_delete(api: AsPerson, cast: Cast, job: Job):
    ben = api("ben")
    assert ben.post(f"jobs/{job.pk}/suspend").body["status"]["state"] == "suspended"
    assert ben.post(f"jobs/{job.pk}/resume").body["status"]["state"] == "queued"
    assert ben.post(f"jobs/{job.pk}/resume").code == "not_suspended"
    assert ben.post(f"jobs/{job.pk}/stop").body["status"]["state"] == "stopped"
    assert ben.post(f"jobs/{job.pk}/stop").status == 200
    assert ben.post(f"jobs/{job.pk}/suspend").code == "job_finished"
    assert ben.delete(f"jobs/{job.pk}").status == 204
    assert ben.get(f"jobs/{job.pk}").status == 404
    running = make_job(cast.project, "runs", cast.ben)
    place(running)
    answer = ben.delete(f"jobs/{running.pk}")
    assert (answer.status, answer.body["status"]["state"]) == (202, "stopping")
    assert ben.get(f"jobs/{running.pk}").status == 200


def test_only_priority_and_labels_can_be_changed(api: AsPerson, job: Job):
    ben = api("ben")
    changed = ben.patch(f"jobs/{job.pk}", {"priority": 7, "labels": {"a": "b"}}).body
    assert (changed["priority"], changed["labels"]) == (7, {"a": "b"})
    assert ben.get(f"jobs/{job.pk}").body == changed
    assert ben.patch(f"jobs/{job.pk}", {"gpus": 2}).pointers == ["/gpus"]
    assert ben.patch(f"jobs/{job.pk}", {"priority": None}).pointers == ["/priority"]
    assert ben.patch(f"jobs/{job.pk}", {}).status == 200


def test_a_clone_is_the_same_job_under_another_name(api: AsPerson, cast: Cast):
    ben = api("ben")
    job = make_job(cast.project, "hyper1", cast.ana, gpus=0.5, env={"A": "1"}, retries=2)
    first = ben.post(f"jobs/{job.pk}/clone").body
    second = ben.post(f"jobs/{job.pk}/clone").body
    assert (first["name"], second["name"], first["user"]) == ("hyper1-2", "hyper1-3", "ben")
    source = ben.get(f"jobs/{job.pk}/spec").body
    assert ben.get(f"jobs/{first['id']}/spec").body == source | {"name": "hyper1-2"}
    assert ben.post(f"jobs/{job.pk}/clone", {"name": "hyper1"}).code == "name_in_use"
    cpu = make_job(cast.project, "b" * 63, cast.ben, gpus=0)
    assert len(ben.post(f"jobs/{cpu.pk}/clone").body["name"]) <= 63


def test_explain_tells_numbers_and_hides_names_of_others(api: AsPerson, cast: Cast, job: Job):
    hidden = make_job(cast.other, "secret-name", cast.chi)
    ours = make_job(cast.project, "first", cast.ana)
    details = {
        "project": "team-a",
        "request_milli_gpus": 2000,
        "free_milli_gpus": 500,
        "quota_milli_gpus": 4000,
        "ahead": [str(hidden.pk), str(ours.pk)],
        "holders": [{"project": "team-b", "allocated_milli_gpus": 8000, "over_quota_milli_gpus": 6000}],
        "total_milli_gpus": 16000,
    }
    Job.objects.filter(pk=job.pk).update(reason="cluster_full", message="", details=details, queue_position=3)
    answer = api("ben").get(f"jobs/{job.pk}/explain").body
    assert (answer["reason"]["code"], answer["queue_position"]) == ("cluster_full", 3)
    assert answer["start_estimate"]["earliest"] <= answer["start_estimate"]["latest"]
    assert "0.5 of 16" in answer["reason"]["message"]
    assert "ahead" not in answer["reason"]["details"]
    assert answer["shortage"] == {
        "request_gpus": 2,
        "free_gpus": 0.5,
        "quota_gpus": 4,
        "total_gpus": 16,
        "missing_gpus": 1.5,
    }
    assert answer["holders"] == [{"project": "team-b", "allocated_gpus": 8, "over_quota_gpus": 6}]
    assert answer["would_start_if"] == []  # the cluster has no nodes, so no change helps
    assert [(row["project"], row["name"], row["id"]) for row in answer["ahead"]] == [
        ("team-b", None, None),
        ("team-a", "first", str(ours.pk)),
    ]
    assert [row["name"] for row in api("root").get(f"jobs/{job.pk}/explain").body["ahead"]] == [
        "secret-name",
        "first",
    ]
    Job.objects.filter(pk=job.pk).update(state="running")
    assert api("ben").get(f"jobs/{job.pk}/explain").body["shortage"] is None


@pytest.fixture
def log(job: Job) -> Path:
    """The log of rank 0 of the first attempt: 30 lines, a gap and the end."""
    place(job)
    path = log_path(settings.LOG_DIR, str(job.pk), 1, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [b"%d %d o line %d" % (n, 1_700_000_000_000 + n, n) for n in range(1, 31)]
    records += [
        b"31 1700000000031 e <script>alert(1)</script> \xff",
        b"31 1700000000032 g dropped 5 bytes",
        b"31 1700000000033 x",
    ]
    path.write_bytes(b"\n".join(records) + b"\n")
    return path


def test_logs_page_by_offset_tail_and_search(api: AsPerson, job: Job, log: Path):
    ben, base = api("ben"), f"jobs/{job.pk}/logs"
    lines, offset, pages = [], 0, 0
    while True:
        page = ben.get(f"{base}?offset={offset}&limit=8").body
        lines += page["lines"]
        pages += 1
        if page["next_offset"] == offset or page["complete"]:
            break
        offset = page["next_offset"]
    assert [line["n"] for line in lines] == list(range(1, 32))
    assert pages >= 4
    assert lines[0] == {
        "n": 1,
        "time": "2023-11-14T22:13:20.001000Z",
        "stream": "stdout",
        "text": "line 1",
        "partial": False,
    }
    assert (lines[-1]["stream"], lines[-1]["text"]) == ("stderr", "<script>alert(1)</script> \ufffd")
    assert [line["n"] for line in ben.get(f"{base}?tail=2").body["lines"]] == [30, 31]
    assert [line["n"] for line in ben.get(f"{base}?search=LINE+1").body["lines"]] == [1, *range(10, 20)]
    assert ben.get(f"{base}?tail=2&search=x").code == "tail_or_search"
    assert ben.get(f"{base}?offset=999999").body["lines"] == []


def test_logs_of_what_never_was_are_not_found_and_of_what_waits_are_empty(
    api: AsPerson, cast: Cast, job: Job
):
    ben = api("ben")
    assert ben.get(f"jobs/{job.pk}/logs").body == {
        "rank": 0,
        "lines": [],
        "next_offset": 0,
        "complete": False,
        "gaps": [],
    }
    place(job)
    for query in ("rank=1", "attempt=2", f"rank={(1 << 31) - 1}"):
        assert ben.get(f"jobs/{job.pk}/logs?{query}").status == 404
    assert ben.get(f"jobs/{job.pk}/logs?rank=0&attempt=1").status == 200
    assert ben.get(f"jobs/{job.pk}/logs?rank=-1").code == "bad_rank"
    assert ben.get(f"jobs/{job.pk}/logs?attempt=../../etc").code == "bad_attempt"


def test_the_log_of_what_ended_before_it_started_is_complete(api: AsPerson, cast: Cast, job: Job):
    place(job)
    path = f"jobs/{job.pk}/logs?attempt=1&rank=0"
    Pod.objects.filter(job=job).update(started_at=None)
    assert not api("ben").get(path).body["complete"]
    Pod.objects.filter(job=job).update(released_at=timezone.now())
    assert api("ben").get(path).body == {
        "rank": 0,
        "lines": [],
        "next_offset": 0,
        "complete": True,
        "gaps": [],
    }
    Pod.objects.filter(job=job).update(started_at=timezone.now())
    assert not api("ben").get(path).body["complete"]  # it may have printed; the copier is not done

    never = make_job(cast.project, "never", cast.ben)
    assert not api("ben").get(f"jobs/{never.pk}/logs").body["complete"]
    Job.objects.filter(pk=never.pk).update(state="stopped")
    assert api("ben").get(f"jobs/{never.pk}/logs").body["complete"]


def test_a_damaged_log_is_still_an_answer(api: AsPerson, job: Job, log: Path):
    log.write_bytes(b"1 99999999999999999999 o text\nnonsense\n\n2 5 o more\n\x00\xff\n")
    reply = api("ben").get(f"jobs/{job.pk}/logs")
    assert reply.status == 200
    assert [line["text"] for line in reply.body["lines"]] == ["text", "more"]
    assert reply.body["gaps"]


def test_what_stands_in_a_logs_place_is_refused_and_noted(api: AsPerson, job: Job, log: Path, caplog):
    log.unlink(missing_ok=True)
    log.mkdir()
    for query in ("", "?tail=5"):
        reply = api("ben").get(f"jobs/{job.pk}/logs{query}")
        assert (reply.status, reply.code) == (409, "log_unreadable")
    assert "not a regular file" in caplog.text


def test_metrics_are_those_of_the_pods_that_run(api: AsPerson, job: Job):
    place(job)
    assert api("ben").get(f"jobs/{job.pk}/metrics").body == {
        "gpu_utilization": None,
        "progress": {},
        "pods": [{"rank": 0, "gpu_utilization": 0.5, "gpu_memory_mib": 1024}],
    }


def test_events_are_newest_first_and_read_on_from_a_number(api: AsPerson, cast: Cast, job: Job):
    ben = api("ben")
    ben.post(f"jobs/{job.pk}/stop")
    kinds = [row["kind"] for row in ben.get(f"jobs/{job.pk}/events").body["results"]]
    assert kinds == ["job.stopped", "job.submitted"]
    seq = ben.get("events?kind=job.submitted").body["results"][0]["seq"]
    later = ben.get(f"events?since={seq}&ordering=seq&job={job.pk}").body["results"]
    assert [(row["kind"], row["project"], row["actor"]) for row in later] == [
        ("job.stopped", "team-a", "ben")
    ]


def test_events_of_others_and_of_accounts_are_not_told(api: AsPerson, cast: Cast):
    make_job(cast.other, "theirs", cast.chi)
    api("root").post("nodes/dgx1-1/cordon")
    api("root").post("users", {"username": "dan"})
    seen = api("ben").get("events").body["results"]
    assert [row["kind"] for row in seen] == ["node.cordoned"]
    assert seen[0]["node"] == "dgx1-1"
    assert api("ben").get("events?project=team-b").body["results"] == []
    kinds = {row["kind"] for row in api("root").get("events").body["results"]}
    assert {"user.created", "job.submitted", "token.issued"} <= kinds
    assert len(api("root").get("events?node=dgx1-1,dgx1-2").body["results"]) == 1
    assert Event.objects.filter(node_id=Node.objects.get(name="dgx1-1").pk).count() == 1


def test_the_audit_log_tells_before_and_after(api: AsPerson):
    api("root").patch("projects/team-a", {"gpu_quota": 6}, x_request_id="edit-1")
    entry = api("root").get("audit?verb=project.edit&object_name=team-a").body["results"][0]
    assert (entry["actor"], entry["request_id"]) == ("root", "edit-1")
    assert (entry["before"]["gpu_quota_milli"], entry["after"]["gpu_quota_milli"]) == (4000, 6000)


def test_the_overview_shows_only_what_one_may_see(api: AsPerson, cast: Cast):
    place(make_job(cast.project, "ours", cast.ben))
    place(make_job(cast.other, "theirs", cast.chi))
    make_job(cast.other, "waits", cast.chi)
    ben, root = api("ben").get("telemetry/overview").body, api("root").get("telemetry/overview").body
    assert (ben["gpus"], ben["gpus_allocated"], ben["jobs_running"], ben["jobs_queued"]) == (16, 2, 2, 1)
    assert len(ben["running"]) == 1
    assert ben["queued"] == []
    assert (len(root["running"]), len(root["queued"])) == (2, 1)
    assert "theirs" not in json.dumps(ben)


def test_series_take_one_metric_and_a_sound_range(api: AsPerson, cast: Cast, job: Job):
    ben = api("ben")
    assert ben.get("telemetry/series?metric=gpus_allocated&by=project").body["series"] == []
    for query, code in [
        ("", "bad_metric"),
        ("metric=gpus_allocated,jobs_running", "bad_metric"),
        ("metric=temperature", "bad_metric"),
        ("metric=gpus_allocated&by=planet", "bad_by"),
        ("metric=gpus_allocated&from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "bad_from"),
        ("metric=gpus_allocated&from=0001-01-01T00:00:00Z", "bad_from"),
        ("metric=gpus_allocated&to=0001-01-01T00:00:00Z", "bad_to"),
        ("metric=gpus_allocated&step=0", "bad_step"),
        ("metric=gpu_utilization&by=job", "subject_required"),
        ("metric=gpu_utilization&by=job&subject=x", "bad_subject"),
    ]:
        assert ben.get(f"telemetry/series?{query}").code == code, query


def test_the_line_of_a_job_is_seen_by_its_members_only(api: AsPerson, job: Job):
    now = timezone.now().replace(second=0, microsecond=0)
    spans = [now - timedelta(minutes=number) for number in (5, 4, 3)]
    Sample.objects.bulk_create(
        Sample(
            metric="gpu_utilization",
            by="job",
            subject=str(job.pk),
            step_seconds=step,
            at=at,
            minimum=0.5,
            maximum=0.5,
            total=0.5,
        )
        for at in spans
        for step in STEPS
    )
    path = f"telemetry/series?metric=gpu_utilization&by=job&subject={job.pk}"
    assert [line["subject"] for line in api("vera").get(path).body["series"]] == [str(job.pk)]
    assert api("chi").get(path).body["series"] == []


def test_an_image_that_nobody_knows_is_told_where_its_command_runs_without_it(api: AsPerson):
    def warnings(**fields: Any) -> list[str]:
        reply = api("ben").post("projects/team-a/jobs", {"kind": "train", **fields})
        assert reply.status == 201
        return reply.body.get("warnings", [])

    [told] = warnings(name="a", image="registry.example/mine:1", command=["true"])
    assert told.startswith(
        "registry.example/mine:1 is not in the image catalogue, and memory runs no containers"
    )
    assert warnings(name="b", image="registry.example/python:3", command=["true"]) == []
    assert warnings(name="c", command=["true"]) == []
    refused = api("ben").post(
        "projects/team-a/jobs", {"kind": "train", "name": "d", "image": "registry.example/mine:1"}
    )
    assert (refused.status, refused.body["errors"][0]["pointer"]) == (400, "/image")
    assert (
        "is not in the image catalogue. Give a command, or one of the images: quickstart,"
        in refused.body["detail"]
    )
    Cluster.objects.update(engine="kubernetes")
    assert warnings(name="e", image="registry.example/mine:1", command=["true"]) == []


def test_images_to_submit_with_are_the_catalogues_and_those_of_visible_jobs(api: AsPerson, cast: Cast):
    sent = {"name": "a", "kind": "train", "image": "registry.example/ours:1", "command": ["true"]}
    job = api("ben").post(JOBS, sent).body
    Job.objects.filter(pk=job["id"]).update(state="succeeded")

    def names(person: str) -> list[str]:
        return [row["name"] for row in api(person).get("images").body["results"]]

    assert names("vera")[0] == "quickstart"
    assert "registry.example/ours:1" not in names("vera"), "without containers it is no image"
    Cluster.objects.update(engine="kubernetes")
    assert "registry.example/ours:1" in names("vera")
    assert "registry.example/ours:1" not in names("chi")
