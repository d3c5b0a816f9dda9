"""Settings of Python's garbage collector for the loop's process, which keeps about a million objects from
cycle to cycle."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# A cycle allocates tens of thousands of acyclic objects; with the default thresholds the GC takes a fifth of its time.
THRESHOLDS = (50_000, 20, 50)


@contextmanager
def long_lived() -> Iterator[None]:
    """Context manager that suspends collection, and afterwards exempts all existing objects from later
    collections (gc.freeze).

    For 100,000 jobs each full collection would take a second. Exempt objects are still freed by their
    reference counts.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
