"""Waiting for conditions instead of sleeping, so that a test ends as soon as its condition is true."""

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
SLOWEST = 10.0
# A poll of a running control plane takes 10 ms of a core: at the first pace throughout, a wait would take a third.
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.2
LATER_SHARE = 0.1


def slowness() -> float:
    """Return how many times longer things take on this machine now than without load, from 1 to SLOWEST: the
    processes that want a CPU, per CPU, over the last minute or now."""
    with open("/proc/loadavg") as file:
        last_minute, _, _, running, _ = file.read().split()
    wanted = max(float(last_minute), float(running.partition("/")[0]))
    return min(SLOWEST, max(1.0, wanted / (os.cpu_count() or 1)))


def patience(seconds: float) -> float:
    """Return the time limit for something that takes at most `seconds` without load, adapted to the present load."""
    return seconds * slowness()


def wait_until(predicate: Callable[[], T], timeout: float = 30.0, what: str = "the condition") -> T:
    """Call `predicate` until it returns a true value and return that. Raises AssertionError, which names `what`,
    after `timeout` seconds, or later on a busy machine. Calls become rarer while it waits."""
    start = time.monotonic()
    pause = threading.Event()
    while True:
        value = predicate()
        if value:
            return value
        waited = time.monotonic() - start
        if waited > timeout and waited > timeout * slowness():
            raise AssertionError(f"{what} did not come true within {waited:.0f} s (last value: {value!r})")
        pause.wait(next_pause(waited))


def next_pause(waited: float) -> float:
    """Return the seconds to the next call, a tenth of those waited so far, within limits."""
    return min(LONGEST_PAUSE, max(FIRST_PAUSE, LATER_SHARE * waited))
