"""Nodes that pods are bound to and that the cluster does not have.

A node that was deleted may be registered again in a moment, while its containers run on: only one that stays away is
gone. Whoever has just begun to look cannot know for how long it was away already, and begins to count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controlplane.engines.kubernetes import reports

Raw = dict[str, Any]


class Absences:
    """Thread-safe. `clock` gives seconds that only go forward."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._since: dict[str, float] = {}

    def hosts(self, nodes: Mapping[str, Raw], wanted: Iterable[str]) -> Mapping[str, Raw]:
        """`nodes` by name, and those of `wanted` that have not been away for long: as nodes that do not answer."""
        now, missing = self._clock(), {name for name in wanted if name and name not in nodes}
        with self._lock:
            self._since = {name: since for name, since in self._since.items() if name not in nodes}
            since = {name: self._since.setdefault(name, now) for name in missing}
        young = [name for name in missing if now - since[name] <= reports.NODE_GONE_SECONDS]
        return {**nodes, **{name: _silent(name) for name in young}} if young else nodes


def _silent(name: str) -> Raw:
    return {"metadata": {"name": name}, "spec": {"taints": [{"key": reports.SILENT_NODE_TAINTS[0]}]}}
