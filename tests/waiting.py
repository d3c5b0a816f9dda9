"""Wait on conditions instead of sleeping: a test is as fast as the thing it waits for."""

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
    """How many times longer than alone things take on this machine now: processes that want a CPU, for each CPU, over
    the last minute or at this moment, from 1 to SLOWEST."""
    with open("/proc/loadavg") as file:
        last_minute, _, _, running, _ = file.read().split()
    wanted = max(float(last_minute), float(running.partition("/")[0]))
    return min(SLOWEST, max(1.0, wanted / (os.cpu_count() or 1)))


def patience(seconds: float) -> float:
    """Return the limit to wait with where `seconds` are ample on a quiet machine, as busy as this one is now."""
    return seconds * slowness()


def wait_until(predicate: Callable[[], T], timeout: float = 30.0, what: str = "the condition") -> T:
    """Poll until `predicate` returns something true and return that; fail with `what` after `timeout` seconds, longer
    on a busy machine. Polls become rarer while it waits."""
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
    """Return the seconds to the next poll: what has been waited grows by a tenth at most."""
    return min(LONGEST_PAUSE, max(FIRST_PAUSE, LATER_SHARE * waited))
