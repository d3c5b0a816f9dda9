"""What asks programs to pause where only pods see a volume, over pipes in place of an exec."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from datasets.pod_quiesce import PodPause, script
from datasets.storage.base import UNLIMITED
from tests.execs import Exec
from tests.waiting import patience, wait_until

JOB = "8b8a6d0e-6c67-4b6f-9a0c-0d6a5c1f2b3c"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Exec]:
    """Asks one program, of which nothing is there yet but its file."""
    (tmp_path / ".trainyard" / "listening").mkdir(parents=True)
    own(tmp_path).write_text("")
    command = (sys.executable, "-I", "-c", script(), str(tmp_path), "7", JOB, f"{JOB}.0")
    process = Exec(command)
    yield process
    process.close()


def own(volume: Path) -> Path:
    return volume / ".trainyard" / "listening" / f"{JOB}.0"


def request(volume: Path) -> Path:
    return volume / ".trainyard" / "quiesce"


@pytest.mark.parametrize("has_lasted", [True, False])
def test_a_pause_counts_while_its_answer_stays(process: Exec, tmp_path: Path, has_lasted: bool) -> None:
    wait_until(request(tmp_path).exists, what="the request")
    own(tmp_path).write_text("7")
    pause = PodPause(process, UNLIMITED)
    assert pause.answer(patience(10)) == "paused"
    if not has_lasted:
        own(tmp_path).write_text("")
    assert pause.has_lasted() is has_lasted
    assert pause.answer(patience(10)) == ""
    assert not request(tmp_path).exists()


def test_a_program_that_takes_no_part_has_not_paused(process: Exec, tmp_path: Path) -> None:
    wait_until(request(tmp_path).exists, what="the request")
    process.close_input()
    own(tmp_path).unlink()
    pause = PodPause(process, UNLIMITED)
    assert pause.answer(patience(20)) == "not"


def test_without_a_process_nothing_has_paused() -> None:
    pause = PodPause(None, UNLIMITED)
    assert (pause.answer(1), pause.has_lasted()) == ("", False)
