"""Charts of what was recorded: nodes and devices, jobs, a project against its quota, waits, and hours of users."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from controlplane.access import Actor
from controlplane.actions.projects import edit_project
from controlplane.models import Sample, User
from controlplane.telemetry.queries import first_sample
from jobs.allocation import record_capacity
from jobs.models import Attempt, Job
from tests.app.pages.conftest import Yard

Visit = Callable[[User | None], Client]
HOUR = timedelta(hours=1)


def sample(
    metric: str, by: str, subject: str, at: datetime, value: float, step: int = 10, count: int = 1
) -> None:
    Sample.objects.create(
        metric=metric, by=by, subject=subject, step_seconds=step, at=at, minimum=value, maximum=value,
        total=value * count, count=count,
    )  # fmt: skip


def tens(ago: timedelta) -> datetime:
    """A time some while ago at the begin of a step."""
    at = timezone.now() - ago
    return at.replace(microsecond=0, second=at.second // 10 * 10)


def chart(client: Client, path: str) -> dict[str, Any]:
    answer = client.get(f"/charts/{path}")
    assert answer.status_code == 200, path
    found: dict[str, Any] = answer.json()
    return found


def lines(found: dict[str, Any]) -> dict[str, list[float]]:
    return {trace["name"]: trace["y"] for trace in found["figure"]["data"]}


def test_a_node_and_its_devices(yard: Yard, visit: Visit):
    at = tens(timedelta(minutes=5))
    sample("gpu_utilization", "node", "dgx1-1", at, 0.4)
    sample("gpu_utilization", "device", "dgx1-1/3", at, 0.8)
    sample("gpu_memory_used_mib", "node", "dgx1-1", at, 8 * 16384)
    found = chart(visit(yard.cast.vera), "nodes/dgx1-1/utilisation.json")
    assert {"dgx1-1": [40], "GPU 3": [80], "GPU 0": []}.items() <= lines(found).items()
    assert "40\xa0%" in found["summary"]
    assert found["table"]["columns"][:2] == ["Time", "dgx1-1 %"]
    memory = lines(chart(visit(yard.cast.vera), "nodes/dgx1-1/memory.json"))
    assert memory["dgx1-1"] == [pytest.approx(50)]


def test_queries_do_not_grow_with_what_was_recorded(yard: Yard, visit: Visit):
    root = visit(yard.cast.root)
    pages = [
        "nodes/dgx1-1/utilisation.json", "projects/team-a/allocation.json", "analytics/allocation.json",
        "analytics/utilisation.json", "analytics/waiting.json", "analytics/users.json",
        f"jobs/{yard.running.pk}/gpu_memory.json",
    ]  # fmt: skip

    def count() -> list[int]:
        counts = []
        for page in pages:
            with CaptureQueriesContext(connection) as queries:
                chart(root, page)
            counts.append(len(queries))
        return counts

    sample("gpu_seconds", "member", f"{yard.cast.project.pk}/0", tens(HOUR), 5)
    before = count()
    now = tens(timedelta(minutes=10))
    for step in range(40):
        for by, subject in (
            ("node", "dgx1-1"),
            ("device", "dgx1-1/1"),
            ("cluster", "memory"),
            ("cluster", f"c{step}"),
        ):
            sample("gpu_utilization", by, subject, now + timedelta(seconds=10 * step), 0.5)
        sample("queue_wait_seconds", "cluster", "memory", now + timedelta(seconds=10 * step), 5)
        sample("gpu_seconds", "member", f"{yard.cast.project.pk}/{step}", now, 5)
        sample("gpus_allocated", "project", f"gone-{step}", now, 2, step=0)
        sample("gpu_memory_used_mib", "job", str(yard.running.pk), now + timedelta(seconds=10 * step), 5)
    assert count() == before
    assert max(before) <= 14


def test_a_project_against_its_quota_and_what_it_was_before(yard: Yard, visit: Visit):
    edit_project(yard.cast.project, {"gpu_quota_milli": 6000}, actor=Actor(user=yard.cast.root))
    found = chart(visit(yard.cast.ben), "projects/team-a/allocation.json")
    assert lines(found)["quota"][-2:] == [6, 6]
    assert lines(found)["quota"][0] == 4
    assert lines(found)["allocated"][-1] == 2
    assert found["summary"].startswith("team-a holds 2 GPUs, its quota is 6;")


def test_what_a_job_used_over_all_attempts(yard: Yard, visit: Visit):
    job, now = yard.running, timezone.now()
    Attempt.objects.filter(job=job).update(started_at=now - 2 * HOUR)
    Attempt.objects.create(job=job, number=2, started_at=now - HOUR)
    for ago, value in ((90, 0.5), (30, 0.7)):
        sample(
            "gpu_utilization",
            "job",
            str(job.pk),
            tens(timedelta(minutes=ago)).replace(second=0),
            value,
            step=60,
        )
    found = chart(visit(yard.cast.vera), f"jobs/{job.pk}/gpu_utilization.json")
    assert lines(found)["GPU use"] == [50, None, 70]
    assert [label["text"] for label in found["figure"]["layout"]["annotations"]] == ["attempt 2"]


def test_an_idle_job_has_a_line_at_zero_though_no_sample_is_kept_of_it(yard: Yard, visit: Visit):
    job, now = yard.running, timezone.now()
    Attempt.objects.filter(job=job).update(started_at=now - HOUR)
    Job.objects.filter(pk=job.pk).update(gpu_utilization=0)
    found = chart(visit(yard.cast.vera), f"jobs/{job.pk}/gpu_utilization.json")
    assert set(lines(found)["GPU use"]) == {0}
    assert found["summary"] == "GPU use is 0 %; lowest 0 %, highest 0 %."


def test_use_that_ended_stays_at_zero_until_the_next_sample(yard: Yard, visit: Visit):
    job, now = yard.running, timezone.now()
    Attempt.objects.filter(job=job).update(started_at=now - 2 * HOUR)
    for ago, value in ((50, 0.5), (49, 0.0), (30, 0.7)):
        at = tens(timedelta(minutes=ago)).replace(second=0)
        sample("gpu_utilization", "job", str(job.pk), at, value, step=60)
    found = lines(chart(visit(yard.cast.vera), f"jobs/{job.pk}/gpu_utilization.json"))["GPU use"]
    assert found[:2] == [50, 0]
    assert found[-1] == 70
    assert set(found[1:-1]) == {0}


def report(path: Any, *steps: int) -> None:
    """Write progress lines as a pod's log has them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [
        f'{at + 1} 1700000000000 o {{"trainyard": 1, "step": {step}, "loss": 1}}\n'
        for at, step in enumerate(steps)
    ]
    path.write_text("".join(records))


def test_curves_of_an_earlier_attempt_stay_after_a_resume(
    yard: Yard, visit: Visit, settings: Any, tmp_path: Any
):
    settings.LOG_DIR, job = tmp_path, yard.running
    report(tmp_path / str(job.pk) / "1-0.log", 1, 2, 3)
    type(job).objects.filter(pk=job.pk).update(attempt=2, progress={})
    Attempt.objects.create(job=job, number=2, started_at=timezone.now())
    client = visit(yard.cast.vera)
    answer = client.get(f"/jobs/{job.pk}/metrics")
    assert next(curve["name"] for curve in answer.context["curves"] if curve["is_there"]) == "loss"
    page = answer.content.decode()
    assert (
        f'id="curve-loss" data-live="job:{job.pk}" data-keep>' in page
    )  # shows its chart, not "no progress yet"
    assert f'id="curve-accuracy" data-live="job:{job.pk}" data-keep data-empty>' in page
    assert lines(chart(client, f"jobs/{job.pk}/loss.json"))["Loss"] == [1, 1, 1]
    report(tmp_path / str(job.pk) / "2-0.log", 3, 4)
    found = chart(client, f"jobs/{job.pk}/loss.json")
    assert [trace["x"] for trace in found["figure"]["data"]] == [[1, 2, 3, 4], [3]]
    assert found["figure"]["layout"]["annotations"][0]["text"] == "attempt 2"


def test_hours_of_users_are_those_of_projects_that_one_may_see(yard: Yard, visit: Visit):
    cast, at = yard.cast, tens(timedelta(minutes=30))
    sample("gpu_seconds", "member", f"{cast.project.pk}/{cast.ana.pk}", at, 7200)
    sample("gpu_seconds", "member", f"{cast.other.pk}/{cast.chi.pk}", at, 3600)
    sample("gpu_seconds", "member", f"9999/{cast.chi.pk}", at, 1800)  # of a project that is deleted
    everything = chart(visit(cast.root), "analytics/users.json")["table"]["rows"]
    assert everything == [["ana", 2.0], ["chi", 1.5]]
    assert chart(visit(cast.vera), "analytics/users.json")["table"]["rows"] == [["ana", 2.0]]
    assert chart(visit(cast.chi), "analytics/users.json")["table"]["rows"] == [["chi", 1.0]]


def test_waits_of_the_range(yard: Yard, visit: Visit):
    Sample.objects.filter(metric="queue_wait_seconds").delete()
    at = tens(timedelta(minutes=30))
    sample("queue_wait_seconds", "cluster", "memory", at, 60, count=2)
    sample("queue_wait_seconds", "cluster", "other", at, 240)
    found = chart(visit(yard.cast.chi), "analytics/waiting.json?range=1h")
    assert [row[1:] for row in found["table"]["rows"]] == [[3, 2, 4]]
    assert found["summary"] == "3 jobs started and waited 2 min on average (bars) and 4 min at most (lines)."


def test_a_young_instances_day_starts_where_its_data_start(yard: Yard, visit: Visit):
    Sample.objects.all().delete()
    at = tens(timedelta(minutes=20))
    sample("gpu_utilization", "cluster", "memory", at, 0.5)
    for step in (60, 600, 3600):  # as the roll-up writes them: coarse steps begin earlier
        start = at - timedelta(seconds=at.timestamp() % step)
        sample("gpu_utilization", "cluster", "memory", start, 0.5, step=step)
    assert first_sample(timezone.now()) == at
    begins = at.isoformat().replace("+00:00", "Z")
    for path in (
        "utilisation.json?span=86400",
        "allocation.json?span=86400",
        "analytics/utilisation.json?range=24h",
    ):
        assert chart(visit(yard.cast.ana), path)["figure"]["layout"]["xaxis"]["range"][0] == begins
    asked = "analytics/utilisation.json?from=2026-01-01T00:00&to=2026-01-02T00:00"  # two times are taken as they are
    shown = chart(visit(yard.cast.ana), asked)["figure"]["layout"]["xaxis"]["range"]
    assert shown == ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]


def test_capacity_changes_with_the_nodes(yard: Yard, visit: Visit):
    cluster, now = yard.plant.cluster, timezone.now()
    Sample.objects.filter(metric="gpu_capacity").delete()
    record_capacity(cluster, now - HOUR)
    record_capacity(cluster, now - HOUR / 2)  # nothing changed: no point
    cluster.nodes.filter(name="dgx1-2").update(is_ready=False)
    record_capacity(cluster, now - HOUR / 3)
    points = Sample.objects.filter(metric="gpu_capacity").order_by("at")
    assert list(points.values_list("total", flat=True)) == [16, 8]
    assert lines(chart(visit(yard.cast.chi), "analytics/allocation.json?range=1h"))["capacity"][-1] == 8


def test_decimals_align_and_deleted_projects_come_last(yard: Yard, visit: Visit):
    at = timezone.now() - HOUR / 2
    sample("gpus_allocated", "project", "old", at, 8, step=0)
    page = visit(yard.cast.root).get("/analytics").content.decode()
    assert page.index(">team-b<") < page.index("old (deleted)")
    assert 'class="is-gone"' in page
    assert ">8.00<" in page
