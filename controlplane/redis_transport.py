"""Celery's Redis transport with few wake-ups: an idle worker of Celery's own wakes two to three times a second.

Those wake-ups also bound two delays, so here each has a wake-up of its own: a signal, and a message that may be
consumed because another one was acknowledged.
"""

import signal
import socket
import threading
from functools import cache
from typing import Any

from kombu.asynchronous import get_event_loop
from kombu.transport import redis

# The longest time that Redis holds a request for messages. A request on a connection that broke without notice is
# given up after this plus two health checks (25 s each).
REQUEST_SECONDS = 10
# The same on a Unix socket, whose connections never break without notice.
LOCAL_REQUEST_SECONDS = 60
LOCAL = "socket://"
# The shortest period of the transport's timers. One has a period of a second: it renews queues that expire, which we
# do not have.
TIMER_SECONDS = 30


class QoS(redis.QoS):
    """The messages that a worker holds. A worker that holds as many as it may asks Redis for no more, so here every
    acknowledgement or rejection wakes the hub to ask again."""

    def ack(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)  # type: ignore[no-untyped-call]  # kombu has types for some functions
        _consume_again()

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        super().reject(delivery_tag, requeue)  # type: ignore[no-untyped-call]  # kombu has types for some functions
        _consume_again()


class Channel(redis.Channel):
    """A channel whose messages are counted by our QoS."""

    QoS = QoS


class Transport(redis.Transport):
    """Celery's Redis transport, whose hub sleeps until a message, a signal or a rare timer."""

    Channel = Channel
    brpop_timeout = REQUEST_SECONDS

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)  # type: ignore[no-untyped-call]  # kombu has types for some functions
        if (client.hostname or "").startswith(LOCAL):
            self.brpop_timeout = LOCAL_REQUEST_SECONDS

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Add the connection's sockets and timers to the hub `loop`, once per connection."""
        super().register_with_event_loop(connection, _RareTimers(loop))  # type: ignore[no-untyped-call]  # kombu has types for some functions
        if threading.current_thread() is threading.main_thread():
            reader = _signal_reader()
            loop.add_reader(reader, _drain, reader)


class _RareTimers:
    """A hub whose periodic timers have a period of at least TIMER_SECONDS."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hub, name)

    def call_repeatedly(self, seconds: float, *work: Any) -> Any:
        """Call `work` (a function and its arguments) every `seconds`, at least TIMER_SECONDS."""
        return self._hub.call_repeatedly(max(seconds, TIMER_SECONDS), *work)


def _consume_again() -> None:
    """Have the hub ask for messages, because the worker may hold one more. Called by the thread of any task."""
    hub: Any = get_event_loop()
    if hub is not None:
        hub.call_soon(lambda: None)


@cache
def _signal_reader() -> socket.socket:
    """Return a socket that becomes readable when this process receives a signal that has a handler.

    Celery's handlers set a flag that is read when the hub wakes, and Python continues a wait for events after a
    handler has run. Must be called by the main thread.
    """
    reader, writer = socket.socketpair()
    for end in (reader, writer):
        end.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    return reader


def _drain(reader: socket.socket) -> None:
    reader.recv(4096)
