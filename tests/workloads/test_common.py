"""The parts that all workloads share."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from controlplane.logstore.progress import Progress, parse_progress
from workloads.common import checkpoint, progress
from workloads.common.devices import memory_fraction, take_device
from workloads.common.progress import Meter, report
from workloads.common.stopping import StopRequest


def state(value: int) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((4,), value)}


def test_the_newest_checkpoint_comes_back(tmp_path: Path):
    assert checkpoint.load_latest(tmp_path) is None
    for step in (5, 10, 15):
        checkpoint.save(tmp_path, step, state(step))
    step, loaded = checkpoint.load_latest(tmp_path)
    assert step == 15
    assert loaded["weights"].tolist() == [15.0] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000010", "step-000000015"]


@pytest.mark.parametrize("damage", ["state", "manifest", "no manifest", "no state"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, damage: str):
    checkpoint.save(tmp_path, 5, state(5))
    newest = checkpoint.save(tmp_path, 10, state(10))
    if damage == "state":
        (newest / "state.pt").write_bytes((newest / "state.pt").read_bytes()[:-1] + b"x")
    elif damage == "manifest":
        (newest / "manifest.json").write_text("{")
    else:
        (newest / ("manifest.json" if damage == "no manifest" else "state.pt")).unlink()
    step, _ = checkpoint.load_latest(tmp_path)
    assert step == 5


def test_a_kill_in_the_middle_of_saving_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch):
    checkpoint.save(tmp_path, 5, state(5))
    monkeypatch.setattr(checkpoint, "_sync", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 10, state(10))
    assert checkpoint.load_latest(tmp_path)[0] == 5


def test_saving_the_same_step_again_replaces_it(tmp_path: Path):
    checkpoint.save(tmp_path, 5, state(1))
    checkpoint.save(tmp_path, 5, state(2))
    assert checkpoint.load_latest(tmp_path)[1]["weights"].tolist() == [2.0] * 4


def test_ranks_of_a_gang_keep_apart(monkeypatch):
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_DIR", "/c")
    assert checkpoint.checkpoint_dir() == Path("/c")
    monkeypatch.setenv("TRAINYARD_WORLD_SIZE", "2")
    monkeypatch.setenv("TRAINYARD_RANK", "1")
    assert checkpoint.checkpoint_dir() == Path("/c/rank-1")


@pytest.mark.parametrize(("granted", "fraction"), [("", 1), ("0", 1), ("8192", 0.25), ("65536", 1)])
def test_the_memory_share_becomes_torchs_limit(monkeypatch, granted: str, fraction: float):
    monkeypatch.setenv("TRAINYARD_GPU_MEMORY_MIB", granted)
    assert memory_fraction(32768) == fraction


def test_torch_is_held_to_the_share_on_a_real_device(monkeypatch):
    class Properties:
        total_memory = 32768 * 1024 * 1024

    limits, current = [], []
    monkeypatch.setenv("TRAINYARD_GPU_DEVICES", "3")
    monkeypatch.setenv("TRAINYARD_GPU_MEMORY_MIB", "8192")
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *args: limits.append(args))
    assert take_device().device.type == "cuda"
    assert limits == [(0.25, torch.device("cuda", 0))]
    for name, value in (("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "3")):
        monkeypatch.setenv(name, value)
    assert take_device().device == torch.device("cuda", 1)
    assert current == [torch.device("cuda", 0), torch.device("cuda", 1)]
    monkeypatch.setenv("TRAINYARD_GPU_DEVICES", "")
    assert take_device().device.type == "cpu"


def test_a_checkpoint_is_repeated_by_later_lines(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_checkpoint", {})
    progress.report_checkpoint(40, 1767225600.7)
    report(epoch=1, epochs=3, step=41, total_steps=100, seconds_per_step=0.5)
    alone, later = capsys.readouterr().out.splitlines()
    saved = {"checkpoint_at": 1767225600, "checkpoint_step": 40}
    assert parse_progress(alone, 0) == Progress(0, **saved)
    assert parse_progress(later, 0) == Progress(0, 1, 3, 41, 100, 29.5, seconds_per_step=0.5, **saved)


def test_a_progress_line_is_one_that_the_control_plane_understands(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_checkpoint", {})
    report(epoch=1, epochs=3, step=40, total_steps=100, seconds_per_step=0.5, loss=0.25, gpu_utilization=0.5)
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    expected = Progress(0, 1, 3, 40, 100, 30.0, 0.25, seconds_per_step=0.5, gpu_utilization=0.5)
    assert parse_progress(line.strip(), 0) == expected
    assert "accuracy" not in json.loads(line)


def test_the_meter_measures_work_and_rest(monkeypatch):
    times = {"monotonic": 100.0, "process_time": 7.0}
    for name in times:
        monkeypatch.setattr(f"time.{name}", lambda name=name: times[name])
    meter = Meter(cpus=2)
    times.update(monotonic=102.0, process_time=8.0)
    assert meter.utilization() == 0.25
    assert meter.utilization() == 0.0
    times.update(monotonic=103.0, process_time=20.0)
    assert meter.utilization() == 1.0
    assert 5 < Meter.memory_mib() < 100_000


def test_sigterm_is_noted_and_does_not_kill():
    before = signal.getsignal(signal.SIGTERM)
    try:
        stop = StopRequest()
        assert not stop
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_a_kill_left_of_a_step_does_not_block_it(tmp_path: Path, monkeypatch):
    """Process ids repeat in containers, where the program is always the first process."""
    monkeypatch.setattr(checkpoint, "_sync", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 10, state(10))
    monkeypatch.undo()
    checkpoint.save(tmp_path, 10, state(10))
    assert checkpoint.load_latest(tmp_path)[0] == 10
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000010"]
