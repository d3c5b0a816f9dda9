"""Request a cycle of the loop soon after a commit. A lost request costs one period at most, never correctness.

In the loop's own process the listener is called directly. Elsewhere a background thread publishes a Celery task: so
no request waits for Redis and, since the thread's queue has one entry, a burst of commits sends one task.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from django.db import transaction

logger = logging.getLogger(__name__)

# The gap between two wake-ups from one process: the first of a burst is sent at once, later ones together. A
# wake-up costs as much as writing a job's rows. When they arrive faster than the gap, the loop is running
# anyway, so the gap grows.
GAP_SECONDS, LONGEST_GAP_SECONDS = 0.05, 0.4
# This many wake-ups requested within one gap make the gap grow.
MANY = 3

_listeners: list[Callable[[], None]] = []
_pending: "queue.Queue[None]" = queue.Queue(maxsize=1)
_publisher_lock = threading.Lock()
_publisher: threading.Thread | None = None
# The number of wake-ups requested so far.
_asked = 0


def wake() -> None:
    """Request a cycle after the current transaction commits; at once without a transaction."""
    transaction.on_commit(wake_now, robust=True)


def listen(listener: Callable[[], None]) -> None:
    """Call `listener` at every wake-up in this process, from the thread that requests it."""
    _listeners.append(listener)


def stop_listening(listener: Callable[[], None]) -> None:
    """Call `listener` no more. Raise ValueError if it was not listening."""
    _listeners.remove(listener)


def notify_listeners() -> bool:
    """Call the listeners of this process. Return False if it has none, because it runs no loop."""
    for listener in _listeners:
        listener()
    return bool(_listeners)


def wake_now() -> None:
    """Request a cycle at once, even inside a transaction. Does not wait for Redis."""
    global _asked
    if notify_listeners():
        return
    _asked += 1
    # If the queue is full, a wake-up is about to be sent already.
    with suppress(queue.Full):
        _pending.put_nowait(None)
    _ensure_publisher()


def _ensure_publisher() -> None:
    global _publisher
    with _publisher_lock:
        if _publisher is None or not _publisher.is_alive():
            # A daemon thread: it waits for wake-ups until the process ends, and may lose one.
            _publisher = threading.Thread(target=_publish_forever, name="wake-publisher", daemon=True)
            _publisher.start()


def _publish_forever() -> None:
    # Imported here, because the Redis client takes 10 MB that a process which never publishes does not need.
    from kombu.exceptions import OperationalError
    from redis.exceptions import RedisError

    from controlplane.loop.tasks import wake_loop

    gap = GAP_SECONDS
    while True:
        _pending.get()
        before = _asked
        try:
            wake_loop.apply_async(retry=False, ignore_result=True)
        except (OperationalError, RedisError, OSError) as error:
            # A lost wake-up is harmless: the loop's own period finds the work.
            logger.warning("could not publish a wake-up (%s); the loop finds the work when it polls", error)
        time.sleep(gap)
        gap = min(2 * gap, LONGEST_GAP_SECONDS) if _asked - before >= MANY else GAP_SECONDS
