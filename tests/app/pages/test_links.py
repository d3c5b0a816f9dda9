"""The heat map of bandwidth between nodes on a job's page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from django.test import Client

from controlplane.logstore.reader import log_path
from controlplane.logstore.writer import LogWriter
from controlplane.models import User
from dashboards.reads.links import grid_of
from tests.builders import make_job
from tests.cast import Cast


def pair(first: str, second: str, rate: object) -> str:
    return json.dumps({"allreduce_pair": [first, second], "bus_gb_per_s": rate})


def test_each_pair_is_a_cell_both_ways_and_the_slowest_is_named():
    grid = grid_of(["8 B  1.0 us", pair("a", "b", 10.0), pair("a", "c", 9.0), pair("b", "c", 2.04)])
    assert grid is not None
    assert grid.names == ("a", "b", "c")
    assert [[cell.text for cell in row.cells] for row in grid.rows] == [
        ["", "10.0", "9.00"],
        ["10.0", "", "2.04"],
        ["9.00", "2.04", ""],
    ]
    assert [cell.level for cell in grid.rows[1].cells] == [10, 0, 2]
    assert "Slowest: b – c, 2.04; fastest: a – b, 10.0." in grid.summary


def test_lines_that_are_no_pair_are_left_out():
    nonsense = [pair("a", "b", value) for value in (0, -1, None, "1", True, float("nan"), 10**400)]
    nonsense += ['{"allreduce_pair"', '{"allreduce_pair": ["a"], "bus_gb_per_s": 1}']
    nonsense += ['{"allreduce_pair": [1, 2], "bus_gb_per_s": 1}', '{"allreduce_pair": {}}']
    assert grid_of(nonsense) is None


def test_the_metrics_of_a_job_show_it(
    cast: Cast, visit: Callable[[User | None], Client], settings, tmp_path: Path
):
    settings.LOG_DIR = tmp_path
    job = make_job(cast.project, "net", gpus=1)
    client = visit(cast.ana)
    assert "Bandwidth between nodes" not in client.get(f"/jobs/{job.pk}/metrics").content.decode()
    writer = LogWriter(str(log_path(settings.LOG_DIR, str(job.pk), 1, 0)))
    writer.feed(b"o", (pair("dgx1-1", "<dgx1-2\ud800>", 1.5) + "\n").encode())
    writer.close()
    text = client.get(f"/jobs/{job.pk}/metrics").content.decode()
    assert "Bandwidth between nodes" in text
    assert 'data-level="10">1.50</td>' in text
    assert "&lt;dgx1-2&gt;" in text
