"""Which process starts ranks. Nothing here can start more than a few: launchers are fakes that count."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.waiting import patience
from workloads.common import launch
from workloads.quickstart import start
from workloads.quickstart.settings import most_workers

ROOT = Path(__file__).resolve().parents[2]
NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "TRAINYARD_RANKS",
)
MOST_STARTS = 3
FAKE_MPIRUN = f"""#!/bin/sh
[ "$1" = --version ] && exit 0
echo started >> calls
[ "$(wc -l < calls)" -gt {MOST_STARTS} ] && exit 97
shift 2
exec "$@"
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Without variables of a launcher, on a job of two GPUs; SIGTERM's handler and variables are put back."""
    for name in (*NAMES, launch.LAUNCHED, "WORKERS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "4")
    monkeypatch.setenv("TRAINYARD_GPU_DEVICES", "0,1")
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def starts(monkeypatch) -> list[tuple[list[str], dict[str, str]]]:
    """Commands and variables of what would have been started."""
    found = []

    class Ended:
        def __init__(self, command, env):
            found.append((command, env))

        def poll(self):
            return 0

        wait = poll

    monkeypatch.setattr(launch.subprocess, "Popen", Ended)
    return found


def test_each_worker_is_started_once_and_marked(starts, monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")  # of `mpirun -n 1`
    assert start.main(["--workers", "2"]) == 0
    program = ["-m", "workloads.common.launch", "--launched", "workloads.quickstart.train", "--workers", "2"]
    assert [command[1:] for command, _ in starts] == [program] * 2
    places = [[env[name] for name in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")] for _, env in starts]
    assert places == [["0", "2", "2"], ["1", "2", "2"]]
    assert "PMI_RANK" not in starts[0][1]


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_RANK": "1", "PMI_SIZE": "2"},
    ],
)
def test_a_worker_trains_and_starts_none_whatever_its_launcher_names_it(starts, monkeypatch, env):
    for name, value in {**env, launch.LAUNCHED: "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(
        sys.modules, "workloads.quickstart.training", SimpleNamespace(train=lambda settings: settings.workers)
    )
    assert start.main(["--workers", "2"]) == 2
    with pytest.raises(launch.LaunchRefused, match="was started as a rank: it does not start 2 more"):
        launch.Launch(2, "workloads.quickstart.train", [])
    assert starts == []


def test_a_rank_of_another_launcher_is_no_place_for_more_workers(starts, monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "3")
    assert start.main(["--workers", "2"]) == 2
    assert "this one is of 3 ranks" in capsys.readouterr().err
    assert starts == []


@pytest.mark.parametrize(
    ("gpus", "words"), [("0,1", "there are 2"), ("5", "there are 1"), ("", "cores of this machine")]
)
def test_more_workers_than_gpus_or_cores_are_refused(starts, monkeypatch, capsys, gpus, words):
    monkeypatch.setenv("TRAINYARD_GPU_DEVICES", gpus)
    monkeypatch.setenv("BATCH_SIZE", "1500")
    workers = most_workers(os.environ)[0] + 1
    with pytest.raises(SystemExit):
        start.main(["--workers", str(workers)])
    assert f"--workers: {workers} workers need as many" in (said := capsys.readouterr().err)
    assert words in said
    assert starts == []


def test_a_launcher_that_names_no_rank_does_not_make_ranks_launch_again(tmp_path: Path):
    fake = tmp_path / "mpirun"
    fake.write_text(FAKE_MPIRUN)
    fake.chmod(0o755)
    (tmp_path / "idle.py").write_text("")
    env = {**os.environ, "TRAINYARD_RANKS": "2", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-m", "workloads.common.launch", "idle"],
        cwd=tmp_path,
        env={**env, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert (tmp_path / "calls").read_text() == "started\n"
    assert ran.returncode == 2
    assert "does not start 2 more" in ran.stderr
