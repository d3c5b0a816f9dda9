"""Celery's transport with few wake-ups, against a real Redis: what an idle worker no longer wakes for comes at once."""

import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kombu import Connection, Queue
from kombu.asynchronous import Hub, get_event_loop, set_event_loop

from controlplane import redis_transport
from controlplane.celery_app import app
from tests import servers
from tests.waiting import patience, wait_until


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with servers.redis() as address:
        yield address


@dataclass
class Worker:
    """A consumer on a hub, as a Celery worker has: it holds `held` messages at most."""

    connection: Connection
    hub: Hub
    held: int
    messages: list[Any] = field(default_factory=list)
    turns: int = 0
    is_ended: bool = False

    def run(self) -> None:
        channel = self.connection.default_channel
        channel.basic_qos(0, self.held, False)
        with self.connection.Consumer([Queue("work")], channel=channel, on_message=self.messages.append):
            loop = self.hub.create_loop()
            while not self.is_ended:
                next(loop)
                self.turns += 1

    def end(self) -> None:
        self.is_ended = True
        self.hub.call_soon(lambda: None)


@pytest.fixture
def worker(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """Neither a timer nor Redis wakes its hub within a test."""
    monkeypatch.setattr(redis_transport.Transport, "brpop_timeout", 3600)
    before, hub = get_event_loop(), Hub()
    hub.fire_timers = lambda **_: 3600
    set_event_loop(hub)
    with app.connection_for_read(url) as connection:
        # By the main thread, as in a worker: only it may watch for signals.
        connection.register_with_event_loop(hub)
        running = Worker(connection, hub, held=1)
        thread = threading.Thread(target=running.run)
        thread.start()
        yield running
        running.end()
        thread.join(patience(30))
        assert not thread.is_alive()
    hub.close()
    set_event_loop(before)


def publish(url: str, *bodies: str) -> None:
    with Connection(url) as connection:
        for body in bodies:
            connection.SimpleQueue("work").put(body)


@pytest.mark.parametrize(
    "address", ["redis://localhost/0", "rediss://localhost/0", "redis+socket:///run/redis.sock"]
)
def test_the_worker_s_connections_use_it(address: str) -> None:
    assert isinstance(app.connection_for_read(address).transport, redis_transport.Transport)


@pytest.mark.parametrize(
    ("address", "seconds"),
    [
        ("redis://localhost/0", redis_transport.REQUEST_SECONDS),
        ("redis+socket:///run/redis.sock", redis_transport.LOCAL_REQUEST_SECONDS),
    ],
)
def test_a_request_on_a_connection_that_cannot_break_unnoticed_is_long(address: str, seconds: int) -> None:
    assert app.connection_for_read(address).transport.brpop_timeout == seconds


def test_a_worker_that_held_all_it_may_takes_the_next_message_after_an_acknowledgement(
    worker: Worker, url: str
) -> None:
    publish(url, "first", "second", "third")
    for number in range(1, 4):
        wait_until(lambda number=number: len(worker.messages) == number, what=f"message {number}")
        wait_until(lambda: not worker.connection.default_channel.qos.can_consume(), what="a full worker")
        done = threading.Thread(target=worker.messages[-1].ack)
        done.start()
        done.join()


def test_a_rejected_message_makes_room_too(worker: Worker, url: str) -> None:
    publish(url, "first", "second")
    wait_until(lambda: worker.messages, what="a message")
    worker.messages[0].reject()
    wait_until(lambda: len(worker.messages) == 2, what="the next message")
    worker.messages[1].ack()


def test_a_signal_wakes_the_hub(worker: Worker) -> None:
    """A worker reads whether it must stop when its hub wakes."""
    signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        turns = worker.turns
        signal.raise_signal(signal.SIGUSR2)
        wait_until(lambda: worker.turns > turns, what="a turn of the hub")
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)


def test_no_timer_of_the_transport_is_frequent(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    periods: list[float] = []
    monkeypatch.setattr(worker.hub, "call_repeatedly", lambda seconds, *_: periods.append(seconds))
    worker.connection.register_with_event_loop(worker.hub)
    assert periods
    assert min(periods) >= 30
