"""Default methods for engines that have a single tenant, write the log store themselves and hold no connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.engines.base import DepartmentReport, ProjectReport


class EngineDefaults:
    """The methods of `engines.base.Engine` that have no effect for engines without such state."""

    def copy_logs(self, paths: Mapping[str, str]) -> None:
        """Do nothing: the pods' output is in the log store already."""

    def sync_projects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport] = ()
    ) -> None:
        """Do nothing: no state is kept per project."""

    def forget_project(self, project: str) -> None:
        """Do nothing: no state is kept per project."""

    def close(self) -> None:
        """Do nothing: there is nothing to end."""
