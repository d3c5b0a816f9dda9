"""How a job got where it is: the steps of its start, attempts and how far each came, and what a stop would cost."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from controlplane.logstore.reader import log_path
from controlplane.models import User
from dashboards.reads import job_story as story
from dashboards.reads.job import FIGURES, curves, figures
from jobs.models import Allocation, Attempt, Job, Pod
from jobs.queries import job_detail
from tests.app.pages.conftest import Yard
from tests.builders import make_job

Visit = Callable[[User | None], Client]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def log(logs: Path, job: Job, attempt: int, *lines: str, at: datetime = NOW) -> None:
    path = log_path(logs, str(job.pk), attempt, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp = int(at.timestamp() * 1000)
    path.write_text("".join(f"{number} {stamp} o {line}\n" for number, line in enumerate(lines, 1)))


def shown(job: Job) -> list[tuple[str, str, str]]:
    job.refresh_from_db()
    return [(step["name"], step["state"], step["text"]) for step in story.start_steps(job)]


@pytest.fixture
def logs(settings: Any, tmp_path: Path) -> Path:
    settings.LOG_DIR = tmp_path
    return tmp_path


@pytest.fixture
def twice(yard: Yard, logs: Path) -> Job:
    """A running job in its second attempt that has reported nothing yet; the first came to step 5."""
    job = yard.running
    attempt = job.attempts.get()
    Attempt.objects.filter(pk=attempt.pk).update(
        ended_at=NOW, outcome="queued", reason="preempted", created_at=NOW - timedelta(60), started_at=NOW
    )
    Attempt.objects.create(job=job, number=2, created_at=timezone.now(), started_at=timezone.now())
    Job.objects.filter(pk=job.pk).update(attempt=2, progress={})
    log(logs, job, 1, '{"trainyard": 1, "step": 5, "total_steps": 10, "loss": 0.25}')
    job.refresh_from_db()
    return job


def test_the_steps_of_a_start_one_after_the_other(yard: Yard, logs: Path):
    job = yard.running
    Job.objects.filter(pk=job.pk).update(queued_at=NOW)
    assert [step[:2] for step in shown(yard.queued)] == [
        ("Queued", "now"), ("Scheduled", "ahead"), ("Started", "ahead"), ("First output", "ahead"),
    ]  # fmt: skip
    Attempt.objects.filter(job=job).update(created_at=NOW + timedelta(seconds=2))
    node = Pod.objects.get(job=job).node.name
    Pod.objects.filter(job=job).update(started_at=None)
    Job.objects.filter(pk=job.pk).update(state="starting")
    assert shown(job) == [
        ("Queued", "done", "2.0\u00a0s"),
        ("Scheduled", "done", node),
        ("Started", "now", ""),
        ("First output", "ahead", "–"),
    ]  # fmt: skip
    Pod.objects.filter(job=job).update(started_at=NOW + timedelta(seconds=3))
    Job.objects.filter(pk=job.pk).update(state="running")
    assert [step[1:] for step in shown(job)[2:]] == [("done", "1.0\u00a0s"), ("now", "none for")]
    log(logs, job, 1, "importing", at=NOW + timedelta(seconds=25))
    assert shown(job)[3] == ("First output", "done", "22\u00a0s")


def test_a_start_that_ended_early_misses_the_rest_and_one_that_waits_says_for_what(yard: Yard, logs: Path):
    job = yard.running
    Pod.objects.filter(job=job).update(started_at=None, reason="pulling_image")
    Job.objects.filter(pk=job.pk).update(state="starting", message="It pulls its image.")
    job.refresh_from_db()
    assert story.start_steps(job)[2]["title"] == "It pulls its image."
    Job.objects.filter(pk=job.pk).update(state="failed")
    assert [step[1] for step in shown(job)] == ["done", "done", "missed", "missed"]
    Job.objects.filter(pk=job.pk).update(state="suspended")
    assert shown(job)[0][:2] == ("Suspended", "now")


def test_after_a_resume_the_earlier_attempt_counts_until_the_new_one_reports(twice: Job):
    reached = story.reached_by_attempt(twice)
    assert reached == {1: {"step": 5, "total_steps": 10, "loss": 0.25}}
    strip = figures(job_detail(twice, None), reached)
    assert (strip[0]["name"], strip[0]["value"], strip[0]["under"]) == (
        "Progress",
        "50",
        "reached in attempt 1",
    )
    drawn = curves(twice, job_detail(twice, None), reached)
    assert [curve["name"] for curve in drawn if curve["is_there"]] == ["loss"]  # nothing has measured it
    assert [attempt["text"] for attempt in story.attempts(twice, reached)] == [
        "preempted at step 5",
        "running",
    ]


def test_room_is_kept_only_for_curves_that_may_come(twice: Job):
    def names() -> list[str]:
        return [curve["name"] for curve in curves(twice, job_detail(twice, None), {})]

    assert names() == ["loss", "accuracy", "gpu_utilization"]
    twice.kind = "interactive"  # reports no progress
    assert names() == []
    twice.kind, twice.state = "train", "failed"
    assert names() == []


def test_the_strip_has_as_many_figures_in_every_state(yard: Yard, twice: Job):
    for job in (yard.running, yard.queued, yard.finished, twice):
        for state in ("queued", "starting", "running", "suspended", "stopping", "failed"):
            Job.objects.filter(pk=job.pk).update(state=state)
            job.refresh_from_db()
            strip = figures(job_detail(job, None), story.reached_by_attempt(job))
            assert len(strip) == len({figure["name"] for figure in strip}) == FIGURES, (job.name, state)


def test_a_job_that_ended_shows_how_long_it_ran_and_what_that_cost(yard: Yard, twice: Job):
    Job.objects.filter(pk=twice.pk).update(state="failed")
    held = Allocation.objects.filter(pod__job=twice)
    held.update(milli_gpus=500, created_at=NOW, released_at=NOW + timedelta(hours=3))
    twice.refresh_from_db()
    strip = {one["name"]: one["value"] for one in figures(job_detail(twice, None), {})}
    assert strip["GPU hours"] == f"{1.5 * held.count():.2f}"
    assert "Ran for" in strip
    assert "GPUs held" not in strip


def test_a_job_without_gpus_shows_no_figures_of_gpus(yard: Yard, twice: Job):
    detail = job_detail(twice, None) | {"gpus": 0}
    for state in ("running", "suspended", "failed"):
        status = detail["status"] | {"state": state}
        names = [one["name"] for one in figures(detail | {"status": status}, {})]
        assert [name for name in names if "GPU" in name] == [], state


def test_what_a_stop_costs(yard: Yard, logs: Path):
    yard.running.refresh_from_db()
    Job.objects.filter(pk=yard.running.pk).update(progress={"checkpoint_at": 1767225600})
    yard.running.refresh_from_db()
    actor = yard.cast.actor("ana")
    cost = story.stop_cost(actor, yard.running, job_detail(yard.running, None))
    assert (len(cost["pods"]), cost["gpus"], cost["waiting"]) == (1, 2, 1)
    assert cost["checkpoint_at"] == NOW
    assert cost["first"]["name"] == "queued"
    stranger = story.stop_cost(yard.cast.actor("chi"), yard.running, job_detail(yard.running, None))
    assert stranger["first"] == {"project": "team-a", "id": None, "name": None}
    waits = story.stop_cost(actor, yard.queued, job_detail(yard.queued, None))
    assert (waits["pods"], waits["running_since"], waits["waiting"], waits["first"]) == ([], None, 0, None)


def test_a_viewer_is_offered_no_port_no_terminal_and_no_form(yard: Yard, visit: Visit):
    ports = [{"port": 8888, "service_type": "ingress"}]
    job = make_job(yard.cast.project, "notebook", yard.cast.ana, gpus=0, ports=ports)
    yard.plant.settle()
    member, viewer = visit(yard.cast.ben), visit(yard.cast.vera)
    assert "Open port" in member.get(f"/jobs/{job.pk}").content.decode()
    page = viewer.get(f"/jobs/{job.pk}").content.decode()
    assert "Open port" not in page
    assert "/terminal" not in page
    assert "stop-dialog" not in page
    assert (
        member.get(f"/jobs/{job.pk}/terminal").status_code,
        viewer.get(f"/jobs/{job.pk}/terminal").status_code,
    ) == (200, 403)
    assert 'id="job-form"' in member.get("/new/job").content.decode()
    assert 'id="job-form"' not in viewer.get("/new/job").content.decode()
