"""What a pod puts in the place of the files that it shares with the engine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.engines.base import GangMember, MemberReport, PodSpec
from controlplane.engines.local.mpi import ERROR_FILE, first_error
from controlplane.engines.local.records import LONGEST_STATUS, PodDir, Prepared


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """End an open that blocks: nothing else would."""

    def end(number: int, frame: object) -> None:
        raise AssertionError("it blocks")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "elastic").mkdir()
    return tmp_path / "elastic"


def link(path: Path) -> None:
    path.with_name("other").write_text("{}")
    path.symlink_to("other")


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, link])
def test_what_is_no_file_is_no_status_and_never_blocks(shared: Path, put: Callable[[Path], None]):
    put(shared / "status.json")
    assert PodDir(shared.parent).exchange("") == MemberReport()


def test_a_pipe_in_the_place_of_the_membership_is_replaced(shared: Path):
    os.mkfifo(shared / "membership.json")
    PodDir(shared.parent).exchange("{}")
    assert (shared / "membership.json").read_text() == "{}"


def test_bytes_that_are_no_text_are_replaced_and_too_many_are_cut(shared: Path):
    (shared / "status.json").write_bytes(b"\xff" + b"a" * LONGEST_STATUS)
    assert PodDir(shared.parent).exchange("").text == "\ufffd" + "a" * (LONGEST_STATUS - 1)


@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, link])
def test_what_is_no_file_is_no_error_of_a_launcher_and_never_blocks(
    shared: Path, put: Callable[[Path], None]
):
    put(shared / "error")
    members = (GangMember(0, "pod-1-0", "node-a"),)
    spec = PodSpec("pod-1-0", "pod", "hyper1", "team-a", 1, 0, "node-a", launches=members)
    prepared = Prepared(spec, ("true",), {ERROR_FILE: str(shared / "error")}, str(shared), {}, 1)
    assert first_error(prepared) == ""
