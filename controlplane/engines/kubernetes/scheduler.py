"""The hooks by which the engine adapts to a cluster's scheduler."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from controlplane.engines.base import DepartmentReport, PodReport, PodSpec, ProjectReport, Verdict
from controlplane.engines.kubernetes import kai, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.objects import Objects
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.names import Raw
from controlplane.kubernetes_api.reflector import Reflector
from controlplane.scheduling.reasons import ENGINE_UNREACHABLE

# The time-out of both first lists: the caller serves other clusters too, and calls again a second later.
SYNC_SECONDS = 0.5


class Scheduler:
    """The engine's hooks for a cluster's scheduler. These defaults are for kube-scheduler, where Trainyard chooses
    the node before a pod is created. Other schedulers override those that differ."""

    def require_project(self, project: str) -> None:
        """Raise EngineRefused unless the scheduler accepts pods of this project. By default it does."""

    def beside(self, spec: PodSpec, owner: Mapping[str, Any]) -> Iterable[Raw]:
        """Return the objects that must exist before the pod; none by default. `owner`: their ownerReference."""
        return ()

    def dress(self, pod: Raw, spec: PodSpec) -> Raw:
        """Return the pod with what the scheduler requires in labels, annotations and spec; unchanged by default."""
        return pod

    def with_status(
        self, reports: Collection[PodReport], pods: Mapping[str, Raw], now: datetime
    ) -> tuple[PodReport, ...]:
        """Return the reports, with why the scheduler does not place a pod; unchanged by default. `pods`: the pods'
        objects by name; `now`: by the API server's clock."""
        return tuple(reports)

    def project_objects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport]
    ) -> Iterable[Raw]:
        """Return the scheduler's own objects for our projects, parents before children; none by default."""
        return ()

    def forget_project(self, project: str) -> None:
        """Remove the scheduler's own objects of a deleted project; none by default."""

    def close(self) -> None:
        """End the threads; there are none by default."""


class KaiScheduler(Scheduler):
    """Hooks for KAI, which places pods by queue and reports through pod groups and events. Thread-safe. Its watches
    start with the first `with_status`."""

    def __init__(self, client: Client, objects: Objects, profile: ClusterProfile) -> None:
        self._objects, self._profile = objects, profile
        self._groups = Reflector(
            client,
            names.list_path("PodGroup"),
            query={"labelSelector": names.ours(profile.installation)},
            keep=lambda raw: kai.verdict(raw, profile),
        )
        self._evictions = Reflector(
            client, "/api/v1/events", query={"fieldSelector": kai.EVICTION_EVENTS}, keep=kai.eviction
        )

    def require_project(self, project: str) -> None:
        self._objects.require_queue(self._queue_path(project))

    def beside(self, spec: PodSpec, owner: Mapping[str, Any]) -> Iterable[Raw]:
        return kai.beside(spec, owner, self._profile)

    def dress(self, pod: Raw, spec: PodSpec) -> Raw:
        return kai.dress(pod, spec, self._profile)

    def project_objects(
        self, projects: Sequence[ProjectReport], departments: Sequence[DepartmentReport]
    ) -> Iterable[Raw]:
        return kai.queues(projects, departments, self._profile)

    def with_status(
        self, reports: Collection[PodReport], pods: Mapping[str, Raw], now: datetime
    ) -> tuple[PodReport, ...]:
        self._groups.start()
        # Events read at the start are kept, so that evictions of pods still present are reported with their
        # preemptor.
        self._evictions.start()
        for watch in (self._groups, self._evictions):
            watch.wait_listed(SYNC_SECONDS)
        verdicts = self._groups.items()
        evictions = dict(found for found in self._evictions.items().values() if found is not None)
        # In an incomplete list a missing group may exist.
        are_known = not self._groups.trouble and self._groups.wait_synced(0)

        def answered(report: PodReport) -> PodReport:
            pod = pods[report.name]
            group = kai.group_key(pod)
            if are_known and group not in verdicts:
                report = kai.without_group(report, pod, now)
            said = self._with_trouble(verdicts.get(group))
            return kai.with_answers(report, pod, said, evictions.get(group), now)

        return tuple(answered(report) for report in reports)

    def forget_project(self, project: str) -> None:
        """Delete the project's queue if it is ours. KAI keeps a queue until its pod groups are gone."""
        self._objects.remove(self._queue_path(project))

    def _queue_path(self, project: str) -> str:
        return f"{names.list_path('Queue')}/{self._profile.namespace_of(project)}"

    def close(self) -> None:
        self._groups.close()
        self._evictions.close()

    def _with_trouble(self, said: Verdict | None) -> Verdict | None:
        """Return the verdict `said`, with an error added while KAI's pod groups or evictions cannot be read, for
        example after a CRD was removed. Without evictions the verdict itself remains valid."""
        if trouble := self._groups.trouble:
            return Verdict(ENGINE_UNREACHABLE, f"KAI's pod groups cannot be read: {trouble}")
        if not (trouble := self._evictions.trouble):
            return said
        said = said or Verdict(ENGINE_UNREACHABLE, "")
        return replace(said, message=f"{said.message} KAI's evictions cannot be read: {trouble}".lstrip())
