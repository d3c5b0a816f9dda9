"""Wrap an engine so that its nodes have a suffix, where another cluster uses the same node names.

The engine below and the cluster use the cluster's own names; callers see only those of
`controlplane.clusters.node_names`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from controlplane.clusters.node_names import name_here, name_there
from controlplane.engines.base import (
    Capabilities,
    DepartmentReport,
    Engine,
    NodeReport,
    PodReport,
    PodSpec,
    Process,
    ProjectReport,
    Shell,
    UsageReport,
)
from controlplane.logstore.reader import LogPage


def with_suffix(engine: Engine, suffix: str) -> Engine:
    """Return the engine, wrapped if the cluster's setting `node_suffix` is set."""
    return RenamedNodes(engine, suffix) if suffix else engine


class RenamedNodes:
    """Wrap an engine; see the module's docstring. Thread-safe as the engine is: its memory holds only a
    cache."""

    def __init__(self, engine: Engine, suffix: str) -> None:
        self._engine, self._suffix = engine, suffix
        # by pod: what was said, and the same renamed
        self._known: dict[str, tuple[PodReport, PodReport]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    def nodes(self) -> tuple[NodeReport, ...]:
        return tuple(replace(report, name=self._here(report.name)) for report in self._engine.nodes())

    def start(self, spec: PodSpec) -> None:
        there = replace(
            spec,
            node=self._there(spec.node),
            avoid_nodes=tuple(self._there(node) for node in spec.avoid_nodes),
            launches=tuple(replace(member, node=self._there(member.node)) for member in spec.launches),
        )
        self._engine.start(there)

    def pods(self) -> tuple[PodReport, ...]:
        known = self._known
        renamed = [self._renamed(report, known.get(report.name)) for report in self._engine.pods()]
        self._known = {pair[0].name: pair for pair in renamed}
        return tuple(here for _, here in renamed)

    def find(self, pod_name: str, project: str) -> PodReport | None:
        found = self._engine.find(pod_name, project)
        return None if found is None else self._renamed(found, None)[1]

    def usage(self) -> tuple[UsageReport, ...]:
        return tuple(replace(report, node=self._here(report.node)) for report in self._engine.usage())

    def stop(self, pod_name: str, grace_seconds: int, project: str = "") -> None:
        self._engine.stop(pod_name, grace_seconds, project)

    def forget(self, pod_name: str) -> None:
        self._engine.forget(pod_name)

    def forget_job(self, job_id: str) -> None:
        self._engine.forget_job(job_id)

    def volumes(self, project: str, storage_class: str, size_bytes: int, access_mode: str) -> Any:
        engine: Any = self._engine
        return engine.volumes(project, storage_class, size_bytes, access_mode)

    def read_logs(self, pod_name: str, offset: int, limit: int) -> LogPage:
        return self._engine.read_logs(pod_name, offset, limit)

    def open_shell(self, pod_name: str, columns: int, rows: int) -> Shell:
        return self._engine.open_shell(pod_name, columns, rows)

    def run_command(self, pod_name: str, command: Sequence[str]) -> Process:
        return self._engine.run_command(pod_name, command)

    def open_port(self, pod_name: str, port: int) -> socket.socket:
        return self._engine.open_port(pod_name, port)

    def copy_logs(self, paths: Mapping[str, str]) -> None:
        self._engine.copy_logs(paths)

    def sync_projects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport] = ()
    ) -> None:
        self._engine.sync_projects(projects, departments)

    def forget_project(self, project: str) -> None:
        self._engine.forget_project(project)

    def close(self) -> None:
        self._engine.close()

    def wait_for_change(self, timeout_seconds: float) -> bool:
        return self._engine.wait_for_change(timeout_seconds)

    def _renamed(
        self, report: PodReport, known: tuple[PodReport, PodReport] | None
    ) -> tuple[PodReport, PodReport]:
        """Return the report with its node renamed, from a cache: most of ten thousand pods are unchanged from
        one second to the next."""
        if known is not None and known[0] is report:
            return known
        return report, replace(report, node=self._here(report.node))

    def _here(self, theirs: str) -> str:
        return name_here(theirs, self._suffix)

    def _there(self, ours: str) -> str:
        return name_there(ours, self._suffix)
