"""A limit on attempts, kept in this process: no request waits on Redis, and a restart forgives."""

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable

from controlplane.api.problems import Problem

MOST_KEYS = 10_000


class Throttle:
    """At most `times` attempts by one key in any `seconds`."""

    def __init__(self, times: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._seconds, self._clock = times, seconds, clock
        self._attempts: OrderedDict[Hashable, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def attempt(self, key: Hashable) -> None:
        """Count an attempt. Raises Problem (429) with Retry-After when it is one too many."""
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
        detail = f"Too many attempts; try again in {wait} s."
        raise Problem(429, "too_many_requests", detail, headers={"Retry-After": str(wait)})

    def forgive(self, key: Hashable) -> None:
        """Forget the attempts of a key, after one that was right."""
        with self._lock:
            self._attempts.pop(key, None)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._attempts.clear()

    def _forget_oldest(self) -> None:
        while len(self._attempts) > MOST_KEYS:
            self._attempts.popitem(last=False)
