"""Allocated GPUs over any range: the page, its figure, its CSV; and ranges that make no sense."""

import csv
import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from controlplane.models import Sample, User
from dashboards.pages.analytics import read_range
from tests.cast import Cast

Visit = Callable[[User | None], Client]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = "from=2026-01-01T00:00&to=2026-01-02T00:00"


@pytest.fixture
def history(cast: Cast) -> Cast:
    changes = (("team-a", 0, 4), ("team-a", 3, 8), ("team-a", 6, 0), ("team-b", 2, 2))
    Sample.objects.bulk_create(
        Sample(
            metric="gpus_allocated", by="project", subject=name, step_seconds=0, at=NOON + timedelta(hours=hours),
            minimum=gpus, maximum=gpus, total=gpus,
        )
        for name, hours, gpus in changes
    )  # fmt: skip
    return cast


def test_usage_by_project(history: Cast, visit: Visit):
    used = {line.name: use for line, use in visit(history.ana).get(f"/analytics?{DAY}").context["used"]}
    assert (used["team-a"].gpu_hours, used["team-a"].peak) == (4 * 3 + 8 * 3, 8)
    assert (used["team-b"].gpu_hours, used["team-b"].peak) == (20, 2)


def test_a_deleted_project_keeps_its_history(history: Cast, visit: Visit):
    before = visit(history.root).get(f"/analytics?{DAY}").context["total_hours"]
    history.other.delete()
    answer = visit(history.root).get(f"/analytics?{DAY}")
    assert answer.context["total_hours"] == before
    assert "team-b (deleted)" in {line.name for line, _use in answer.context["used"]}


def test_a_part_of_a_span_counts_as_a_part(history: Cast, visit: Visit):
    answer = visit(history.ana).get("/analytics?from=2026-01-01T13:00&to=2026-01-01T14:00")
    assert {line.name: use.gpu_hours for line, use in answer.context["used"]} == {"team-a": 4, "team-b": 0}


def test_the_figure_has_one_line_a_team(history: Cast, visit: Visit):
    figure = visit(history.ana).get(f"/charts/analytics/allocation.json?{DAY}").json()["figure"]
    assert [trace["name"] for trace in figure["data"]] == ["team-a", "team-b", "all projects", "capacity"]
    assert figure["data"][0]["customdata"] == [0, 4, 8, 0, 0]
    assert figure["layout"]["xaxis"]["range"] == ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]


def test_csv(history: Cast, visit: Visit):
    answer = visit(history.ana).get(f"/analytics.csv?{DAY}")
    rows = list(csv.reader(io.StringIO(answer.content.decode())))
    assert rows[0] == ["time", "project", "gpus"]
    assert ["2026-01-01T15:00:00Z", "team-a", "8"] in rows
    assert "attachment" in answer["Content-Disposition"]


@pytest.mark.parametrize(
    ("asked", "seconds", "is_error"),
    [
        (("7d", "", ""), 7 * 86400, False),
        (("", "", ""), 86400, False),
        (("nonsense", "", ""), 86400, False),
        (("", "2026-01-01T00:00", "2026-01-01T06:00"), 6 * 3600, False),
        (("", "2026-01-01T00:00+02:00", ""), 14 * 3600, False),
        (("", "2026-01-02", "2026-01-01"), 86400, True),
        (("", "2026-13-45T99:99", ""), 86400, True),
        (("", "2026-01-01T06:00", "2026-01-01T06:00"), 86400, True),
    ],
)
def test_ranges(asked: tuple[str, str, str], seconds: int, is_error: bool):
    chosen = read_range(*asked, NOON)
    assert (chosen.end - chosen.start).total_seconds() == seconds
    assert bool(chosen.error) == is_error


def test_a_wrong_range_says_so(history: Cast, visit: Visit):
    answer = visit(history.ana).get("/analytics?from=2026-01-02T00:00&to=2026-01-01T00:00")
    assert answer.status_code == 400
    assert "must start before it ends" in answer.content.decode()
