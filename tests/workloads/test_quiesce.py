"""Programs pause their writes for a snapshot, and say so."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from datasets.storage.quiesce import Pause, quiesced
from tests.waiting import wait_until
from workloads.common import quiesce, stopping
from workloads.common.quiesce import answering, writing

WAIT_SECONDS = 60  # for an answer, on a slow machine


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(quiesce.VOLUMES, str(tmp_path))
    monkeypatch.setenv("TRAINYARD_JOB_ID", "job")
    monkeypatch.setenv("TRAINYARD_RANK", "1")
    monkeypatch.setattr(quiesce, "POLL_SECONDS", 0.01)
    return tmp_path


def paused(volume: Path, **fields: object):
    return quiesced(volume, "s1", ["job"], **{"wait_seconds": WAIT_SECONDS, **fields})


@pytest.fixture
def writer(volume: Path) -> Iterator[Callable[[], threading.Event]]:
    """Write once on another thread; the event says that it is done."""
    threads: list[threading.Thread] = []

    def write() -> threading.Event:
        done = threading.Event()

        def run() -> None:
            with writing():
                (volume / "checkpoint").write_text("whole")
            done.set()

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return done

    yield write
    for thread in threads:
        thread.join()


def test_writes_wait_for_the_end_of_a_snapshot(volume: Path, writer: Callable[[], threading.Event]):
    with answering():
        with paused(volume) as pause:
            assert pause
            done = writer()
            assert not done.wait(0.1)
            assert not (volume / "checkpoint").exists()
            assert pause.has_lasted()
        assert done.wait(WAIT_SECONDS)
        assert (volume / "checkpoint").read_text() == "whole"
    assert list((volume / ".trainyard/listening").iterdir()) == []


def test_two_snapshots_at_once_pause_one_after_the_other(volume: Path):
    """As of an epoch that is also the best: the second one overwrote the first one's request."""
    is_first, first_is_over, lasted = threading.Event(), threading.Event(), []

    def second() -> None:
        with quiesced(volume, "s2", ["job"], wait_seconds=WAIT_SECONDS) as pause:
            lasted.append((first_is_over.is_set(), bool(pause), pause.has_lasted()))

    with answering():
        thread = threading.Thread(target=second)
        with paused(volume) as pause:
            assert pause
            thread.start()
            assert not is_first.wait(0.2)
            assert pause.has_lasted()
            first_is_over.set()
        thread.join()
    assert lasted == [(True, True, True)]


def test_a_job_that_holds_the_lock_delays_no_snapshot_for_long(volume: Path):
    (volume / ".trainyard").mkdir()
    own = os.open(volume / ".trainyard", os.O_RDONLY)
    fcntl.flock(own, fcntl.LOCK_EX)
    try:
        with answering(), paused(volume, wait_seconds=0.1) as pause:
            assert not pause
    finally:
        os.close(own)


def test_a_request_in_a_volume_that_was_restored_holds_nothing(volume: Path):
    (volume / ".trainyard").mkdir()
    (volume / ".trainyard/quiesce").write_text("of the snapshot that this volume was made of")
    file = quiesce._listen(volume, "job.1")
    assert file is not None
    assert quiesce._request(file) == ""
    with answering(), paused(volume) as pause:
        assert pause


def test_a_snapshot_waits_for_the_end_of_a_write(volume: Path):
    with answering():
        with writing():
            with paused(volume, wait_seconds=0.1) as pause:
                assert not pause
        with paused(volume) as pause:
            assert pause


def test_a_checkpoint_on_sigterm_does_not_wait_for_long_and_the_snapshot_knows(
    volume: Path, writer: Callable[[], threading.Event], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(stopping._state, "is_asked", True)
    monkeypatch.setattr(quiesce, "LONGEST_STOPPING_SECONDS", 0.05)
    with answering(), paused(volume) as pause:
        assert pause
        assert writer().wait(WAIT_SECONDS)
        assert not pause.has_lasted()


def test_a_request_that_is_never_taken_back_does_not_hold_the_program(
    volume: Path, writer: Callable[[], threading.Event], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(quiesce, "LONGEST_SECONDS", 0.05)
    with answering():
        (volume / ".trainyard/quiesce").write_text("s1")  # its control plane was killed
        wait_until(lambda: not (volume / ".trainyard/listening/job.1").exists(), what="its withdrawal")
        assert writer().wait(WAIT_SECONDS)


def test_only_files_of_pods_that_run_count(volume: Path):
    with answering():
        (volume / ".trainyard/listening/job.0").write_text("")  # was killed
        with paused(volume, wait_seconds=0.1) as pause:
            assert not pause
        with paused(volume, pods={"job.1"}) as pause:
            assert pause
    assert not Pause()
    assert not Pause().has_lasted()


def test_without_volumes_nothing_is_done(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(quiesce.VOLUMES, raising=False)
    before = threading.active_count()
    with answering(), writing():
        assert threading.active_count() == before
