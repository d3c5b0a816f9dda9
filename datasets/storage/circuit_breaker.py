"""A circuit breaker: after a call that got no answer, further calls fail at once for a while."""

import threading
import time
from collections.abc import Callable


class CircuitBreaker:
    """Open for `open_seconds` after each failure; then one call at a time is let through until one succeeds. Never open
    with 0 seconds. Safe to use from several threads."""

    def __init__(self, open_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_seconds, self._clock = open_seconds, clock
        self._opened_until: float | None = None
        self._lock = threading.Lock()

    def admits(self) -> bool:
        """Return whether a call may be made; its result must be recorded."""
        with self._lock:
            if self._opened_until is None:
                return True
            if self._clock() < self._opened_until:
                return False
            # Others are refused while this one is under way: each could take its whole time.
            self._opened_until = self._clock() + self._open_seconds
            return True

    def record(self, *, is_answered: bool) -> None:
        """Note the result of a call."""
        with self._lock:
            if is_answered:
                self._opened_until = None
            elif self._open_seconds:
                self._opened_until = self._clock() + self._open_seconds
