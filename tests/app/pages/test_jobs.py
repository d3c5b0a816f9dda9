"""Jobs on pages: filters and keyset pages, the submit form, verbs, the job's own page."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.config.images import BUILT_IN, load_catalogue
from controlplane.logstore.reader import log_path
from controlplane.models import Cluster, User
from dashboards.pages.job_form import Unreadable, to_body, to_fields
from dashboards.pages.jobs import TABS
from jobs.images import known_images
from jobs.kinds.spec import parse_spec, to_edge
from jobs.models import Job
from tests.app.pages.conftest import Yard
from tests.builders import make_job

Visit = Callable[[User | None], Client]
FORM = {"name": "new", "project": "team-a", "kind": "train", "gpus": "1", "image": "quickstart"}


def names(client: Client, query: str = "") -> list[str]:
    return [job["name"] for job, _cells in client.get(f"/jobs{query}").context["page"].table.rows]


def test_filters(yard: Yard, visit: Visit):
    client = visit(yard.cast.ana)
    assert names(client) == ["queued", "running", "finished"]
    assert names(client, "?state=running") == ["running"]
    assert names(client, "?state=unfinished") == ["queued", "running"]
    assert names(client, "?state=finished") == ["finished"]
    assert names(client, "?q=UE") == ["queued"]
    assert names(client, "?user=ben") == []
    assert names(client, "?kind=interactive") == []
    assert names(client, "?project=team-b") == []
    assert "Nothing matches" in client.get("/jobs?user=ben").content.decode()


def test_queries_do_not_grow_with_jobs(yard: Yard, visit: Visit):
    client = visit(yard.cast.ana)

    def count(path: str) -> int:
        client.get(path)
        with CaptureQueriesContext(connection) as queries:
            assert client.get(path).status_code == 200
        return len(queries)

    paths = ("/jobs", "/projects/team-a", "/users/ana", f"/jobs/{yard.running.pk}")
    before = [count(path) for path in paths]
    for number in range(10):
        make_job(yard.cast.project, f"more-{number}", yard.cast.ana, gpus=0.25)
    yard.plant.settle()
    assert [count(path) for path in paths] == before


def test_submit(yard: Yard, visit: Visit):
    form = FORM | {
        "command": "python train.py --name 'a b'",
        "env": "A=1\nB=x=y",
        "ports": "8888, 6006",
        "gpus": "0.5",
    }
    answer = visit(yard.cast.ben).post(
        "/new/job", form | {"max_runtime_seconds": "2h", "labels": "team=vision"}
    )
    job = Job.objects.get(name="new")
    assert answer["Location"] == f"/jobs/{job.pk}"
    assert job.user == yard.cast.ben
    spec = to_edge(job.spec)
    assert spec["command"] == ["python", "train.py", "--name", "a b"]
    assert (spec["env"], spec["labels"], spec["gpus"]) == ({"A": "1", "B": "x=y"}, {"team": "vision"}, 0.5)
    assert [port["port"] for port in spec["ports"]] == [8888, 6006]
    assert spec["max_runtime_seconds"] == 7200


def test_an_elastic_job_shows_its_size_and_its_bounds(yard: Yard, visit: Visit):
    bounds = {"workers": "3", "min_workers": "2", "max_workers": "8"}
    client = visit(yard.cast.ben)
    client.post("/new/job", FORM | bounds | {"kind": "elastic", "gpus": "0"})
    job = Job.objects.get(name="new")
    assert job.spec | {"min_workers": 2, "max_workers": 8} == job.spec
    page = client.get(f"/jobs/{job.pk}").content.decode()
    assert "3 workers (2–8)" in page
    preview = client.post("/new/job/preview.json", FORM | bounds | {"kind": "elastic"}).json()
    assert preview["command"] == (
        "yard submit-elastic new -p team-a -i quickstart -g 1 --workers 3 --min-workers 2 --max-workers 8"
    )
    yard.plant.settle()
    Job.objects.filter(pk=job.pk).update(pods_started=2)
    assert "2 of 3 workers (2–8)" in client.get(f"/jobs/{job.pk}").content.decode()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"kind": "elastic", "workers": "2", "min_workers": "3"}, "min_workers"),
        ({"kind": "elastic", "workers": "2", "max_workers": "many"}, "max_workers"),
        ({"name": "Not A Label"}, "name"),
        ({"name": "running"}, "name"),
        ({"gpus": "0.33333"}, "gpus"),
        ({"gpus": "-1"}, "gpus"),
        ({"gpus": "9"}, "gpus"),
        ({"gpus": "many"}, "gpus"),
        ({"gpus": "1e999"}, "gpus"),
        ({"gpus": "nan"}, "gpus"),
        ({"gpus": "0.5", "workers": "2"}, "workers"),
        ({"gpu_memory_mib": "1000"}, "gpu_memory_mib"),
        ({"kind": "wonder"}, "kind"),
        ({"command": "echo 'open"}, "command"),
        ({"env": "no equals sign"}, "env"),
        ({"env": "1A=x"}, "env"),
        ({"ports": "http"}, "ports"),
        ({"ports": "0"}, "ports"),
        ({"max_runtime_seconds": "soon"}, "max_runtime_seconds"),
        ({"priority": "1001"}, "priority"),
        ({"project": "team-b"}, "project"),
        ({"project": "nowhere"}, "project"),
    ],
)
def test_refusals_stand_at_their_fields(yard: Yard, visit: Visit, changes: dict[str, str], field: str):
    count = Job.objects.count()
    answer = visit(yard.cast.ana).post("/new/job", FORM | changes)
    assert answer.status_code == 400
    assert field in answer.context["errors"]
    page = answer.content.decode()
    assert f'data-error="{field}">' in page  # shown, not hidden
    assert Job.objects.count() == count
    if field != "project":
        preview = visit(yard.cast.ana).post("/new/job/preview.json", FORM | changes).json()
        assert field in preview["errors"]


def test_a_refused_line_is_named_with_its_number(yard: Yard, visit: Visit):
    wrong = FORM | {"env": "A=1\n\nno equals sign", "secret_env": "B=of:key\nC=none"}
    errors = visit(yard.cast.ana).post("/new/job", wrong).context["errors"]
    assert errors["env"] == "Line 3, no equals sign: Write one NAME=VALUE a line."
    assert errors["secret_env"] == "Line 2, C=none: Write one NAME=SECRET:KEY a line."


def test_everything_that_is_wrong_is_said_at_once(yard: Yard, visit: Visit):
    wrong = FORM | {"name": "", "gpus": "-1", "ports": "http", "priority": "1001", "project": "nowhere"}
    answer = visit(yard.cast.ana).post("/new/job", wrong)
    assert {"name", "gpus", "ports", "priority", "project"} <= answer.context["errors"].keys()
    page = answer.content.decode()
    assert '<details class="more" open>' in page
    assert answer.context["command"].startswith("yard submit NAME -p nowhere -i quickstart")
    preview = visit(yard.cast.ana).post("/new/job/preview.json", wrong).json()
    assert preview["hint"] in preview["errors"].values()


def test_an_empty_form_is_no_refusal(yard: Yard, visit: Visit):
    answer = visit(yard.cast.ana).get("/new/job")
    page = answer.content.decode()
    assert answer.context["errors"] == {}
    assert "Fill in a name" in answer.context["hint"]
    assert '<details class="more">' in page
    assert "-p team-a" in answer.context["command"]


def test_an_image_that_nobody_knows_is_said_before_it_is_sent(yard: Yard, visit: Visit):
    filled = FORM | {"image": "registry.example/mine:1", "command": "true"}
    preview = visit(yard.cast.ana).post("/new/job/preview.json", filled).json()
    assert "registry.example/mine:1 is not in the image catalogue" in preview["hint"]
    assert "catalogue" not in visit(yard.cast.ana).post("/new/job/preview.json", FORM).json()["hint"]


def test_images_to_suggest_are_those_of_the_catalogue_and_those_that_worked(yard: Yard, settings, tmp_path):
    settings.STATE_DIR = tmp_path
    (tmp_path / "images.toml").write_text('[images.ours]\ncommand = ["true"]\n')
    Job.objects.filter(pk=yard.finished.pk).update(
        state="succeeded", spec=yard.finished.spec | {"image": "worked"}
    )
    Job.objects.filter(pk=yard.running.pk).update(
        state="failed", spec=yard.running.spec | {"image": "quikstart"}
    )
    assert "worked" not in known_images(Job.objects.all()), "without containers a name alone runs nothing"
    Cluster.objects.update(engine="kubernetes")
    known = known_images(Job.objects.all())
    built_in = [image.name for image in load_catalogue(BUILT_IN).images]
    assert known[: len(built_in) + 2] == [*built_in, "ours", "worked"]
    assert "quikstart" not in known
    for broken in ("[images", "[images.ours]\ncommand = 5"):
        (tmp_path / "images.toml").write_text(broken)
        assert "ours" not in known_images(Job.objects.all())


def test_a_viewer_may_not_submit(yard: Yard, visit: Visit):
    answer = visit(yard.cast.vera).post("/new/job", FORM)
    assert answer.status_code == 400
    assert "member" in answer.context["errors"]["project"]
    assert not Job.objects.filter(name="new").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "start at once: the project would hold 3 of its quota of 4"),
        ({"gpus": "3"}, "idle GPUs above the quota of 4"),
        ({"gpus": "8", "workers": "2"}, "would wait: free GPUs: 14"),
        ({"gpus": "8", "kind": "interactive"}, "stays inside the quota of 4"),
        ({"gpus": "0"}, "asks for no GPU"),
    ],
)
def test_the_form_says_what_to_expect(yard: Yard, visit: Visit, changes: dict[str, str], words: str):
    preview = visit(yard.cast.ana).post("/new/job/preview.json", FORM | changes).json()
    assert preview["errors"] == {}
    assert words in preview["hint"]
    assert preview["command"].startswith("yard submit new -p team-a -i quickstart")
    assert not Job.objects.filter(name="new").exists()


def test_clone_fills_the_form(yard: Yard, visit: Visit):
    body = {
        "env": {"A": "1"},
        "ports": [{"port": 80, "service_type": "ingress"}],
        "command": ["sh", "-c", "echo 'x y'"],
        "secret_env": {"KEY": {"secret": "wandb", "key": "token"}},
        "image_pull_secrets": ["registry"],
        "extra_resources": {"vpc.amazonaws.com/efa": "4"},
    }
    job = make_job(yard.cast.project, "original", yard.cast.ana, gpus=0.5, **body)
    job.refresh_from_db()
    client = visit(yard.cast.ben)
    raw = client.get(f"/new/job?clone={job.pk}").context["raw"]
    assert raw["name"] == "original-2"
    assert client.post("/new/job", raw).status_code == 302
    copy = Job.objects.get(name="original-2")
    assert {**copy.spec, "name": ""} == {**job.spec, "name": ""}


def test_form_and_submission_are_each_others_way_back():
    body = {
        "name": "x", "kind": "train", "image": "quickstart", "command": ["a", "b c"], "env": {"A": "1=2"}, "gpus": 2.0,
        "cpus": 0.5, "memory_mib": 512, "workers": 3, "priority": 7, "retries": 1, "labels": {"k": "v"},
        "ports": [{"port": 8888, "service_type": "ingress"}], "max_runtime_seconds": 5400, "large_shm": True,
        "preemptible": False, "working_dir": "/w", "node_pool": "default", "image_pull_secrets": ["one", "two"],
        "secret_env": {"KEY": {"secret": "wandb", "key": "a.b"}}, "extra_resources": {"vpc.amazonaws.com/efa": "4"},
    }  # fmt: skip
    assert parse_spec(to_body(to_fields(body))) == parse_spec(body)


def test_every_unreadable_field_is_named():
    with pytest.raises(Unreadable) as refusal:
        to_body(
            {"command": "'", "ports": "x", "env": "x", "ttl_seconds_after_finished": "x", "secret_env": "A=b"}
        )
    assert set(refusal.value.errors) == {
        "command",
        "ports",
        "env",
        "ttl_seconds_after_finished",
        "secret_env",
    }


def test_stop_suspend_resume_delete_retry(yard: Yard, visit: Visit):
    client = visit(yard.cast.ben)
    yard.queued.delete()  # or it takes what the others give back

    def do(job: Job, verb: str) -> str:
        answer = client.post(f"/jobs/{job.pk}/do/{verb}", follow=True)
        yard.plant.settle()
        return " ".join(str(message) for message in answer.context["messages"])

    assert "releases its GPUs" in do(yard.running, "suspend")
    assert yard.plant.states()["running"] == "suspended"
    assert "Queued again" in do(yard.running, "resume")
    assert yard.plant.states()["running"] == "running"
    assert "Stopping" in do(yard.running, "stop")
    assert yard.plant.states()["running"] == "stopped"
    assert "only a suspended job" in do(yard.running, "resume")
    assert "Submitted again" in do(yard.running, "retry")
    assert Job.objects.filter(name="running").count() == 2
    assert "unfinished job" in do(yard.running, "retry")  # its name is taken by the first retry
    assert "Deleted" in do(yard.finished, "delete")
    assert not Job.objects.filter(pk=yard.finished.pk).exists()


def test_a_queued_job_explains_itself(yard: Yard, visit: Visit):
    answer = visit(yard.cast.ana).get(f"/jobs/{yard.queued.pk}")
    page = answer.content.decode()
    assert "Why it waits" in page
    assert "GPUs compared" in page
    assert answer.context["job"]["status"]["reason"]["message"] in page
    assert dict(answer.context["explain"]["numbers"])["asked for"] == "16"


def test_a_finished_job_does_not_promise_curves_that_it_never_reported(yard: Yard, visit: Visit):
    """A job that succeeded kept "Not reported yet" for an accuracy that it never printed."""
    progress = {"step": 1, "total_steps": 1, "loss": 0.5}
    Job.objects.filter(pk=yard.finished.pk).update(progress=progress, attempt=1)
    for tab in ("", "/metrics"):
        page = visit(yard.cast.vera).get(f"/jobs/{yard.finished.pk}{tab}").content.decode()
        assert "Not reported." in page
        assert "Not reported yet." not in page


def test_curves_without_progress_say_so_in_their_place(yard: Yard, visit: Visit):
    for tab, curves in (("", 3), ("/metrics", 4)):
        page = visit(yard.cast.vera).get(f"/jobs/{yard.running.pk}{tab}").content.decode()
        assert page.count("data-keep data-empty") == curves
        assert "It has printed no progress yet" in page
    progress = {"step": 1, "total_steps": 2, "loss": 0.5}
    Job.objects.filter(pk=yard.running.pk).update(progress=progress)
    page = visit(yard.cast.vera).get(f"/jobs/{yard.running.pk}/metrics").content.decode()
    assert page.count("data-keep data-empty") == 3  # it reports no accuracy, and nothing has measured it


def test_why_a_job_failed_is_said_once(yard: Yard, visit: Visit):
    why = "Its image is not there."
    Job.objects.filter(pk=yard.running.pk).update(state="failed", reason="image_missing", message=why)
    page = visit(yard.cast.vera).get(f"/jobs/{yard.running.pk}").content.decode()
    assert page.count(why) == 1


def test_the_log_as_a_file_and_curves_from_it(yard: Yard, visit: Visit, settings: Any, tmp_path: Path):
    settings.LOG_DIR = tmp_path
    path = log_path(tmp_path, str(yard.running.pk), 1, 0)
    path.parent.mkdir(parents=True)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    with path.open("w") as log:
        log.write("1 1767225600000 o <script>alert(1)</script>\n")
        for step in range(1, 4):
            at = int((start + timedelta(seconds=step)).timestamp() * 1000)
            log.write(
                f'{step + 1} {at} o {{"trainyard": 1, "step": {step}, "loss": {1 / step}, "accuracy": 0.5}}\n'
            )
    client = visit(yard.cast.vera)
    answer = client.get(f"/jobs/{yard.running.pk}/log.txt")
    text = b"".join(answer.streaming_content).decode()
    assert text.startswith("<script>alert(1)</script>\n")
    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["Content-Disposition"].startswith("attachment")
    trace = client.get(f"/charts/jobs/{yard.running.pk}/loss.json").json()["figure"]["data"][0]
    assert (trace["x"], trace["y"]) == ([1, 2, 3], [1, 0.5, pytest.approx(1 / 3)])


def test_every_tab_says_when_the_cluster_does_not_answer(yard: Yard, visit: Visit):
    client, here = visit(yard.cast.ben), f"/jobs/{yard.running.pk}"
    said = "Cluster memory does not answer. The data below was read before."
    progress = {"step": 1, "total_steps": 2, "eta_seconds": 60}
    Job.objects.filter(pk=yard.running.pk).update(progress=progress)
    assert said not in (page := client.get(here).content.decode())
    assert "Finishes in" in page
    Cluster.objects.update(is_reachable=False)
    for tab in set(TABS) - {"workers"}:  # of elastic jobs alone
        assert said in client.get(here if tab == "overview" else f"{here}/{tab}").content.decode()
    assert "Finishes in" not in client.get(here).content.decode()
    assert said not in client.get(f"/jobs/{yard.finished.pk}").content.decode()  # all of it is known


def test_the_further_fields_of_a_copied_job_are_open_only_if_one_is_unusual(yard: Yard, visit: Visit):
    client = visit(yard.cast.ben)
    usual = make_job(yard.cast.project, "usual", yard.cast.ana)
    assert '<details class="more">' in client.get(f"/new/job?clone={usual.pk}").content.decode()
    urgent = make_job(yard.cast.project, "urgent", yard.cast.ana, priority=70)
    assert '<details class="more" open>' in client.get(f"/new/job?clone={urgent.pk}").content.decode()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, [8888]), ({"ports": "9000"}, [9000]), ({"command": "sleep 9"}, []), ({"image": "ubuntu"}, [])],
)
def test_an_image_that_serves_a_port_is_submitted_with_one(yard: Yard, visit: Visit, fields, expected):
    filled = FORM | {"kind": "interactive", "image": "jupyter", "command": ""} | fields
    visit(yard.cast.ana).post("/new/job", filled)
    assert [one["port"] for one in Job.objects.get(name=FORM["name"]).spec["ports"]] == expected
