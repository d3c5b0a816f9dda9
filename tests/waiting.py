"""Wait on conditions instead of sleeping: a test is as fast as the thing it waits for."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 30.0, what: str = "the condition") -> T:
    """Poll until `predicate` returns something true and return that; fail with `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout:g} s (last value: {value!r})")
        pause.wait(0.02)
