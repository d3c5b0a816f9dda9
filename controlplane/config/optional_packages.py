"""Optional packages of our libraries that nothing here uses: loading them costs every process time and memory."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Make imports of these packages raise ImportError inside the block, except of those that are loaded already.

    Affects all threads, so use it only around imports at the top of a module.
    """
    hidden = [name for name in names if name not in sys.modules]
    # Python refuses to import a name whose entry is None.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # typeshed lacks None
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)
