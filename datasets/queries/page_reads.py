"""Read a lake for a page within a total time limit, however slowly the bucket answers."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import ParamSpec, TypeVar

from django.conf import settings

from datasets.storage.base import Blocked
from datasets.storage.circuit_breaker import CircuitBreaker

# Limit in seconds for all reads of one page.
PAGE_SECONDS = 8.0
# After a read without an answer, pages fail at once for this many seconds, because each would wait in vain too.
OPEN_SECONDS = 10.0
# Limit on concurrent reads of all pages, including those whose page no longer waits: a bucket that hangs then holds no
# more threads.
READS_AT_ONCE = 8

P = ParamSpec("P")
T = TypeVar("T")
_threads = ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="page-read")
_breaker = CircuitBreaker(OPEN_SECONDS)


class PageReads:
    """The reads of one page; the time limit starts at construction. Functions that are read with must not use the
    database, because they run on threads of their own."""

    def __init__(self) -> None:
        self._until = time.monotonic() + PAGE_SECONDS

    def __call__(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `read` returns for these arguments. Raises its errors, and Blocked when the page's time is
        over or another read got no answer a few seconds ago. A read that was begun continues, and the next page
        uses what it cached."""
        if settings.LAKE_BUCKET is None:
            return read(*args, **kwargs)
        if not _breaker.admits():
            raise Blocked("unreachable", "The lake's bucket did not answer a moment ago; try again later.")
        reading = _threads.submit(read, *args, **kwargs)
        wait([reading], timeout=max(0.0, self._until - time.monotonic()))
        # A read that still waits for a thread says nothing about the bucket.
        if reading.cancel():
            raise Blocked("unreachable", "Other pages keep the lake's bucket busy; try again later.")
        is_answered = reading.done()
        _breaker.record(is_answered=is_answered)
        if not is_answered:
            detail = f"The lake's bucket did not answer within {PAGE_SECONDS:g} s; try again later."
            raise Blocked("unreachable", detail)
        return reading.result()
