"""A limit on attempts, kept in this process: no request waits on Redis, and a restart forgives."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

MOST_KEYS = 10_000


class TooManyAttempts(Exception):
    """One attempt too many; the next one may be made in `wait_seconds`."""

    def __init__(self, wait_seconds: int) -> None:
        super().__init__(f"Too many attempts; try again in {wait_seconds} s.")
        self.wait_seconds = wait_seconds


class Throttle:
    """At most `times` attempts by one key in any `seconds`."""

    def __init__(self, times: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._seconds, self._clock = times, seconds, clock
        self._attempts: OrderedDict[Hashable, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def attempt(self, key: Hashable) -> None:
        """Count an attempt. Raises TooManyAttempts when it is one too many."""
        now = self._clock()
        with self._lock:
            made = self._attempts.setdefault(key, deque())
            self._attempts.move_to_end(key)
            while made and made[0] <= now - self._seconds:
                made.popleft()
            if len(made) < self._times:
                made.append(now)
                self._forget_oldest()
                return
            wait = max(1, round(made[0] + self._seconds - now))
        raise TooManyAttempts(wait)

    def take_back(self, key: Hashable) -> None:
        """Forget the latest attempt of a key: it was right, so it is none to be counted."""
        with self._lock:
            made = self._attempts.get(key)
            if made:
                made.pop()

    def forgive(self, key: Hashable) -> None:
        """Forget all attempts of a key, after one that was right."""
        with self._lock:
            self._attempts.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._attempts.clear()

    def _forget_oldest(self) -> None:
        while len(self._attempts) > MOST_KEYS:
            self._attempts.popitem(last=False)
