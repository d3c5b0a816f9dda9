"""Two readers of one pod in the moment of its end: both tell the truth."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.local import reports
from controlplane.engines.local.records import PodDir, StartRecord
from tests.contract.harness import EngineCase, make_case
from tests.waiting import wait_until


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path)
    yield case
    case.close()


def test_a_pod_that_ends_between_two_looks_is_not_called_lost(
    case: EngineCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = case.start("true")
    pod = PodDir(tmp_path / "pods" / spec.name)
    started = pod.start_record()
    assert started is not None
    wait_until(lambda: not started.is_shim_alive(), what="the shim's end")
    read = PodDir.exit_record
    looks, looks_here = iter([None]), threading.get_ident()  # the first look came before the exit record
    monkeypatch.setattr(
        PodDir,
        "exit_record",
        lambda self: next(looks, read(self)) if threading.get_ident() == looks_here else read(self),
    )
    with PodDir(pod.path).locked() as is_alone:  # and another reader holds the lock for its own look
        assert is_alone
        assert reports.report(pod).state == base.SUCCEEDED


def test_a_pod_that_ends_while_its_report_is_made_is_not_called_lost(
    case: EngineCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = case.start("sleep", "300")
    pod = PodDir(tmp_path / "pods" / spec.name)
    wait_until(lambda: reports.report(pod).state == base.RUNNING, what="the start")
    # The shim was alive when the report began, and ended in good order right after.
    # The engine's threads ask as well, and are to take none of these answers.
    answers, asks_here = iter([True]), threading.get_ident()
    is_alive = StartRecord.is_shim_alive
    monkeypatch.setattr(
        StartRecord,
        "is_shim_alive",
        lambda self: next(answers, False) if threading.get_ident() == asks_here else is_alive(self),
    )
    assert reports.report(pod).state == base.RUNNING
