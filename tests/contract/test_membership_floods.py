"""Connections to elastic pods whose other end is not the agent: the user's own python3, or none. They do not delay the
other pods, and are opened again more and more rarely."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Iterator
from itertools import chain, repeat

import pytest

from bench import membership_kubernetes
from controlplane.engines.base import STDERR, STDOUT
from controlplane.engines.kubernetes import membership
from controlplane.engines.kubernetes.membership import Memberships
from tests.waiting import patience, wait_until

Piece = tuple[int, bytes]
AGE: Piece = STDOUT, b'{"age": 0}\n'


def status(text: str) -> Piece:
    return STDOUT, b'{"age": 0, "text": "%s"}\n' % text.encode()


class Connection:
    """An exec that has printed `pieces`. As in a real one, its descriptor is readable for the first; those that came
    with it are in the memory of this process."""

    def __init__(self, pieces: Iterable[Piece], *, is_ended: bool) -> None:
        self.pieces, self.is_ended = iter(pieces), is_ended
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.send(b".")
        self.written, self.is_closed = b"", False

    def fileno(self) -> int:
        return self.near.fileno()

    def input_fileno(self) -> int:
        return self.near.fileno()

    def read(self, limit: int = 65536) -> Piece:
        try:
            self.near.recv(limit)
        except BlockingIOError:
            pass
        piece = next(self.pieces, None)
        if piece is None and self.is_ended:
            raise EOFError
        return piece or (STDOUT, b"")

    def write(self, data: bytes) -> int:
        self.written += data
        return len(data)

    def close_input(self) -> None:
        pass

    def close(self) -> int | None:
        self.near.close()
        self.far.close()
        self.is_closed = True
        return None


class Pods:
    """Pods by name; `outputs` are what their next connections print, after which those end. Others print nothing and
    stay. "slow" is opened once it may be. The clock is set by hand."""

    def __init__(self) -> None:
        self.now, self.rings, self.may_open = 1000.0, 0, threading.Event()
        self.outputs: dict[str, Iterator[Iterable[Piece]]] = {}
        self.opened: list[tuple[str, float, Connection]] = []
        self.memberships = Memberships(self.open, self.ring)

    def monotonic(self) -> float:
        return self.now

    def open(self, name: str) -> Connection:
        if name == "slow":
            assert self.may_open.wait(patience(20))
        pieces = next(self.outputs.get(name, iter(())), None)
        connection = Connection(pieces or (), is_ended=pieces is not None)
        self.opened.append((name, self.now, connection))
        return connection

    def ring(self) -> None:
        self.rings += 1

    def ask(self, name: str, given: str = "") -> str:
        return self.memberships.exchange(name, given, is_running=True).text

    def connections(self, name: str) -> list[Connection]:
        return [connection for one, _, connection in self.opened if one == name]

    def opened_within(self, name: str, seconds: int) -> list[float]:
        """Ask for a pod once a second; return when its connections were opened. Each has ended before the next."""
        began = self.now
        for second in range(seconds + 1):
            self.now = began + second
            self.ask(name)
            # Whatever is opened at this second is opened before this one.
            self.ask(f"other-{second}")
            wait_until(lambda at=second: self.connections(f"other-{at}"), 20, "another pod's connection")
            wait_until(lambda: all(one.is_closed for one in self.connections(name)), 20, "the end of them")
        return [at - began for one, at, _ in self.opened if one == name]


@pytest.fixture
def pods(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pods]:
    # One after the other, in the order in which they were asked about.
    monkeypatch.setattr(membership, "OPENING", 1)
    pods = Pods()
    monkeypatch.setattr(membership, "time", pods)
    yield pods
    closing = threading.Thread(target=pods.memberships.close, daemon=True)
    closing.start()
    closing.join(patience(20))
    assert not closing.is_alive()
    assert all(connection.is_closed for _, _, connection in pods.opened)


@pytest.mark.parametrize(
    "piece", [AGE, (STDERR, b"no\n"), (STDOUT, b"x" * 30_000)], ids=["lines", "stderr", "line"]
)
def test_a_pod_that_prints_without_end_loses_its_connection_and_delays_no_other(pods: Pods, piece: Piece):
    pods.outputs["pod"] = repeat(repeat(piece))
    pods.ask("pod")
    wait_until(lambda: pods.connections("pod"), 20, "the first connection")
    pods.ask("good", "given")
    wait_until(lambda: pods.connections("good") and pods.connections("good")[0].written, 20, "a membership")
    wait_until(lambda: pods.connections("pod")[0].is_closed, 20, "the end of the other connection")


def test_close_ends_while_a_pod_prints(pods: Pods, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(membership, "MOST_LINES", 10**9)
    pods.outputs["pod"] = repeat(repeat(AGE))
    pods.ask("pod")
    wait_until(lambda: pods.connections("pod"), 20, "the connection")


def test_close_closes_what_waits_for_that(pods: Pods):
    pods.ask("pod", "given")
    wait_until(lambda: pods.connections("pod") and pods.connections("pod")[0].written, 20, "the connection")
    pods.ask("slow")
    pods.memberships.forget("pod")
    wait_until(lambda: "pod" not in pods.memberships._members, 20, "the end of the connection")
    closing = threading.Thread(target=pods.memberships.close, daemon=True)
    closing.start()
    wait_until(lambda: pods.memberships._is_closed, 20, "the start of closing")
    pods.may_open.set()
    closing.join(patience(20))
    assert pods.connections("pod")[0].is_closed


def test_a_pod_that_is_no_longer_asked_about_loses_its_connection_and_is_dropped(pods: Pods):
    pods.ask("pod", "given")
    wait_until(lambda: pods.connections("pod") and pods.connections("pod")[0].written, 20, "the connection")
    pods.now += membership.UNASKED_SECONDS + 1
    pods.ask("good")
    pods.connections("pod")[0].far.send(b".")
    wait_until(lambda: pods.connections("pod")[0].is_closed, 20, "its end")
    assert "pod" not in pods.memberships._members


def test_a_new_membership_follows_one_that_the_pod_takes_slowly(pods: Pods, monkeypatch: pytest.MonkeyPatch):
    taken = iter([3, 0, 0])
    write = Connection.write
    monkeypatch.setattr(Connection, "write", lambda self, data: write(self, data[: next(taken, len(data))]))
    pods.ask("pod", "first")
    wait_until(lambda: pods.connections("pod") and pods.connections("pod")[0].written, 20, "some of it")
    pods.ask("pod", "second")
    wait_until(lambda: pods.connections("pod")[0].written == b'"first"\n"second"\n', 20, "both, whole")


def test_what_one_turn_left_is_read_and_only_new_texts_ring(pods: Pods):
    pods.outputs["pod"] = iter([[*[status("old")] * 50, status("new")]])
    pods.ask("pod")
    wait_until(lambda: pods.ask("pod") == "new", 20, "the last status")
    assert pods.rings == 2


@pytest.mark.parametrize("line", [b"[" * 200_000, b'{"age": 1%s}' % (b"0" * 400)], ids=["deep", "large"])
def test_lines_that_no_agent_prints_are_ignored(pods: Pods, line: bytes):
    pods.outputs["pod"] = iter([[(STDOUT, line + b"\n"), status("good")]])
    pods.ask("pod")
    wait_until(lambda: pods.ask("pod") == "good", 20, "the status")


def test_error_output_is_logged_once_per_connection(pods: Pods, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, membership.__name__)
    pods.outputs["pod"] = iter([[(STDERR, b"first\n"), (STDERR, b"second\n"), status("good")]])
    pods.ask("pod")
    wait_until(lambda: pods.ask("pod") == "good", 20, "the status")
    assert [record.args for record in caplog.records] == [("first\n",)]


def test_pods_without_an_agent_are_asked_more_and_more_rarely(pods: Pods, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(membership, "LONGEST_PAUSE_SECONDS", 8.0)
    silent = [(STDERR, b"python3: not found\n")]
    pods.outputs["pod"] = chain(repeat(silent, 5), [[AGE]], repeat(silent))
    assert pods.opened_within("pod", 33) == [0, 2, 6, 14, 22, 30, 31, 33]


@pytest.mark.parametrize(("lasted", "pause"), [(1.0, 2.0), (61.0, 1.0)])
def test_a_connection_that_lasted_before_its_first_report_is_opened_again_soon(
    pods: Pods, lasted: float, pause: float
):
    pods.ask("pod", "given")
    # Its time counts from when it is served.
    wait_until(lambda: pods.connections("pod") and pods.connections("pod")[0].written, 20, "the connection")
    (connection,) = pods.connections("pod")
    pods.now += lasted
    connection.is_ended = True
    connection.far.send(b".")
    wait_until(lambda: connection.is_closed, 20, "its end")
    assert pods.memberships._members["pod"].not_before == pods.now + pause


def test_floods_are_asked_more_and_more_rarely(pods: Pods):
    pods.outputs["pod"] = repeat(repeat(AGE))
    assert pods.opened_within("pod", 14) == [0, 2, 6, 14]


def test_the_bench_ends_where_a_pod_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(membership_kubernetes, "LONGEST_SECONDS", 0.01)
    with pytest.raises(TimeoutError):
        membership_kubernetes.trip(lambda _: None, lambda _: False)


class Lost(Connection):
    """A connection whose end waits for an API server that does not answer, until `is_back`."""

    def __init__(self, is_back: threading.Event, ending: list[Lost]) -> None:
        super().__init__((), is_ended=False)
        self.is_back, self.ending = is_back, ending

    def close(self) -> int | None:
        self.ending.append(self)
        assert self.is_back.wait(patience(60))
        return super().close()


def lost_connections(number: int) -> tuple[Memberships, threading.Event, list[Lost]]:
    """Return open connections to so many pods, and those that are being ended."""
    is_back, ending, opened = threading.Event(), list[Lost](), list[Lost]()

    def open_agent(name: str) -> Lost:
        opened.append(Lost(is_back, ending))
        return opened[-1]

    memberships = Memberships(open_agent, lambda: None)
    for pod in range(number):
        memberships.exchange(f"pod-{pod}", "{}", is_running=True)
    wait_until(lambda: len(opened) == number and all(one.written for one in opened), 20, "the connections")
    return memberships, is_back, ending


def test_connections_of_a_lost_api_server_are_closed_at_once():
    memberships, is_back, ending = lost_connections(30)
    closing = threading.Thread(target=memberships.close, daemon=True)
    closing.start()
    try:
        wait_until(lambda: len(ending) == 30, 20, "the end of each connection beside the others")
    finally:
        is_back.set()
    closing.join(patience(20))
    assert not closing.is_alive()
    assert all(one.is_closed for one in ending)


def test_closing_waits_for_a_lost_api_server_for_a_limited_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(membership, "CLOSING_SECONDS", 0.05, raising=False)
    memberships, is_back, ending = lost_connections(3)
    closing = threading.Thread(target=memberships.close, daemon=True)
    closing.start()
    closing.join(patience(20))
    is_late = closing.is_alive()
    is_back.set()
    assert not is_late
    wait_until(
        lambda: len(ending) == 3 and all(one.is_closed for one in ending), 20, "the ends that were left"
    )
