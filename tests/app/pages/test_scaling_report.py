"""The pages of scaling reports: who sees which, and what they show."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from django.test import Client

from controlplane.logstore.progress import Progress
from controlplane.logstore.reader import log_path
from controlplane.logstore.writer import LogWriter
from controlplane.models import User
from dashboards.charts.figures import nice_ceiling
from dashboards.charts.scaling import Measured
from dashboards.reads.scaling_report import measured
from jobs.models import Job
from tests.builders import make_job
from tests.cast import Cast

Visit = Callable[[User | None], Client]
ADDRESS = "/scaling-reports?project=team-a&name=lanes"


@pytest.fixture
def runs(cast: Cast, settings, tmp_path: Path) -> Cast:
    """Jobs of 1 and 2 workers that reported rates, and one of 3 that did not yet."""
    settings.LOG_DIR = tmp_path
    for workers, rate in ((1, 4.0), (2, 7.0), (3, None)):
        body = {
            "kind": "mpi",
            "workers": workers,
            "labels": {"scaling-report": "lanes"},
            "command": ["mpirun", "x"],
        }
        job = make_job(cast.project, f"lanes-{workers}", gpus=1, **body)
        Job.objects.filter(pk=job.pk).update(attempt=1)
        if rate is not None:
            line = {
                "trainyard": 1,
                "samples_per_second": rate,
                "allreduce_share": 0.25,
                "gpu_utilization": 0.5,
            }
            writer = LogWriter(str(log_path(settings.LOG_DIR, str(job.pk), 1, 0)))
            writer.feed(b"o", (json.dumps(line) + "\n").encode())
            writer.close()
    return cast


def test_the_reports_that_one_may_see_are_listed(runs: Cast, visit: Visit):
    answer = visit(runs.ana).get("/scaling-reports")
    assert [(one.project, one.name, one.jobs) for one in answer.context["reports"]] == [
        ("team-a", "lanes", 3)
    ]
    assert ADDRESS.replace("&", "&amp;") in answer.content.decode()
    stranger = visit(runs.chi).get("/scaling-reports")
    assert not stranger.context["reports"]
    assert "--label scaling-report=NAME" in stranger.content.decode()


def test_a_report_compares_its_runs_and_names_those_without_figures(runs: Cast, visit: Visit):
    client = visit(runs.ana)
    text = client.get(ADDRESS).content.decode()
    assert "lanes-2" in text
    assert "88\xa0%" in text.replace(" ", "")
    assert "Nothing measured yet" in text
    chart = client.get(ADDRESS.replace("/scaling-reports", "/charts/scaling/efficiency.json")).json()
    assert chart["table"]["rows"] == [[1, 1.0, 100.0], [2, 1.75, 87.5]]
    assert visit(runs.chi).get(ADDRESS).status_code == 404
    assert client.get("/scaling-reports?project=team-a&name=other").status_code == 404
    assert client.get("/charts/scaling/other.json").status_code == 404


def test_what_a_run_measured_is_the_median_after_its_first_line():
    rates = (1.0, 10.0, 12.0, 14.0)
    lines = tuple(
        Progress(0, samples_per_second=rate, allreduce_share=0.2, gpu_memory_mib=7) for rate in rates
    )
    assert measured(2, lines) == Measured(2, 12.0, 0.2, None, 7)
    assert measured(2, lines[:1]) == Measured(2, 1.0, 0.2, None, 7)
    assert measured(2, (Progress(0, loss=1.0),)) is None


def test_rates_that_cannot_be_compared_count_as_not_reported():
    """Nothing can be divided by 0, and a quotient of the others is infinite, which no axis can show."""
    lines = tuple(Progress(0, samples_per_second=rate) for rate in (-1.0, 0.0, 1.0, 1e-9, 1e299))
    assert measured(2, lines) == Measured(2, 1.0)
    assert measured(2, (*lines[:2], *lines[3:])) is None


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_an_axis_without_a_finite_end_has_one(value: float):
    assert nice_ceiling(value) == 1.0
