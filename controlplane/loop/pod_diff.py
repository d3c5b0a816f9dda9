"""Find the pods whose rows must be compared with the engine's report: from one second to the next most are equal."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from controlplane.engines.base import PodReport
from controlplane.models import Cluster, Command
from controlplane.models.prepared import Rows, prepared
from jobs.change_list import Changed, Moment, among, array_of, changes_since
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


class PodCache:
    """The unreleased pods of one cluster as last read. Used by one thread."""

    def __init__(self) -> None:
        self._since: Moment | None = None
        self._pods: dict[str, PodKey] = {}

    def read(self, cluster: Cluster) -> Mapping[str, PodKey]:
        """Return the unreleased pods by name. A pod that is unchanged is the same object as before; on PostgreSQL only
        the pods of jobs with changed pods are read."""
        following, changed = changes_since(self._since, Changed.PODS)
        if changed is None:
            self._pods = self._keyed(_held(cluster.pk))
        elif changed:
            jobs = set(map(UUID, changed))
            news = self._keyed(_held_of(cluster.pk, array_of(jobs)))
            self._pods = {name: pod for name, pod in self._pods.items() if pod.job_id not in jobs} | news
        self._since = following
        return self._pods

    def _keyed(self, rows: Iterable[tuple[Any, ...]]) -> dict[str, PodKey]:
        known = self._pods
        return {row[1]: one if (one := known.get(row[1])) == row else PodKey(*row) for row in rows}


@prepared
def _held(cluster: int) -> Rows[Pod]:
    held = Pod.objects.filter(node__cluster=cluster, released_at=None)
    return held.values_list("pk", "name", "state", "reason", "message", "job_id")


@prepared
def _held_of(cluster: int, jobs: str) -> Rows[Pod]:
    held = Pod.objects.filter(node__cluster=cluster, released_at=None, job__in=among(jobs))
    return held.values_list("pk", "name", "state", "reason", "message", "job_id")


class DiffCache:
    """The rows that matched their report. Each is remembered until the row or the report changes, for at most
    EVERY_SECONDS."""

    def __init__(self) -> None:
        self._same: dict[str, tuple[PodReport, tuple[str, str, str]]] = {}
        self._forgot_at = int(time.monotonic())

    def differing(
        self, cluster: Cluster, held: Mapping[str, PodKey], reports: Mapping[str, PodReport]
    ) -> list[int]:
        """Return the primary keys of the pods to compare. `held`: the unreleased pods; both mappings are by pod name.
        A pod without a report is left out while its start command is unfinished, unless the pod has failed."""
        due, same = self._due(), self._same
        for name in same.keys() - held.keys():
            del same[name]
        awaited = _to_be_started(cluster) if held.keys() - reports.keys() else frozenset()
        return [
            pod.key
            for name, pod in held.items()
            if (
                (report := reports.get(name)) is not None
                and (
                    pod.key % EVERY_SECONDS in due
                    or same.get(name) != (report, (pod.state, pod.reason, pod.message))
                )
            )
            or (report is None and (pod.state == "failed" or name not in awaited))
        ]

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
                self._same[pod.name] = (report, (pod.state, pod.reason, pod.message))


def _to_be_started(cluster: Cluster) -> frozenset[str]:
    starts = Command.objects.filter(cluster=cluster, kind=START_POD, state__in=OPEN)
    return frozenset(starts.values_list("subject_id", flat=True))
