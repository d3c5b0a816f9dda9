"""Progress lines come from users' programs: whatever they print, only good fields count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.logstore.progress import (
    Progress,
    find_progress,
    latest_progress,
    parse_progress,
    progress_after,
)
from controlplane.logstore.reader import LogLine
from controlplane.logstore.writer import STDOUT, LogWriter


def line(**fields: object) -> str:
    return json.dumps({"trainyard": 1, **fields})


def test_a_full_line_is_understood():
    text = line(
        epoch=1, epochs=3, step=40, total_steps=100, eta_seconds=30, loss=0.3, accuracy=0.9,
        seconds_per_step=0.5, gpu_utilization=0.97, gpu_memory_mib=1200,
    )  # fmt: skip
    progress = parse_progress(text, 5)
    assert progress == Progress(
        5, 1, 3, 40, 100, 30.0, 0.3, 0.9,
        seconds_per_step=0.5, gpu_utilization=0.97, gpu_memory_mib=1200,
    )  # fmt: skip
    assert progress.as_json()["loss"] == 0.3
    assert "gpu_utilization" not in progress.as_json()


@pytest.mark.parametrize(
    "text",
    ["", "loss 3", "{", "[1]", '{"epoch": 1}', '{"trainyard": 2}', '{"trainyard": true}', '{"trainyard"', "null",
     '{"trainyard":' + "[" * 100_000],
)  # fmt: skip
def test_what_is_not_a_progress_line_is_none(text: str):
    assert parse_progress(text, 0) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_utilization", 1.5), ("gpu_utilization", -0.1), ("gpu_utilization", "1"), ("gpu_utilization", True),
        ("gpu_utilization", float("nan")), ("loss", float("inf")), ("loss", 10**400), ("loss", None),
        ("epoch", 1.5), ("epoch", -1), ("epoch", True), ("epoch", 2**60), ("eta_seconds", -1),
        ("gpu_memory_mib", "x"),
    ],
)  # fmt: skip
def test_a_bad_field_counts_as_not_given(name: str, value: object):
    progress = parse_progress(line(**{name: value, "accuracy": 0.5}), 0)
    assert progress == Progress(0, accuracy=0.5)


@given(st.text() | st.dictionaries(st.text(), st.none() | st.floats() | st.text()).map(lambda d: line(**d)))
def test_no_text_breaks_it(text: str):
    progress = parse_progress(text, 0)
    assert progress is None or 0 <= (progress.gpu_utilization or 0) <= 1


def test_a_checkpoint_that_is_reported_alone_is_added_to_the_progress_before_it():
    lines = [line(step=8, loss=0.5), line(checkpoint_at=90, checkpoint_step=8), "noise"]
    found = find_progress([LogLine(number, 7, "stdout", text) for number, text in enumerate(lines)])
    assert found == Progress(7, step=8, loss=0.5, checkpoint_at=90, checkpoint_step=8)
    alone = parse_progress(lines[1], 0)
    assert alone is not None
    assert alone.is_checkpoint_only
    assert not found.is_checkpoint_only
    assert not parse_progress(line(), 0).is_checkpoint_only


def test_no_checkpoint_is_ahead_of_the_step_that_is_shown():
    """A program that reports once per second saves steps that it has not reported yet."""
    lines = [line(step=119, loss=0.5), line(checkpoint_at=90, checkpoint_step=120)]
    found = find_progress([LogLine(number, 7, "stdout", text) for number, text in enumerate(lines)])
    assert found == Progress(7, step=120, loss=0.5, checkpoint_at=90, checkpoint_step=120)
    alone = parse_progress(lines[1], 0)
    assert alone is not None
    saved = {"checkpoint_at": 90, "checkpoint_step": 120}
    assert progress_after({"step": 119, "loss": 0.5}, alone) == {"step": 120, "loss": 0.5, **saved}
    assert progress_after({"step": 130}, alone) == {"step": 130, **saved}
    assert progress_after({"loss": 0.5}, alone) == {"loss": 0.5, **saved}
    assert progress_after({"step": 119, "loss": 0.5}, found) == {"step": 120, "loss": 0.5, **saved}


def test_a_checkpoint_beyond_all_dates_counts_as_not_given():
    assert parse_progress(line(checkpoint_at=253_402_300_800), 0) == Progress(0)


def test_the_last_progress_line_of_a_log_counts(tmp_path: Path):
    path = tmp_path / "log"
    writer = LogWriter(str(path))
    writer.feed(STDOUT, f"{line(step=1)}\n{line(step=2)}\nnoise\n".encode())
    writer.close()
    progress = latest_progress(path)
    assert progress is not None
    assert progress.step == 2
    assert latest_progress(tmp_path / "none") is None
