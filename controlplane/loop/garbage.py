"""Settings of Python's garbage collector for the loop's process, which keeps about a million objects from
cycle to cycle."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# A cycle allocates tens of thousands of acyclic objects; with the default thresholds the GC takes a fifth of its time.
THRESHOLDS = (50_000, 20, 50)


@contextmanager
def long_lived() -> Iterator[None]:
    """Context manager that suspends garbage collection, and at its end exempts all objects of the process from later
    collections (gc.freeze).

    With 100,000 jobs each full collection would take a second. Exempt objects are still freed when their reference
    count is zero.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
