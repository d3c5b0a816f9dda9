"""How Python's garbage collector runs in the loop's process, which keeps some million objects from cycle to cycle."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# A cycle allocates tens of thousands of acyclic objects; with the default thresholds the GC takes a fifth of its time.
THRESHOLDS = (50_000, 20, 50)


@contextmanager
def long_lived() -> Iterator[None]:
    """Do not collect in the body, and never examine again what it leaves, like all older objects: for 100,000 jobs a
    collection that examines them takes a second. They are freed as usual when the last reference goes."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
