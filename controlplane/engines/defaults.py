"""Default methods for engines that have a single tenant, write the log store themselves and hold no connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.engines.base import DepartmentReport, ProjectReport


class EngineDefaults:
    """Methods of `engines.base.Engine` that do nothing, for engines without projects, log copying or connections."""

    def copy_logs(self, paths: Mapping[str, str]) -> None:
        """Do nothing: pods write to the log store themselves."""

    def sync_projects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport] = ()
    ) -> None:
        """Do nothing: no state is kept per project."""

    def forget_project(self, project: str) -> None:
        """Do nothing: no state is kept per project."""

    def close(self) -> None:
        """Do nothing: this engine has no threads and connections."""
