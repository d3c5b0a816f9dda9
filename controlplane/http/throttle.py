"""Limits on attempts, rates and concurrency, kept in the memory of this process, so that no request waits for
Redis. A restart resets them."""

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

# Bounds the memory that requests with ever new names or addresses could fill.
MOST_KEYS = 10_000


class TooManyAttempts(Exception):
    """The limit is reached; the next attempt is allowed in `wait_seconds`."""

    def __init__(self, wait_seconds: int) -> None:
        super().__init__(f"Too many attempts; try again in {wait_seconds} s.")
        self.wait_seconds = wait_seconds


class Throttle:
    """Allows at most `times` attempts per key in any period of `seconds`. Thread-safe. Remembers only the MOST_KEYS
    latest keys."""

    def __init__(self, times: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._times, self._seconds, self._clock = times, seconds, clock
        self._attempts: OrderedDict[Hashable, deque[float]] = OrderedDict()
        # Requests that hash passwords count their attempts on threads of their own.
        self._lock = threading.Lock()

    def attempt(self, key: Hashable) -> None:
        """Count an attempt. Raise TooManyAttempts, without counting it, if the key has reached the limit."""
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
        """Uncount the latest attempt of a key, for example after a success. Does nothing for a key without attempts."""
        with self._lock:
            made = self._attempts.get(key)
            if made:
                made.pop()

    def forgive(self, key: Hashable) -> None:
        """Uncount all attempts of a key, for example after a success."""
        with self._lock:
            self._attempts.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._attempts.clear()

    def _forget_oldest(self) -> None:
        while len(self._attempts) > MOST_KEYS:
            self._attempts.popitem(last=False)


class TooManyAtOnce(Exception):
    """All slots of a key are in use."""


class Slots:
    """Allows at most `most` concurrent holders per key. Not thread-safe: for one event loop or thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: Counter[Hashable] = Counter()

    @contextmanager
    def hold(self, key: Hashable) -> Iterator[None]:
        """Context manager that holds a slot of `key` until its block ends. Raise TooManyAtOnce if all are in use."""
        self.take(key)
        try:
            yield
        finally:
            self.give_back(key)

    def take(self, key: Hashable) -> None:
        """Take a slot of `key` until `give_back`. Raise TooManyAtOnce if all are in use."""
        if self._held[key] >= self.most:
            raise TooManyAtOnce
        self._held[key] += 1

    def give_back(self, key: Hashable) -> None:
        """Release one slot of `key` that was taken with `take`."""
        self._held[key] -= 1
        if not self._held[key]:
            del self._held[key]


class Rate:
    """A token bucket: allows `burst` uses at once, and `per_second` on average. Not thread-safe."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second, self._burst, self._clock = per_second, burst, clock
        self._left, self._at = float(burst), clock()

    def is_spent(self) -> bool:
        """Use one token and return False; return True, using none, if none is left."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < 1:
            return True
        self._left -= 1
        return False
