"""The copier's thread goes on, whatever one pod or the login does."""

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes import log_copier, names
from controlplane.engines.kubernetes.log_copier import LogCopier
from controlplane.engines.kubernetes.log_copy import LogCopy, LogSource
from controlplane.kubernetes_api import tokens
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.tokens import ExecToken
from controlplane.logstore.reader import tail
from tests.serving import serving
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
        Client(Access("http://127.0.0.1:9", None, login)), lambda name: LogSource("/log", True)
    )
    copier.want({"pod": str(tmp_path / "pod.log")})
    try:
        wait_until(lambda: len(login.asked) >= 4, 20, "tries")
    finally:
        copier.close()
    pauses = [later - earlier for earlier, later in zip(login.asked, login.asked[1:], strict=False)]
    assert pauses[0] >= 0.05
    assert pauses[2] >= 0.2


class SlowLogin(Login):
    """A login program that does not end before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    def current(self) -> str | None:
        self.asked.append(time.monotonic())
        self.may_end.wait(60)
        raise EngineUnreachable("The login program failed.")


def test_a_slow_login_of_one_cluster_does_not_hold_the_logs_of_another(tmp_path: Path) -> None:
    slow, quick = SlowLogin(), Login()
    copiers = [
        LogCopier(Client(Access("http://127.0.0.1:9", None, login)), lambda name: LogSource("/log", True))
        for login in (slow, quick)
    ]
    try:
        # More than an event loop has threads.
        copiers[0].want({f"pod-{number}": str(tmp_path / f"{number}.log") for number in range(40)})
        wait_until(lambda: len(slow.asked) >= min(32, (os.cpu_count() or 1) + 4), 20, "the slow logins")
        copiers[1].want({"pod": str(tmp_path / "pod.log")})
        wait_until(lambda: quick.asked, 20, "the other cluster's login")
    finally:
        slow.may_end.set()
        for copier in copiers:
            copier.close()


def test_a_pod_that_counted_as_dead_until_its_node_came_back_keeps_its_stream(tmp_path: Path) -> None:
    sources = iter([LogSource("/log", True, end_word) for end_word in ("node_lost None", "")])
    copier = LogCopier(Client(Access("http://127.0.0.1:9", None, Login())), lambda name: next(sources))
    wanted = log_copier._WantedLog("pod", LogCopy(str(tmp_path / "pod.log")))
    copier._look_at(wanted)
    assert wanted.ended_at is not None
    copier._look_at(wanted)
    assert wanted.ended_at is None


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
        return LogSource("/log", has_started=False)

    copier = LogCopier(Client(Access("http://127.0.0.1:9", None)), look)
    with caplog.at_level(logging.INFO):
        copier.want({name: str(tmp_path / name) for name in ("odd", "good")})
        try:
            wait_until(lambda: looked["odd"] >= 3 and looked["good"] >= 3, 20, "looks at both")
            copier.notice(())
        finally:
            copier.close()
    assert [record.message for record in caplog.records if "odd" in record.message] == [
        "the log of odd cannot be copied: 'status'"
    ]


def test_a_pod_that_has_not_started_is_looked_at_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "WAITING_SECONDS", 1000)
    looked: Counter[str] = Counter()

    def look(name: str) -> LogSource | None:
        looked[name] += 1
        return LogSource("/log", has_started=False)

    copier = LogCopier(Client(Access("http://127.0.0.1:9", None)), look)
    copier.want({name: str(tmp_path / name) for name in ("changing", "quiet")})
    try:
        wait_until(lambda: looked["changing"] == looked["quiet"] == 1, 20, "the first looks")
        copier.notice(["changing"])
        wait_until(lambda: looked["changing"] == 2, 20, "another look")
    finally:
        copier.close()
    assert looked["quiet"] == 1


@pytest.fixture
def node() -> Iterator[str]:
    """A node whose logs have one line, and go on for ever where they are followed."""
    is_over = threading.Event()

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"2026-01-01T12:00:00.000Z of {self.path.split('/')[1]}\n".encode())
            if "follow" in self.path:
                is_over.wait()

        def log_message(self, *_words: object) -> None:
            return

    with served(Node) as url:
        yield url
        is_over.set()


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd, serving(httpd):
        yield f"http://127.0.0.1:{httpd.server_port}"


def lines_of(path: Path) -> list[str]:
    return [line.text for line in tail(path, 10).lines] if path.exists() else []


def test_logs_take_turns_where_there_are_too_few_streams(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "CHECK_SECONDS", 0.05)
    pods = [f"pod{number}" for number in range(5)]
    copier = LogCopier(
        Client(Access(node, None)), lambda name: LogSource(f"/{name}/log", True), most_streams=2
    )
    copier.want({name: str(tmp_path / name) for name in pods})
    try:
        wait_until(lambda: all(lines_of(tmp_path / name) for name in pods), what="a line of each")
    finally:
        copier.close()
    assert [lines_of(tmp_path / name) for name in pods] == [[f"of {name}"] for name in pods]


def test_no_log_waits_for_ever_when_the_one_that_made_room_does_not_come_back(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one stream for living pods. The first pod is asked to leave it once for two that wait, and then ends."""
    monkeypatch.setattr(log_copier, "CHECK_SECONDS", 0.05)
    end_words = {"first": ""}
    copier = LogCopier(
        Client(Access(node, None)),
        lambda name: LogSource(f"/{name}/log", True, end_words.get(name, "")),
        most_streams=2,
    )
    copier.want({"first": str(tmp_path / "first")})
    try:
        wait_until(lambda: lines_of(tmp_path / "first"), what="the first one's stream")
        end_words["first"] = "exit 0"
        copier.want({name: str(tmp_path / name) for name in ("first", "second", "third")})
        wait_until(lambda: lines_of(tmp_path / "second") and lines_of(tmp_path / "third"), what="the others")
    finally:
        copier.close()


def test_the_wait_for_a_stream_is_not_taken_from_the_tries_of_an_ended_pods_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No log is given up because this machine is slow.
    monkeypatch.setattr(log_copier, "AWAY_SECONDS", 600.0)
    passed, asked, looked = 0.0, Counter[str](), Counter[str]()
    is_free = threading.Event()
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed)
    monkeypatch.setattr(log_copier, "time", clock)

    class Node(BaseHTTPRequestHandler):
        """Gives the first pod's log when it may; has the second's at the second request."""

        def do_GET(self) -> None:
            name = self.path.split("/")[1]
            asked[name] += 1
            if name == "first":
                is_free.wait()
            is_away = name == "second" and asked[name] == 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"no such file\n" if is_away else b"2026-01-01T12:00:00.000Z last\n")

        def log_message(self, *_words: object) -> None:
            return

    def look(name: str) -> LogSource:
        looked[name] += 1
        return LogSource(f"/{name}/log", name != "third", "" if name == "third" else "exit 0")

    with served(Node) as url:
        copier = LogCopier(Client(Access(url, None)), look, most_streams=2)
        try:
            for count in (1, 2, 3):
                # One after the other: when the third is looked at, the second waits for the first one's stream.
                pods = ("first", "second", "third")[:count]
                copier.want({name: str(tmp_path / name) for name in pods})
                wait_until(lambda pods=pods: looked[pods[-1]], what="a look")
                wait_until(lambda: asked["first"], what="the first one's stream")
            passed += 10 * log_copier.AWAY_SECONDS
            is_free.set()
            wait_until(lambda: tail(tmp_path / "second", 1).complete, what="the end")
        finally:
            is_free.set()
            copier.close()
    page = tail(tmp_path / "second", 10)
    assert ([line.text for line in page.lines], page.gaps) == (["last"], ())


def test_an_ended_pod_waits_for_no_living_one(node: str, tmp_path: Path) -> None:
    def look(name: str) -> LogSource:
        return LogSource(f"/{name}/log", True, "exit 0" if name == "ended" else "")

    copier = LogCopier(Client(Access(node, None)), look, most_streams=2)
    copier.want({"living": str(tmp_path / "living")})
    try:
        wait_until(lambda: lines_of(tmp_path / "living"), what="the living one's stream")
        copier.want({name: str(tmp_path / name) for name in ("living", "ended")})
        wait_until(lambda: copier.wait_drained("ended", 1.0), what="the end")
    finally:
        copier.close()
    assert lines_of(tmp_path / "ended") == ["of ended"]


def test_a_stream_that_the_server_does_not_close_is_left_when_its_pod_has_ended(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(log_copier, "END_SECONDS", 0.1)
    end_word: list[str] = []
    path = tmp_path / "pod"
    copier = LogCopier(
        Client(Access(node, None)), lambda name: LogSource("/pod/log", True, "".join(end_word))
    )
    copier.want({"pod": str(path)})
    try:
        wait_until(lambda: lines_of(path), what="the stream")
        end_word.append("exit 0")
        wait_until(lambda: tail(path, 1).complete, what="the end")
    finally:
        copier.close()
    assert lines_of(path) == ["of pod"]


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
