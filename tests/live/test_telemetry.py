"""Telemetry: what jobs say and devices do becomes rows, samples and series, and nothing is written for nothing."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from controlplane.access import SYSTEM
from controlplane.engines.base import PodUsage, UsageReport
from controlplane.logstore.reader import log_path
from controlplane.loop.cluster_context import context_of, forget_contexts
from controlplane.loop.steps import declared_steps
from controlplane.models import Cluster, Device, Event, Sample
from controlplane.telemetry import rollup
from controlplane.telemetry.metrics import KEEP, SAMPLED, Aggregate, floor
from controlplane.telemetry.queries import POINTS_MOST, Point, _spans, gpu_hours, series
from controlplane.telemetry.rollup import roll_up
from controlplane.telemetry.samples import STEP_SECONDS, write_samples
from jobs.actions import stop_job
from jobs.allocation import record_allocation
from jobs.models import Job, Pod
from jobs.release import release
from jobs.telemetry.collect import collect
from tests.builders import make_job, make_project, make_user
from tests.loop.plant import Plant

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def plant(db):
    plant = Plant()
    forget_contexts()
    yield plant
    plant.close()


@pytest.fixture
def job(plant):
    """A running one-GPU job of team-a."""
    job = make_job(make_project(), "trainer")
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"
    return job


def pod_of(job: Job) -> Pod:
    return Pod.objects.get(job=job)


def look(plant: Plant, seconds: float = 1.0) -> None:
    plant.clock.advance(seconds)
    collect(plant.engine, plant.cluster, context_of(plant.cluster).usage, plant.clock())


def say(plant: Plant, job: Job, **fields) -> None:
    plant.engine.print_line(pod_of(job).name, json.dumps({"trainyard": 1, **fields}))


def use(plant: Plant, job: Job, utilization: float, memory_mib: int = 4096) -> None:
    plant.engine.set_usage(pod_of(job).name, utilization, memory_mib)


def test_progress_lines_become_the_jobs_progress(plant, job):
    say(plant, job, epoch=1, step=40, total_steps=100, loss=0.3)
    plant.engine.print_line(pod_of(job).name, "not progress {")
    look(plant, 6)
    job.refresh_from_db()
    assert job.progress == {"epoch": 1, "step": 40, "total_steps": 100, "loss": 0.3}
    assert job.active_at == plant.clock()
    event = Event.objects.get(kind=SAMPLED)
    assert event.data == {"jobs": [str(job.pk)]}
    say(plant, job, epoch=2)
    look(plant)
    job.refresh_from_db()
    assert job.progress == {"epoch": 2}


def test_a_log_that_cannot_be_read_stops_no_other_job(plant, job, caplog):
    other = make_job(job.project, "other")
    plant.settle()
    path = log_path(settings.LOG_DIR, str(job.pk), 1, 0)
    path.unlink(missing_ok=True)
    path.mkdir(parents=True)  # a directory in its place
    say(plant, other, epoch=1)
    look(plant)
    look(plant)
    other.refresh_from_db()
    assert other.progress == {"epoch": 1}
    assert caplog.text.count("cannot be read") == 1  # not every second
    path.rmdir()
    say(plant, job, epoch=2)
    look(plant)
    job.refresh_from_db()
    assert job.progress == {"epoch": 2}


def test_usage_becomes_gauges_of_pod_job_and_device(plant, job):
    use(plant, job, 0.9712345, 4096)
    look(plant)
    job.refresh_from_db()
    pod = pod_of(job)
    device = Device.objects.get(allocations__pod=pod)
    assert (job.gpu_utilization, pod.gpu_utilization, pod.gpu_memory_mib) == (0.971, 0.971, 4096)
    assert (device.utilization, device.memory_used_mib, device.busy_at) == (0.971, 4096, plant.clock())
    assert Device.objects.filter(utilization=0).count() == 15


def test_a_quiet_second_writes_nothing(plant, job):
    use(plant, job, 0.5)
    # A step is written when the next begins; one more, because what was written just before is written again later.
    look(plant, 2 * STEP_SECONDS - plant.clock().timestamp() % STEP_SECONDS)
    events = Event.objects.count()
    look(plant, 0.1)

    with CaptureQueriesContext(
        connection,
    ) as captured:
        look(plant, 0.1)
    assert [query["sql"] for query in captured if not query["sql"].startswith("SELECT")] == []
    assert len(captured) <= 10
    assert Event.objects.count() == events


def test_a_last_line_counts_although_the_pod_is_gone(plant, job):
    pod = pod_of(job)
    look(plant)
    say(plant, job, epoch=9, accuracy=0.99)
    plant.engine.finish(pod.name)
    plant.settle()
    job.refresh_from_db()
    assert job.state == "succeeded"
    look(plant)
    job.refresh_from_db()
    assert job.progress == {"epoch": 9, "accuracy": 0.99}


def test_an_engine_that_does_not_answer_changes_nothing(plant, job):
    use(plant, job, 0.5)
    look(plant)
    plant.engine.faults.is_unreachable = True
    before = list(Device.objects.values_list("utilization", flat=True))
    look(plant)
    assert list(Device.objects.values_list("utilization", flat=True)) == before


def test_gauges_become_series_by_every_subject(plant, job):
    use(plant, job, 0.8, 1000)
    begin = plant.clock()
    for _ in range(25):
        look(plant)
    use(plant, job, 0.0, 1000)
    for _ in range(25):
        look(plant)
    end = plant.clock()
    for by, subject, peak in (
        ("job", str(job.pk), 0.8),
        ("project", "team-a", 0.8),
        ("device", "dgx1-1/0", 0.8),
        ("node", "dgx1-1", 0.1),
        ("cluster", "memory", 0.05),
    ):
        found = {line.subject: line for line in series("gpu_utilization", by, None, begin, end)}
        line = found[subject]
        assert line.step_seconds == 10
        assert max(point.max for point in line.points) == pytest.approx(peak)
        assert line.points[-1].max == 0 or by == "cluster"
        assert len(line.points) <= 6
    assert [line.subject for line in series("gpu_utilization", "device", None, begin, end)] == ["dgx1-1/0"]
    memory = series("gpu_memory_used_mib", "cluster", None, begin, end)[0]
    assert max(point.max for point in memory.points) == 1000
    running = series("jobs_running", "project", ["team-a"], begin, end)[0]
    assert {point.mean for point in running.points} == {1}


def test_what_could_not_be_read_is_no_zero(plant, job, monkeypatch):
    pods = (PodUsage(pod_of(job).name, None, None),)
    reports = (
        UsageReport("dgx1-1", 0, None, None, pods),
        UsageReport("dgx1-1", 1, 0.5, None),
        UsageReport("dgx1-1", 2, 0.0, 300),
    )
    monkeypatch.setattr(plant.engine, "usage", lambda: reports)
    begin = plant.clock()
    for _ in range(25):
        look(plant)

    def means(metric: str, by: str) -> dict[str, set[float]]:
        lines = series(metric, by, None, begin, plant.clock())
        return {line.subject: {point.mean for point in line.points} for line in lines}

    assert means("gpu_utilization", "device") == {"dgx1-1/1": {0.5}}
    assert means("gpu_utilization", "node") == {"dgx1-1": {0.25}}
    assert means("gpu_utilization", "cluster") == {"memory": {0.25}}
    assert means("gpu_memory_used_mib", "node") == {"dgx1-1": {300}}
    assert means("gpu_utilization", "job") == means("gpu_memory_used_mib", "project") == {}
    known = Device.objects.filter(node__name="dgx1-1", index__lte=2).order_by("index")
    assert list(known.values_list("utilization", "memory_used_mib")) == [
        (None, None),
        (0.5, None),
        (0.0, 300),
    ]


def test_waits_of_started_jobs_are_sampled(plant):
    project = make_project()
    look(plant)
    job = make_job(project, "waiter")
    Job.objects.filter(pk=job.pk).update(queued_at=plant.clock() - timedelta(seconds=42))
    plant.settle()
    begin = plant.clock() - timedelta(seconds=20)
    for _ in range(12):
        look(plant)
    line = series("queue_wait_seconds", "project", ["team-a"], begin, plant.clock())[0]
    assert max(point.max for point in line.points) == pytest.approx(42, abs=2)


def test_gpu_seconds_of_users_are_summed_whatever_the_pace(plant, job):
    begin = plant.clock() - timedelta(seconds=20)
    look(plant)
    for seconds in (1, 4, 7, 1, 12, 15, 10, 10, 10, 10):
        look(plant, seconds)
    hours = gpu_hours(begin, plant.clock() + timedelta(seconds=20), None)
    assert hours[job.user_id] * 3600 == pytest.approx(
        80, abs=12
    )  # the step that is gathered now is not written yet
    look(plant, 3600)  # a pause: what was held meanwhile is not known
    look(plant, 10)
    look(plant, 10)
    assert gpu_hours(begin, plant.clock(), None)[job.user_id] * 3600 < 130
    assert gpu_hours(begin, plant.clock(), [job.project_id + 1]) == {}


def test_allocation_history_is_exact(plant):
    project = make_project()
    begin = plant.clock()
    moments, held = [], []
    jobs = []
    for gpus in (4, 0.5, 2):
        plant.clock.advance(5)
        jobs.append(make_job(project, f"job-{len(jobs)}", make_user(), gpus=gpus))
        plant.settle()
        moments.append(plant.clock())
        held.append(sum([4, 0.5, 2][: len(jobs)]))
    plant.clock.advance(5)
    stop_job(jobs[0], actor=SYSTEM)
    plant.settle()
    (line,) = series("gpus_allocated", "project", ["team-a"], begin, plant.clock() + timedelta(seconds=1))
    assert line.step_seconds == 0
    assert [point.mean for point in line.points] == [0, 4, 4.5, 6.5, 2.5]
    assert [point.at for point in line.points[1:4]] == moments
    (late,) = series(
        "gpus_allocated",
        "cluster",
        None,
        moments[1] + timedelta(seconds=1),
        moments[1] + timedelta(seconds=2),
    )
    assert [(point.at, point.mean) for point in late.points] == [(moments[1] + timedelta(seconds=1), 4.5)]


def test_an_unchanged_allocation_leaves_no_point(plant, job):
    count = Sample.objects.filter(metric="gpus_allocated").count()
    plant.clock.advance(5)
    record_allocation(plant.clock())
    assert Sample.objects.filter(metric="gpus_allocated").count() == count


def test_a_pod_that_is_released_again_is_counted_once(plant, job):
    plant.settle()
    for _ in range(2):
        release(Pod.objects.all(), plant.clock(), "The pod was gone already.")
    points = Sample.objects.filter(metric="gpus_allocated").order_by("at", "pk")
    assert [points.filter(by=by).last().total for by in ("project", "cluster")] == [0.0, 0.0]


def test_only_the_named_projects_are_looked_at_and_all_once_a_minute(plant, job):
    plant.settle()
    points = Sample.objects.filter(metric="gpus_allocated", by="project")
    points.delete()
    plant.clock.advance(5)
    record_allocation(plant.clock(), {job.project_id + 1: 1000, job.project_id: 0})
    assert not points.exists()
    [step] = [step for step in declared_steps() if step.name == "allocation"]
    step.run(plant.clock())
    assert points.exists()


def gauge(at: datetime, value: float, subject: str = "memory") -> tuple:
    return ("gpu_utilization", "cluster", subject), at, Aggregate(value, value, value * 10, 10)


@pytest.mark.django_db
def test_rolling_up_keeps_bounds_and_means_and_may_be_repeated():
    now = START + timedelta(minutes=25)
    values = [(number * 7919 % 100) / 100 for number in range(150)]
    write_samples(gauge(START + timedelta(seconds=10 * number), value) for number, value in enumerate(values))
    for moment in (START + timedelta(minutes=3), START + timedelta(minutes=11, seconds=7), now, now, now):
        roll_up(moment)
    for step in (60, 600, 3600):
        per = step // 10
        rows = Sample.objects.filter(step_seconds=step).order_by("at")
        groups = [values[index : index + per] for index in range(0, len(values), per)]
        assert [row.minimum for row in rows] == [min(group) for group in groups]
        assert [row.maximum for row in rows] == [max(group) for group in groups]
        assert [row.total / row.count for row in rows] == pytest.approx(
            [sum(group) / len(group) for group in groups]
        )


@pytest.mark.django_db
def test_what_is_past_its_time_goes_and_the_rest_stays():
    Cluster.objects.create(name="memory", engine="memory")
    now = START + timedelta(days=200)
    for step, kept in KEEP.items():
        for age in (kept - timedelta(seconds=1), kept + timedelta(seconds=1)):
            Sample.objects.create(
                metric="jobs_running", by="cluster", subject="memory", step_seconds=step, at=now - age,
                minimum=1, maximum=1, total=1,
            )  # fmt: skip
    Sample.objects.create(
        metric="gpus_allocated", by="cluster", subject="memory", step_seconds=0, at=now - timedelta(days=900),
        minimum=1, maximum=1, total=1,
    )  # fmt: skip
    Event.objects.append(
        [
            Event(kind="job.submitted", at=now - timedelta(days=91)),
            Event(kind="job.submitted", at=now - timedelta(days=89)),
            Event(kind=SAMPLED, at=now - timedelta(hours=2), data={"jobs": []}),
            Event(kind=SAMPLED, at=now - timedelta(minutes=2)),
        ]
    )
    rollup._ticks_cleared_to = 0
    for _ in range(3):
        roll_up(now)
    for step, kept in KEEP.items():
        assert not Sample.objects.filter(step_seconds=step, at__lt=now - kept).exists()
    assert Sample.objects.filter(step_seconds=10).count() == 1
    assert Sample.objects.filter(step_seconds=0).count() == 1
    assert list(Event.objects.order_by("seq").values_list("kind", flat=True)) == ["job.submitted", SAMPLED]


@pytest.mark.django_db
def test_series_are_short_whatever_the_range():
    make_project()
    write_samples(gauge(START + timedelta(seconds=10 * number), number % 7) for number in range(2000))
    for moment in range(0, 340, 16):
        roll_up(START + timedelta(minutes=moment))
    for hours in (0.2, 1, 3, 24, 24 * 30, 24 * 400):
        for line in series("gpu_utilization", "cluster", None, START, START + timedelta(hours=hours)):
            assert 0 < len(line.points) <= POINTS_MOST
    changes = []
    for number in range(1000):
        at, value = START + timedelta(seconds=number), number % 5
        held = {"minimum": value, "maximum": value, "total": value}
        changes.append(
            Sample(metric="gpus_allocated", by="project", subject="team-a", step_seconds=0, at=at, **held)
        )
    Sample.objects.bulk_create(changes)
    (line,) = series("gpus_allocated", "project", None, START, START + timedelta(seconds=1000))
    assert len(line.points) <= POINTS_MOST
    assert sum(point.mean for point in line.points) / len(line.points) == pytest.approx(2, abs=0.05)
    with pytest.raises(ValueError, match="unknown"):
        series("weather", "cluster", None, START, START + timedelta(hours=1))


steps = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 8)), min_size=1, max_size=20)


@given(steps, st.integers(1, 40))
def test_spans_of_a_step_function_keep_its_area_and_bounds(changes, step):
    at, points = START, [(START, 0.0)]
    for seconds, value in changes:
        at += timedelta(seconds=seconds)
        points.append((at, float(value)))
    end = at + timedelta(seconds=7)
    spans: list[Point] = list(_spans(points, START, end, step))
    area = sum(
        value * ((points[index + 1][0] if index + 1 < len(points) else end) - moment).total_seconds()
        for index, (moment, value) in enumerate(points)
    )
    widths = [(min(span.at + timedelta(seconds=step), end) - span.at).total_seconds() for span in spans]
    assert sum(span.mean * width for span, width in zip(spans, widths, strict=True)) == pytest.approx(area)
    assert all(span.min - 1e-9 <= span.mean <= span.max + 1e-9 for span in spans)
    assert spans[0].at == START
    assert all(floor(span.at, 1) == span.at for span in spans)
