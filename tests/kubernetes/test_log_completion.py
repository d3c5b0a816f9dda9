"""A pod is taken away only when its log was read: by us, by another process, or by nobody any more."""

from pathlib import Path

import pytest

from controlplane.engines.kubernetes.log_copier import BEGINNING_SECONDS, LOG_SECONDS, LogCopier
from controlplane.engines.kubernetes.log_copy import LogSource
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import Access
from controlplane.logstore.writer import LogWriter
from tests.waiting import wait_until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copier(clock: Clock) -> LogCopier:
    return LogCopier(Client(Access("http://127.0.0.1:9", None)), lambda _name: None, clock=clock)


def write(path: Path, *, is_complete: bool) -> None:
    writer = LogWriter(str(path))
    writer.add([(1, b"o", b"hello")])
    if is_complete:
        writer.end("exit 0")
    writer.close()


def test_another_process_is_waited_for_and_not_for_ever(
    copier: LogCopier, clock: Clock, tmp_path: Path
) -> None:
    path = tmp_path / "pod.log"
    write(path, is_complete=False)
    assert not copier.is_read("pod", path, has_begun=True)
    clock.now = LOG_SECONDS - 1
    assert not copier.is_read("pod", path, has_begun=True)
    clock.now = LOG_SECONDS + 1
    assert copier.is_read("pod", path, has_begun=True)
    copier.forget("pod")
    assert not copier.is_read("pod", path, has_begun=True)
    write(path, is_complete=True)
    assert copier.is_read("pod", path, has_begun=True)


@pytest.mark.parametrize(("has_begun", "is_read"), [(False, True), (True, False)])
def test_a_short_pod_may_end_before_anybody_has_begun_to_read(
    copier: LogCopier, clock: Clock, tmp_path: Path, has_begun: bool, is_read: bool
) -> None:
    clock.now = 3600.0
    assert copier.is_read("pod", tmp_path / "pod.log", has_begun=has_begun) is is_read
    clock.now += BEGINNING_SECONDS + 1
    assert copier.is_read("pod", tmp_path / "pod.log", has_begun=has_begun)


def test_what_we_read_ourselves_is_waited_for_as_long_as_it_takes(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "pod.log"
    source = LogSource("/log", True, "exit 0")
    copier = LogCopier(Client(Access("http://127.0.0.1:9", None)), lambda _name: source, clock=clock)
    copier.want({"pod": str(path)})
    wait_until(lambda: copier.is_wanted("pod"), what="the copier to have heard")
    try:
        for clock.now in (0.0, 2 * LOG_SECONDS):
            assert not copier.is_read("pod", path, has_begun=True)
    finally:
        copier.close()
