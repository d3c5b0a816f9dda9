"""The hooks by which the engine adapts to a cluster's scheduler."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from controlplane.engines.base import PodReport, PodSpec
from controlplane.engines.kubernetes import inventory
from controlplane.kubernetes_api.names import Raw


class Scheduler:
    """The default hooks: Trainyard's plan chooses the node before a pod is created. Other schedulers override the
    hooks that differ."""

    # Whether the scheduler binds pods that were created without a node.
    places_pods = False

    def require_project(self, project: str) -> None:
        """Raise EngineRefused unless the scheduler is ready for pods of this project."""

    def beside(self, spec: PodSpec, owner: Mapping[str, Any]) -> Iterable[Raw]:
        """Return the objects that must exist before the pod. `owner` is an ownerReference."""
        return ()

    def dress(self, pod: Raw, spec: PodSpec) -> Raw:
        """Return the pod with the fields that the scheduler requires."""
        return pod

    def with_status(
        self, reports: Collection[PodReport], pods: Mapping[str, Raw], now: datetime
    ) -> tuple[PodReport, ...]:
        """Return the reports with the scheduler's reasons added. `pods`: pod objects by name; `now`: by the
        server's clock."""
        return tuple(reports)

    def has_fractions(self, nodes: Iterable[Raw]) -> bool:
        """Return whether pods may request parts of a GPU."""
        return inventory.most_parts(nodes) > 1

    def quota_parts(self, nodes: Iterable[Raw]) -> int:
        """Return how many units of the cluster's GPU resource make one GPU, for the quotas of namespaces."""
        return inventory.most_parts(nodes)

    def forget_project(self, project: str) -> None:
        """Remove the scheduler's objects of a project."""

    def close(self) -> None:
        """End the watches."""
