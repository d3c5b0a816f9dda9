"""What the log viewer reads beside lines: attempts, the lengths of their logs, and what happened between the lines."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from controlplane.logstore.reader import line_before, log_path
from controlplane.logstore.writer import LogWriter
from controlplane.models import Event, User
from dashboards.reads.log_index import log_index
from jobs.models import Attempt, Job
from tests.app.pages.conftest import Yard

Visit = Callable[[User | None], Client]
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def write(path: Path, *times: float, text: str = "line") -> None:
    """A log with a line at each of these seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = (
        f"{number} {int(at(second).timestamp() * 1000)} o {text}\n" for number, second in enumerate(times, 1)
    )
    path.write_text("".join(records))


@pytest.fixture
def logs(settings: Any, tmp_path: Path) -> Path:
    settings.LOG_DIR = tmp_path
    return tmp_path


@pytest.fixture
def twice(yard: Yard, logs: Path) -> Job:
    """A job that was reclaimed after three lines, suspended once more, and started again."""
    job = yard.running
    Event.objects.filter(job_id=job.pk).delete()
    Attempt.objects.filter(job=job).update(created_at=at(2))
    Attempt.objects.create(job=job, number=2, created_at=at(20))
    Job.objects.filter(pk=job.pk).update(attempt=2, created_at=at(0))
    job.refresh_from_db()
    write(log_path(logs, str(job.pk), 1, 0), 3, 4, 6)
    write(log_path(logs, str(job.pk), 2, 0), 22)
    said = [
        (1, "job.submitted", "Submitted by ana.", {}),
        (1.99, "job.starting", "Started inside the quota.", {"nodes": ["dgx1-1"], "attempt": 1}),
        (2.5, "pod.running", "Rank 0 is running on dgx1-1.", {"rank": 0}),
        (2.5, "job.running", "Started inside the quota.", {}),
        (5, "job.stopping", "Its room went to a job.", {"next_state": "queued", "cause": "reclaim"}),
        (7, "job.queued", "Its room went to a job.", {}),
        (19.99, "job.starting", "Started on idle GPUs.", {"nodes": ["dgx1-2"], "attempt": 2}),
        (21, "job.progressed", "", {}),
        (23, "job.scaled", "Scaled by ana.", {"from": 3, "to": 2}),
        (24, "job.failed", "It ended with exit code 3.", {}),
    ]
    for second, kind, message, data in said:
        event = Event(job_id=job.pk, kind=kind, message=message, data=data, at=at(second), actor="ana")
        Event.objects.append([event])
    return job


def test_every_event_stands_after_the_line_before_it_in_its_attempt(yard: Yard, twice: Job):
    index = log_index(yard.cast.actor("ana"), twice, 0)
    assert index["latest"] == 2
    assert [(found["number"], found["lines"]) for found in index["attempts"]] == [(1, 3), (2, 1)]
    told = [
        [(note["after"], note["kind"], note["message"]) for note in found["notes"]]
        for found in index["attempts"]
    ]
    assert told == [
        [
            (0, "submitted", "Submitted by ana."),
            (0, "starting", "Scheduled on dgx1-1. Started inside the quota."),
            (0, "running", "Running."),
            (2, "stopping", "Reclaimed. Its room went to a job."),
            (3, "queued", "Its pods are gone; it is queued again."),
        ],
        [
            (0, "starting", "Scheduled on dgx1-2. Started on idle GPUs."),
            (1, "scaled", "Resized from 3 to 2 workers by ana."),
            (1, "is-bad", "It ended with exit code 3."),
        ],
    ]


def test_a_job_that_has_not_started_has_one_attempt_without_lines(yard: Yard, visit: Visit, logs: Path):
    found = visit(yard.cast.vera).get(f"/jobs/{yard.queued.pk}/log-index.json?rank=1").json()
    assert found["latest"] == 0
    assert [(one["number"], one["lines"], one["size"]) for one in found["attempts"]] == [(1, 0, 0)]
    assert found["attempts"][0]["notes"][0]["kind"] == "submitted"


def test_all_attempts_are_one_file(twice: Job, yard: Yard, visit: Visit):
    client = visit(yard.cast.vera)
    answer = client.get(f"/jobs/{twice.pk}/log.txt?attempt=all")
    assert b"".join(answer.streaming_content).decode() == "[attempt 1]\nline\nline\nline\n[attempt 2]\nline\n"
    newest = client.get(f"/jobs/{twice.pk}/log.txt")
    assert b"".join(newest.streaming_content).decode() == "line\n"


def test_the_line_before_a_time_is_found_in_a_long_log(tmp_path: Path):
    path = tmp_path / "long.log"
    write(path, *(step / 10 for step in range(30_000)), text="x" * 40)
    for number in (1, 2, 777, 15_000, 29_999, 30_000):
        second = (number - 1) / 10
        assert line_before(path, int(at(second).timestamp() * 1000)) == number
        assert line_before(path, int(at(second).timestamp() * 1000) - 1) == number - 1
    assert line_before(path, int(at(1e6).timestamp() * 1000)) == 30_000
    assert line_before(tmp_path / "none.log", 0) == 0


def test_gaps_damage_and_very_long_lines_do_not_mislead_it(tmp_path: Path):
    path = tmp_path / "odd.log"
    write(path, *range(2000), text="y" * 3000)
    with path.open("ab") as log:
        log.write(b"no record at all\n" * 5000)
        log.write(b"2001 %d o last\n" % int(at(9000).timestamp() * 1000))
    assert line_before(path, int(at(1234.5).timestamp() * 1000)) == 1235
    assert line_before(path, int(at(9000).timestamp() * 1000)) == 2001
    writer = LogWriter(str(tmp_path / "gap.log"))
    writer.feed(b"o", b"one\n")
    writer.gap("lost")
    writer.close()
    assert line_before(tmp_path / "gap.log", 1 << 50) == 1
