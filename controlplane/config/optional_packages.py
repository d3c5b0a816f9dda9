"""Keep libraries from importing optional packages that nothing here uses: each would cost every process time and
memory."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from threading import get_ident
from types import ModuleType


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Context manager in which imports of these packages raise ImportError, unless they are loaded already. Only this
    thread is affected, because other threads of the web server may need them."""
    finder = _Refusing(names)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Refusing(MetaPathFinder):
    """An import finder that reports these packages as missing, but only to the thread that created it."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._thread = frozenset(names), get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._names and get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is not loaded here: nothing needs it.", name=name)
        return None
