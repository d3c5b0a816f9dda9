"""The replay of a recorded run: the same numbers again, and on where an earlier attempt was stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import patience
from workloads.replay import play

CHECKOUT = Path(__file__).resolve().parents[2]


def start(directory: Path, seconds: float) -> subprocess.Popen[str]:
    environment = {"PYTHONPATH": str(CHECKOUT), "DURATION_SECONDS": str(seconds)}
    command = [sys.executable, "-m", "workloads.replay.play"]
    return subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True)


def steps_of(lines: list[str]) -> list[int]:
    return [json.loads(line)["step"] for line in lines if line.startswith("{")]


def test_whole(tmp_path: Path):
    with start(tmp_path, 0.01) as process:
        lines = process.communicate(timeout=patience(30))[0].splitlines()
    assert process.returncode == 0
    assert lines[0].startswith("replay of a recorded run")
    steps = steps_of(lines)
    assert steps == sorted(steps)
    assert steps[-1] == json.loads(lines[-1])["total_steps"]


def test_it_goes_on_where_it_was_stopped(tmp_path: Path):
    with start(tmp_path, 3000) as process:  # a line every two seconds: it is stopped in the wait after one
        assert process.stdout is not None
        first = [process.stdout.readline(), process.stdout.readline()]
        process.terminate()
        first += process.stdout.readlines()
        assert process.wait(patience(30)) == 143
    with start(tmp_path, 3000) as process:
        assert process.stdout is not None
        again = [process.stdout.readline() for _ in range(3)]
        process.terminate()
    printed = len(steps_of(first))
    assert again[1] == f"resumed at line {printed + 1} of 1500\n"
    assert steps_of(again)[0] > steps_of(first)[-1]


@pytest.mark.parametrize("kept", ["", "x", "-3", "0", "10", "99"])
def test_a_position_that_is_none_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str):
    monkeypatch.chdir(tmp_path)
    play.POSITION.write_text(kept)
    assert play.kept_position(10) == 0
    play.keep_position(9)
    assert play.kept_position(10) == 9
    assert [path.name for path in tmp_path.iterdir()] == [play.POSITION.name]
