"""Find the pods whose rows must be compared with the engine's report: from one second to the next most are equal."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from controlplane.engines.base import PodReport
from controlplane.models import Cluster, Command
from controlplane.models.prepared import Rows, prepared
from jobs.command_kinds import START_POD
from jobs.models import Pod

# Each pod is compared again after this time, whatever is cached: a part of them every second, because comparing
# 10,000 takes a second.
EVERY_SECONDS = 60
OPEN = (Command.PENDING, Command.CLAIMED)


class PodKey(NamedTuple):
    """The columns of an unreleased pod that every cycle reads. `key`: its primary key."""

    key: int
    name: str
    state: str
    reason: str
    message: str
    job_id: UUID


def pod_keys(cluster: Cluster) -> list[PodKey]:
    """Return the unreleased pods of a cluster, in key order."""
    return [PodKey(*row) for row in _held(cluster.pk)]


@prepared
def _held(cluster: int) -> Rows[Pod]:
    held = Pod.objects.filter(node__cluster=cluster, released_at=None).order_by("pk")
    return held.values_list("pk", "name", "state", "reason", "message", "job_id")


class DiffCache:
    """The rows that matched their report. Each is remembered until the row or the report changes, for at most
    EVERY_SECONDS."""

    def __init__(self) -> None:
        self._same: dict[int, tuple[PodReport, str, str, str]] = {}
        self._forgot_at = int(time.monotonic())

    def differing(
        self, cluster: Cluster, held: Sequence[PodKey], reports: Mapping[str, PodReport]
    ) -> list[int]:
        """Return the primary keys of the pods to compare. `held`: the unreleased pods; `reports`: by pod name. A pod
        without a report is left out while its start command is unfinished, unless the pod has failed."""
        due = self._due()
        self._same = {
            pod.key: self._same[pod.key]
            for pod in held
            if pod.key in self._same and pod.key % EVERY_SECONDS not in due
        }
        awaited = _to_be_started(cluster) if any(pod.name not in reports for pod in held) else frozenset()
        return [pod.key for pod in held if self._differs(pod, reports.get(pod.name), awaited)]

    def _due(self) -> frozenset[int]:
        """Return the residues (modulo EVERY_SECONDS) of the primary keys to compare again now. Each residue comes
        once per EVERY_SECONDS."""
        last, self._forgot_at = self._forgot_at, int(time.monotonic())
        first = max(last + 1, self._forgot_at - EVERY_SECONDS + 1)
        return frozenset(second % EVERY_SECONDS for second in range(first, self._forgot_at + 1))

    def note(self, pods: Iterable[Pod], reports: Mapping[str, PodReport]) -> None:
        """Record that the rows of these pods match their reports."""
        for pod in pods:
            if (report := reports.get(pod.name)) is not None:
                self._same[pod.pk] = (report, pod.state, pod.reason, pod.message)

    def _differs(self, pod: PodKey, report: PodReport | None, awaited: frozenset[str]) -> bool:
        if report is None:
            return pod.state == "failed" or pod.name not in awaited
        return self._same.get(pod.key) != (report, pod.state, pod.reason, pod.message)


def _to_be_started(cluster: Cluster) -> frozenset[str]:
    starts = Command.objects.filter(cluster=cluster, kind=START_POD, state__in=OPEN)
    return frozenset(starts.values_list("subject_id", flat=True))
