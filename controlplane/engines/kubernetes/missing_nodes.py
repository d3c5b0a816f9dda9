"""Track nodes that the cluster does not list although pods are bound to them.

A deleted node may register again within moments with its containers still running, so only a node that stays absent
counts as gone. After a restart of this process an absence begins at its first observation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from controlplane.engines.kubernetes import reports
from controlplane.kubernetes_api.names import Raw


class Absences:
    """The nodes that are missing, and since when. Thread-safe. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._since: dict[str, float] = {}

    def hosts(self, nodes: Mapping[str, Raw], wanted: Iterable[str]) -> Mapping[str, Raw]:
        """Return `nodes`, plus those of `wanted` that have been missing for a short time only; the latter appear as
        nodes that do not respond."""
        now, missing = self._clock(), {name for name in wanted if name and name not in nodes}
        with self._lock:
            self._since = {name: since for name, since in self._since.items() if name not in nodes}
            since = {name: self._since.setdefault(name, now) for name in missing}
        young = [name for name in missing if now - since[name] <= reports.NODE_GONE_SECONDS]
        return {**nodes, **{name: _silent(name) for name in young}} if young else nodes


def _silent(name: str) -> Raw:
    return {"metadata": {"name": name}, "spec": {"taints": [{"key": reports.SILENT_NODE_TAINTS[0]}]}}
