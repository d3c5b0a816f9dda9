"""Reads of a lake for a page: together they end within seconds, however slowly a bucket answers."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar

from django.conf import settings

from datasets.storage.base import Blocked
from datasets.storage.circuit_breaker import CircuitBreaker

# How long all reads of one page take at most.
PAGE_SECONDS = 8.0
# How long pages refuse at once after one that got no answer in that time.
OPEN_SECONDS = 10.0
# Reads of all pages that are under way at once, those that their page waits for no longer included.
READS_AT_ONCE = 8

P = ParamSpec("P")
T = TypeVar("T")
_threads = ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="page-read")
_breaker = CircuitBreaker(OPEN_SECONDS)


class PageReads:
    """The reads of one page, whose time begins here. Must not touch the database: they run on a thread of their own."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PAGE_SECONDS

    def __call__(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `read` returns. Raises what it raises, and Blocked when the page's time is over, and at once for
        some seconds after a read that got no answer. A read that has begun goes on within the limits of its own
        requests, and what it keeps is there for the next page."""
        if settings.LAKE_PLACE is None:
            return read(*args, **kwargs)
        if not _breaker.admits():
            raise Blocked("unreachable", "The lake's bucket did not answer a moment ago; try again later.")
        reading = _threads.submit(read, *args, **kwargs)
        wait([reading], timeout=max(0.0, self._until - time.monotonic()))
        # One that still waits for a thread says nothing about the bucket.
        if reading.cancel():
            raise Blocked("unreachable", "Other pages keep the lake's bucket busy; try again later.")
        is_answered = reading.done()
        _breaker.record(is_answered=is_answered)
        if not is_answered:
            detail = f"The lake's bucket did not answer within {PAGE_SECONDS:g} s; try again later."
            raise Blocked("unreachable", detail)
        return reading.result()
