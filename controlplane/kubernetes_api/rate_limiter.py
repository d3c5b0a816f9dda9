"""A rate limit for the requests to one API server: urgent ones first, and none while the server asks clients to
wait."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

# Priorities, smallest first. Requests that free GPUs come first, because other jobs wait for these; then
# reads, then requests that take GPUs.
URGENT = 0  # deletes and status
READ = 1
CREATE = 2
# Followed logs come last: thousands of streams begin together with thousands of pods, which must be created
# first.
FOLLOW = 3

RATE_PER_SECOND = 500.0
BURST = 1000
LONGEST_PAUSE_SECONDS = 30.0


class Allowance:
    """The arithmetic of a token bucket, without threads or waiting. Callers pass the time, in seconds of one clock.
    Raise ValueError unless the rate is above 0 and the burst at least 1."""

    def __init__(self, rate_per_second: float, burst: int, now: float) -> None:
        if rate_per_second <= 0 or burst < 1:
            raise ValueError("a rate is above 0 and a burst at least 1")
        self._rate, self._burst = rate_per_second, float(burst)
        self._tokens, self._filled_at, self._quiet_until = float(burst), now, now

    def seconds_until_free(self, now: float) -> float:
        """Return the seconds until a request may be sent; 0 if it may be sent now."""
        self._fill(now)
        missing = max(0.0, 1.0 - self._tokens) / self._rate
        return max(missing, self._quiet_until - now, 0.0)

    def take(self) -> None:
        self._tokens -= 1.0

    def pause(self, now: float, seconds: float) -> None:
        """Allow no request for `seconds` from `now`, at most LONGEST_PAUSE_SECONDS. A longer pause in progress is
        kept."""
        self._quiet_until = max(self._quiet_until, now + min(max(seconds, 0.0), LONGEST_PAUSE_SECONDS))

    def _fill(self, now: float) -> None:
        gained = max(0.0, now - self._filled_at) * self._rate
        self._tokens, self._filled_at = min(self._burst, self._tokens + gained), now


class TokenBucket:
    """The rate limit of one cluster's requests, shared by all threads. Waiting requests are served by priority, then
    in order of arrival."""

    def __init__(
        self,
        rate_per_second: float = RATE_PER_SECOND,
        burst: int = BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._allowance = Allowance(rate_per_second, burst, clock())
        self._changed = threading.Condition()
        self._waiting: list[tuple[int, int]] = []
        self._numbers = itertools.count()

    def acquire(self, priority: int = READ, timeout_seconds: float = 60.0) -> bool:
        """Block until one request may be sent, and return True; False after `timeout_seconds`. A lower `priority` is
        served first."""
        deadline = self._clock() + timeout_seconds
        with self._changed:
            ticket = (priority, next(self._numbers))
            heapq.heappush(self._waiting, ticket)
            try:
                return self._wait_for_turn(ticket, deadline)
            finally:
                # After a time-out the ticket may be anywhere in the heap.
                self._waiting.remove(ticket)
                heapq.heapify(self._waiting)
                self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Let no request be sent for `seconds`, at most LONGEST_PAUSE_SECONDS, for example because of a Retry-After
        header."""
        with self._changed:
            self._allowance.pause(self._clock(), seconds)

    def _wait_for_turn(self, ticket: tuple[int, int], deadline: float) -> bool:
        while True:
            now = self._clock()
            is_next = self._waiting[0] == ticket
            wait = self._allowance.seconds_until_free(now)
            if is_next and wait <= 0:
                self._allowance.take()
                return True
            if now >= deadline:
                return False
            # The remaining waiters are woken when the next one leaves.
            self._changed.wait(min(wait, deadline - now) if is_next else deadline - now)
