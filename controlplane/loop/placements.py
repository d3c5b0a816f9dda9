"""The placements of the unreleased pods of a cluster. A pod's placement never changes, so only those of new pods are
read; on PostgreSQL those of jobs whose pods are listed as changed."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, TypeAlias

from django.db.models import QuerySet

from controlplane.models import Cluster
from controlplane.models.prepared import Rows, prepared
from controlplane.scheduling.view import PodPlacement
from jobs.change_list import Changed, Moment, among, array_of, changes_since, is_same_server
from jobs.models import Pod

# Pods whose shares one query reads; SQLite allows no more than 32,766 parameters.
BATCH = 5_000
_COLUMNS = ("pk", "job_id", "rank", "node__name", "allocations__device__index", "allocations__milli_gpus")

Placements: TypeAlias = Mapping[str, tuple[PodPlacement, ...]]
"""By job id, in the order of the ranks."""


class PlacementCache:
    """The placements of one cluster as last read. Used by one thread. `changed`: the ids of the jobs whose placements
    differ since the read before."""

    def __init__(self) -> None:
        self.changed: frozenset[str] = frozenset()
        self._since: Moment | None = None
        self._pods: dict[int, tuple[str, PodPlacement]] = {}
        self._by_job: dict[str, tuple[PodPlacement, ...]] = {}

    def read(self, cluster: Cluster) -> Placements:
        """Return the placements of all unreleased pods, by job, and set `changed`. The next read modifies the
        mapping; the tuple of each job whose pods are the same is the same object as before."""
        following, changed = changes_since(self._since, Changed.PODS)
        if changed is None:
            # After a restore a pod's key may belong to another pod.
            known = self._pods if is_same_server(self._since, following) else {}
            held = _held(cluster.pk)
            news = _placed(_shares(key for key in held if key not in known))
            # A pod that was released since the first query may have no shares any more.
            pods = {key: one for key in held if (one := known.get(key) or news.get(key)) is not None}
            gone = (self._pods[key] for key in self._pods.keys() - (pods.keys() - news.keys()))
            self._note(pods, {job for job, _ in (*gone, *news.values())})
        elif changed:
            jobs = set(changed)
            others = {key: one for key, one in self._pods.items() if one[0] not in jobs}
            self._note(others | _placed(_shares_of(cluster.pk, array_of(jobs))), jobs)
        else:
            self.changed = frozenset()
        self._since = following
        return self._by_job

    def _note(self, pods: dict[int, tuple[str, PodPlacement]], jobs: Set[str]) -> None:
        """Replace the pods; the placements of other jobs than `jobs` are as before."""
        found: dict[str, list[PodPlacement]] = {job: [] for job in jobs}
        for job, placement in pods.values():
            if job in found:
                found[job].append(placement)
        now = {job: tuple(sorted(places, key=lambda one: one.rank)) for job, places in found.items()}
        differing = {job: places for job, places in now.items() if self._by_job.get(job, ()) != places}
        for job, places in differing.items():
            if places:
                self._by_job[job] = places
            else:
                del self._by_job[job]
        self._pods, self.changed = pods, frozenset(differing)


@prepared
def _held(cluster: int) -> QuerySet[Pod, int]:
    return Pod.objects.filter(node__cluster=cluster, released_at=None).values_list("pk", flat=True)


def _placed(shares: Iterable[tuple[Any, ...]]) -> dict[int, tuple[str, PodPlacement]]:
    """Return the job and the placement of each pod, by the pod's primary key. `shares`: rows of _COLUMNS."""
    where: dict[tuple[int, str, int, str], list[tuple[int, int]]] = defaultdict(list)
    for key, job, rank, node, index, milli in shares:
        devices = where[key, str(job), rank, node]
        if index is not None:
            devices.append((index, milli))
    return {
        key: (job, PodPlacement(rank, node, tuple(sorted(devices))))
        for (key, job, rank, node), devices in where.items()
    }


def _shares(keys: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    pods = list(keys)
    for first in range(0, len(pods), BATCH):
        yield from Pod.objects.filter(pk__in=pods[first : first + BATCH]).values_list(*_COLUMNS)


@prepared
def _shares_of(cluster: int, jobs: str) -> Rows[Pod]:
    pods = Pod.objects.filter(job__in=among(jobs), node__cluster=cluster, released_at=None)
    return pods.values_list(*_COLUMNS)
