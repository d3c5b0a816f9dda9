"""The copier's thread goes on, whatever one pod or the login does."""

import logging
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes import log_copier, names
from controlplane.engines.kubernetes.log_copier import LogCopier
from controlplane.engines.kubernetes.log_copy import LogSource
from controlplane.kubernetes_api import tokens
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.tokens import ExecToken
from tests.waiting import wait_until


class Login:
    """A token that cannot be had."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def current(self) -> str | None:
        self.asked.append(time.monotonic())
        raise EngineUnreachable("The login program failed.")

    def renew(self, refused: str | None) -> bool:
        return False


def test_a_login_that_fails_is_tried_with_pauses(tmp_path: Path) -> None:
    login = Login()
    copier = LogCopier(
        Client(Access("http://127.0.0.1:9", None, login)), lambda name: LogSource("/log", "main", True)
    )
    copier.want({"pod": str(tmp_path / "pod.log")})
    try:
        wait_until(lambda: len(login.asked) >= 4, 20, "tries")
    finally:
        copier.close()
    pauses = [later - earlier for earlier, later in zip(login.asked, login.asked[1:], strict=False)]
    assert pauses[0] >= 0.05
    assert pauses[2] >= 0.2


def test_one_odd_pod_is_logged_once_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "WAITING_SECONDS", 0.1)
    looked: Counter[str] = Counter()
    lock = threading.Lock()

    def look(name: str) -> LogSource | None:
        with lock:
            looked[name] += 1
        if name == "odd":
            raise KeyError("status")
        return LogSource("/log", "main", has_started=False)

    copier = LogCopier(Client(Access("http://127.0.0.1:9", None)), look)
    with caplog.at_level(logging.INFO):
        copier.want({name: str(tmp_path / name) for name in ("odd", "good")})
        try:
            wait_until(lambda: looked["odd"] >= 3 and looked["good"] >= 3, 20, "looks at both")
            copier.notice()
        finally:
            copier.close()
    assert [record.message for record in caplog.records if "odd" in record.message] == [
        "the log of odd cannot be copied"
    ]


def test_a_pod_that_has_not_started_is_looked_at_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "WAITING_SECONDS", 1000)
    looked: Counter[str] = Counter()

    def look(name: str) -> LogSource | None:
        looked[name] += 1
        return LogSource("/log", "main", has_started=False)

    copier = LogCopier(Client(Access("http://127.0.0.1:9", None)), look)
    copier.want({name: str(tmp_path / name) for name in ("changing", "quiet")})
    try:
        wait_until(lambda: looked["changing"] == looked["quiet"] == 1, 20, "the first looks")
        copier.notice(["changing"])
        wait_until(lambda: looked["changing"] == 2, 20, "another look")
    finally:
        copier.close()
    assert looked["quiet"] == 1


def test_a_login_program_that_failed_is_not_run_for_everybody_who_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, runs = [0.0], []

    def run_login(plugin: object) -> tuple[str, None]:
        runs.append(now[0])
        if len(runs) < 3:
            raise EngineRefused(tokens.EXEC_FAILED, "The login program is not on this server.")
        return "token", None

    monkeypatch.setattr(tokens, "run_login", run_login)
    token = ExecToken({}, clock=lambda: now[0])
    for _ in range(10):
        with pytest.raises(EngineRefused, match="not on this server"):
            token.current()
    assert runs == [0.0]
    now[0] = 3.0
    for _ in range(10):
        with pytest.raises(EngineRefused):
            token.current()
    now[0] = 20.0
    assert token.current() == "token"
    assert runs == [0.0, 3.0, 20.0]


@pytest.mark.parametrize("name", ["odd", "odd-x", "odd-²"])
def test_a_pod_that_no_operator_made_stands_for_itself(name: str) -> None:
    labels = {names.MPI_ROLE: "worker", names.MPI_JOB: "job"}
    assert names.operated_by({"metadata": {"name": name, "labels": labels}}) == name
