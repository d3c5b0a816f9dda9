"""What asks programs to pause where only pods see a volume, over pipes in place of an exec."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines.base import STDOUT
from datasets import pod_quiesce
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


class Babble:
    """A process that prints without end."""

    def __init__(self, printed: bytes) -> None:
        self.printed, self.is_closed = printed, False
        self.ends = time.monotonic() + patience(10)

    def read(self, limit: int = 65536) -> tuple[int, bytes]:
        # A loop that does not end by itself ends here, so that the test fails instead of hanging.
        if time.monotonic() > self.ends:
            raise EOFError
        return STDOUT, self.printed

    def write(self, data: bytes) -> int:
        return len(data)

    def close(self) -> int | None:
        self.is_closed = True
        return None


@pytest.mark.parametrize("printed", [b"paused\n", b"x" * 65536], ids=["lines", "no line"])
def test_a_pod_that_prints_without_end_is_left_in_time_and_is_not_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch, printed: bytes
) -> None:
    monkeypatch.setattr(pod_quiesce, "ANSWER_SECONDS", 0.05)
    process = Babble(printed)
    pause = PodPause(process, UNLIMITED)  # type: ignore[arg-type]  # a double
    pause.end()
    assert process.is_closed
    assert time.monotonic() < process.ends
    assert len(pause._unread) <= pod_quiesce.UNREAD_BYTES
