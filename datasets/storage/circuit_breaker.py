"""A circuit breaker: after a call without an answer, further calls fail at once for some time."""

import threading
import time
from collections.abc import Callable


class CircuitBreaker:
    """Open for `open_seconds` after each failure; then one call at a time is allowed until one succeeds. With
    0 seconds it never opens. Thread-safe."""

    def __init__(self, open_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_seconds, self._clock = open_seconds, clock
        self._opened_until: float | None = None
        self._lock = threading.Lock()

    def admits(self) -> bool:
        """Return whether a call may be made now. After a call that was allowed, the caller must `record` its
        result."""
        with self._lock:
            if self._opened_until is None:
                return True
            if self._clock() < self._opened_until:
                return False
            # Refuse others during a trial call: each could take the full time limit.
            self._opened_until = self._clock() + self._open_seconds
            return True

    def record(self, *, is_answered: bool) -> None:
        """Record whether a call that `admits` allowed got an answer: an answer closes the breaker, a call without one
        opens it."""
        with self._lock:
            if is_answered:
                self._opened_until = None
            elif self._open_seconds:
                self._opened_until = self._clock() + self._open_seconds
