"""Hooks in which the schedulers of clusters differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from controlplane.engines.base import PodReport, PodSpec
from controlplane.engines.kubernetes import inventory
from controlplane.kubernetes_api.names import Raw


class Scheduler:
    """Default hooks: Trainyard's plan chooses the node before a pod is created. Other schedulers override
    what differs."""

    # Whether it binds pods that were created without a node.
    places_pods = False

    def require_project(self, project: str) -> None:
        """Raise EngineRefused unless the scheduler can take pods of this project."""

    def beside(self, spec: PodSpec, owner: Mapping[str, Any]) -> Iterable[Raw]:
        """Return what must exist before the pod. `owner` is an ownerReference."""
        return ()

    def dress(self, pod: Raw, spec: PodSpec) -> Raw:
        """Return the pod as the scheduler wants it."""
        return pod

    def with_status(
        self, reports: Collection[PodReport], pods: Mapping[str, Raw], now: datetime
    ) -> tuple[PodReport, ...]:
        """Return the reports with the scheduler's reasons in them. `pods`: objects by name, `now` by the server."""
        return tuple(reports)

    def has_fractions(self, nodes: Iterable[Raw]) -> bool:
        """Return whether pods may ask for parts of a GPU."""
        return inventory.most_parts(nodes) > 1

    def quota_parts(self, nodes: Iterable[Raw]) -> int:
        """Return how many of the cluster's GPU resource one GPU is, for the quotas of namespaces."""
        return inventory.most_parts(nodes)

    def forget_project(self, project: str) -> None:
        """Remove what the scheduler keeps of a project."""

    def close(self) -> None:
        """End watches."""
