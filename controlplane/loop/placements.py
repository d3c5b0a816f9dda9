"""The placements of the unreleased pods of a cluster. A pod's placement never changes, so only those of new
pods are read."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeAlias

from django.db.models import QuerySet

from controlplane.models import Cluster
from controlplane.models.prepared import prepared
from controlplane.scheduling.view import PodPlacement
from jobs.models import Pod

# Pods whose shares one query reads; SQLite allows no more than 32,766 parameters.
BATCH = 5_000

Placements: TypeAlias = Mapping[str, tuple[PodPlacement, ...]]
"""By job id, in the order of the ranks."""


class PlacementCache:
    """The placements of one cluster as last read. Used by one thread."""

    def __init__(self) -> None:
        self._pods: dict[int, tuple[str, PodPlacement]] = {}
        self._by_job: Placements = {}

    def read(self, cluster: Cluster) -> Placements:
        """Return the placements of all unreleased pods, by job. What is unchanged is the same object as before: the
        whole mapping if the pods are the same, else the tuple of each job whose pods are the same."""
        held = _held(cluster.pk)
        known = self._pods
        if len(held) == len(known) and all(key in known for key in held):
            return self._by_job
        news = _read([key for key in held if key not in known])
        # A pod that was released since the first query may have no shares any more.
        pods = {key: one for key in held if (one := known.get(key) or news.get(key)) is not None}
        gone = (known[key] for key in known.keys() - pods.keys())
        self._by_job = self._regrouped(pods, {job for job, _ in (*gone, *news.values())})
        self._pods = pods
        return self._by_job

    def _regrouped(self, pods: Mapping[int, tuple[str, PodPlacement]], jobs: Set[str]) -> Placements:
        """Return the placements by job, with those of these jobs taken from `pods`."""
        found: dict[str, list[PodPlacement]] = {job: [] for job in jobs}
        for job, placement in pods.values():
            if job in found:
                found[job].append(placement)
        grouped = dict(self._by_job)
        for job, placements in found.items():
            if not placements:
                grouped.pop(job, None)
            elif grouped.get(job) != (now := tuple(sorted(placements, key=lambda one: one.rank))):
                grouped[job] = now
        return grouped


@prepared
def _held(cluster: int) -> QuerySet[Pod, int]:
    return Pod.objects.filter(node__cluster=cluster, released_at=None).values_list("pk", flat=True)


def _read(pods: Sequence[int]) -> Mapping[int, tuple[str, PodPlacement]]:
    """Return the job and the placement of each pod, by the pod's primary key."""
    where: dict[tuple[int, str, int, str], list[tuple[int, int]]] = defaultdict(list)
    for key, job, rank, node, index, milli in _shares(pods):
        shares = where[key, job, rank, node]
        if index is not None:
            shares.append((index, milli))
    return {
        key: (job, PodPlacement(rank, node, tuple(sorted(shares))))
        for (key, job, rank, node), shares in where.items()
    }


def _shares(pods: Sequence[int]) -> Iterable[tuple[int, str, int, str, int | None, int]]:
    columns = ("pk", "job_id", "rank", "node__name", "allocations__device__index", "allocations__milli_gpus")
    for first in range(0, len(pods), BATCH):
        rows = Pod.objects.filter(pk__in=pods[first : first + BATCH]).values_list(*columns)
        for key, job, *rest in rows:
            yield key, str(job), *rest
