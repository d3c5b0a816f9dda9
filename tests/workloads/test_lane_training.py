"""The lane detection program from its settings to a checkpoint, on a few synthetic pictures."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from controlplane.logstore.progress import parse_progress
from workloads.common import checkpoint
from workloads.common.records import Skipped
from workloads.lane_detection import train as program
from workloads.lane_detection.data import LISTS
from workloads.lane_detection.prepare import prepare
from workloads.lane_detection.synthetic import write_clips


@pytest.fixture(autouse=True)
def kept_signal():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_it_prepares_trains_validates_and_resumes(tmp_path: Path, monkeypatch, capsys):
    write_clips(tmp_path / "data", 5)
    env = {"DATA_DIR": tmp_path / "data", "TRAINYARD_CHECKPOINT_DIR": tmp_path / "c", "MODEL": "small"}
    env |= {"BATCH_SIZE": "2", "EPOCHS": "1", "USE_VAL": "true", "VAL_BATCH_SIZE": "1", "PVC_NAME": "lanes"}
    for name, value in env.items():
        monkeypatch.setenv(name, str(value))
    assert program.main([]) == 0
    assert program.main(["--epochs", "2"]) == 0
    printed = capsys.readouterr().out
    assert "snapshots of volume lanes are taken by the control plane" in printed
    assert printed.count("validated on 1 pictures: accuracy") == 2
    assert "resumed at step 1 of 2" in printed
    progress = [found for line in printed.splitlines() if (found := parse_progress(line, 0))]
    assert (progress[-1].epoch, progress[-1].step, progress[-1].total_steps) == (2, 2, 2)
    assert progress[-1].loss > 0
    assert checkpoint.load_latest(tmp_path / "c", "scnn-small")[0] == 2
    assert program.main(["--model", "full"]) == 1
    assert "is of scnn-small, not of scnn-full" in capsys.readouterr().out


def test_broken_pictures_are_named_once_and_skipped_up_to_the_limit(tmp_path: Path, monkeypatch, capsys):
    data = tmp_path / "data"
    write_clips(data, 5)
    prepare(data, Skipped())
    lists = {name: (data / LISTS / f"{name}.txt").read_text().split() for name in ("train", "val")}
    broken = [data / words[0] for words in lists.values()]
    for picture in broken:
        picture.write_bytes(picture.read_bytes()[:-1000])
    arguments = ["--data-dir", str(data), "--model", "small", "--batch-size", "2", "--use-val", "true"]
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_DIR", str(tmp_path / "c"))
    assert program.main([*arguments, "--epochs", "2", "--use-val", "false"]) == 0
    printed = capsys.readouterr().out
    assert printed.count(f"{broken[0]} cannot be read") == 1
    assert "done: 2 steps" in printed or "done: 4 steps" in printed
    monkeypatch.setenv("MAX_BAD_RECORDS", "0")
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_DIR", str(tmp_path / "d"))
    assert program.main([*arguments, "--epochs", "1"]) == 1
    assert "More than 0 records cannot be used" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BATCH_SIZE", "0"),
        ("USE_VAL", "perhaps"),
        ("MODEL", "huge"),
        ("NUM_WORKERS", "-1"),
        ("EPOCHS", "many"),
    ],
)
def test_a_bad_setting_ends_it_with_words(variable, value, monkeypatch, capsys):
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit):
        program.read_settings([])
    assert value in capsys.readouterr().err


def test_the_reports_variables_are_read(monkeypatch, tmp_path: Path):
    env = {
        "USE_WORKERS": "true",
        "NUM_WORKERS": "4",
        "BATCH_SIZE": "33",
        "USE_VAL": "false",
        "VAL_BATCH_SIZE": "99",
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    options, plan = program.read_settings(["--data-dir", str(tmp_path)])
    assert (plan.loaders, plan.batch_size, options.is_validating, options.val_batch_size) == (
        4,
        33,
        False,
        99,
    )
    monkeypatch.setenv("USE_WORKERS", "false")
    assert program.read_settings([])[1].loaders == 0


def test_a_directory_without_data_ends_it_with_words(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    assert program.main([]) == 1
    assert "has no label_data_0313.json" in capsys.readouterr().out
