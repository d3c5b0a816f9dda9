"""The hooks by which the engine adapts to a cluster's scheduler."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from controlplane.engines.base import DepartmentReport, PodReport, PodSpec, ProjectReport
from controlplane.kubernetes_api.names import Raw


class Scheduler:
    """The default hooks: Trainyard's plan chooses the node before a pod is created. Other schedulers override the
    hooks that differ."""

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
        """Return the reports with the scheduler's reasons added. `pods`: pod objects by name; `now`: the API
        server's time."""
        return tuple(reports)

    def project_objects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport]
    ) -> Iterable[Raw]:
        """Return the scheduler's own objects for our projects, parents before children."""
        return ()

    def forget_project(self, project: str) -> None:
        """Remove the scheduler's objects of a project."""

    def close(self) -> None:
        """End the watches."""
