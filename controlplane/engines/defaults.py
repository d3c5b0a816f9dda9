"""What an engine answers that has one tenant, writes the log store itself and keeps no connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.engines.base import DepartmentReport, ProjectReport


class EngineDefaults:
    """The calls of `engines.base.Engine` that such an engine has nothing to do for."""

    def copy_logs(self, paths: Mapping[str, str]) -> None:
        """The pods' output is in the log store already."""

    def sync_projects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport] = ()
    ) -> None:
        """Nothing is kept per project."""

    def forget_project(self, project: str) -> None:
        """Nothing is kept per project."""

    def close(self) -> None:
        """There is nothing to end."""
