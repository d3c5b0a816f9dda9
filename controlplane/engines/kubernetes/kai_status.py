"""What KAI says, kept up to date by watches: the conditions of our pod groups, and the events of its evictions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from controlplane.engines.base import PodReport, Verdict
from controlplane.engines.kubernetes import kai, names
from controlplane.engines.kubernetes.api_errors import as_refusal
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.reflector import Reflector
from controlplane.scheduling.reasons import ENGINE_UNREACHABLE

SYNC_SECONDS = 0.5  # for both lists: other clusters are waiting, and the next look is a second away

Raw = dict[str, Any]


class KaiAnswers:
    """Thread-safe. The watches start with the first question."""

    def __init__(self, client: Client, profile: ClusterProfile) -> None:
        self._client, self._profile = client, profile
        self._groups = Reflector(
            client,
            kai.pod_groups_path(),
            query={"labelSelector": names.ours(profile.installation)},
            keep=lambda raw: kai.verdict(raw, profile),
        )
        self._evictions = Reflector(
            client, "/api/v1/events", query={"fieldSelector": kai.EVICTION_EVENTS}, keep=kai.eviction
        )
        self._starting = threading.Lock()
        self._is_started = False

    def add_to(
        self, reports: Iterable[PodReport], pods: Mapping[str, Raw], now: datetime
    ) -> tuple[PodReport, ...]:
        """The reports with KAI's words in them; `pods`: the objects by name, `now` by the server's clock."""
        self._start()
        verdicts = self._groups.items()
        evictions = dict(found for found in self._evictions.items().values() if found is not None)
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
        """Remove the project's queue, if it is ours. KAI keeps one that still has pod groups until they are gone."""
        path = f"{kai.QUEUES}/{kai.project_queue(project, self._profile)}"
        try:
            found = self._client.get(path)
            if self._profile.has_made(found):
                self._client.delete(path, uid=found["metadata"]["uid"])
        except ApiError as error:
            if error.status != 404:
                raise as_refusal(error) from error

    def close(self) -> None:
        if self._is_started:
            self._groups.close()
            self._evictions.close()

    def _start(self) -> None:
        with self._starting:
            if not self._is_started:
                self._is_started = True
                self._groups.start()
                self._evictions.start()
                # what was evicted while nobody looked is told with whom it was for
                until = time.monotonic() + SYNC_SECONDS
                self._groups.wait_told(SYNC_SECONDS)
                self._evictions.wait_told(max(0.0, until - time.monotonic()))

    def _with_trouble(self, said: Verdict | None) -> Verdict | None:
        """What is said of a waiting pod while KAI's answers cannot be read, as when a definition was removed. Without
        the evictions it is still known why it waits."""
        if trouble := self._groups.trouble:
            return Verdict(ENGINE_UNREACHABLE, f"KAI's pod groups cannot be read: {trouble}")
        if trouble := self._evictions.trouble:
            words = f"KAI's evictions cannot be read: {trouble}"
            return (
                replace(said, message=f"{said.message} {words}")
                if said
                else Verdict(ENGINE_UNREACHABLE, words)
            )
        return said
