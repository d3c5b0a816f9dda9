"""A check of a cluster that takes too long, and ends just then."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.engines.kubernetes import preflight
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.preflight import OK, Check


class Late:
    """A thread that ends after `join` has given up, while it is asked whether it lives."""

    def __init__(self, target: Any, args: tuple[Any, Any, Callable[[Check], None]], daemon: bool) -> None:
        self._add = args[2]

    def start(self) -> None:
        self._add(Check("reachable", OK, "It answers."))

    def join(self, _seconds: float) -> None:
        return

    def is_alive(self) -> bool:
        self._add(Check("rights", OK, "All."))
        return False


def test_no_check_is_missing_without_a_word(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(preflight, "threading", SimpleNamespace(Thread=Late))
    access: Any = SimpleNamespace(server="https://there")
    found = preflight.check_access(access, ClusterProfile())
    assert [check.name for check in found] == ["reachable", "rights"]
