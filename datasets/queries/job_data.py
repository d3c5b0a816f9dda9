"""Read where the data of jobs is: what they wait for, on which nodes they may start, and what their pods
mount."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import Count, Q, QuerySet, Sum

from controlplane.engines.base import Mount
from controlplane.models import Cluster, Node, Project
from controlplane.models.prepared import prepared
from datasets.locality import Candidate, Found, Location, choose, choose_other, find, location_of
from datasets.models import Cache, CacheLocation, DatasetUse, DatasetVersion
from datasets.models.datasets import version_name
from datasets.queries.cache_locations import (
    claim_name_at,
    crowded_locations,
    limits_of,
    location_names,
    locations_of,
    locations_on,
    owner_of,
)
from datasets.queries.caches import UNFINISHED, directory_of, eta_seconds, has_cache_volumes
from datasets.storage.cache import tree_below
from jobs.lifecycle import QUEUED
from jobs.models import Job

# Details of the hold reason of a job that waits for data.
DataProgress = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class JobData:
    """Data of one job. `is_waiting`: it cannot start, since no location has all of its data. `locations`: where all of
    it is, ("",) for a running job whose data is nowhere; `fillable`: where it could be copied; both are empty if the
    location does not matter. `progress`: hold details of its first dataset that is not ready everywhere. `copies`: see
    scheduling.view.JobView."""

    is_waiting: bool = False
    locations: tuple[str, ...] = ()
    fillable: tuple[str, ...] = ()
    progress: DataProgress = ()
    copies: tuple[tuple[str, int], ...] = ()


NO_DATA = JobData()
# A running job whose data is at no location, as after the loss of a disk: its new workers could not mount it anywhere.
NOWHERE = JobData(locations=("",))


@dataclass(frozen=True, slots=True)
class DataView:
    """What the scheduler needs about the data of a cluster: the data of each job by its id, and the cache
    locations with the nodes that they serve ([] if one location serves all nodes)."""

    jobs: Mapping[str, JobData] = field(default_factory=dict)
    locations: Sequence[Location] = ()

    def of(self, job: str) -> JobData:
        """Return the data of a job; NO_DATA if it waits for nothing."""
        return self.jobs.get(job, NO_DATA)


def observe_data(cluster: Cluster, *, has_queued_jobs: bool = True) -> DataView:
    """Return which queued jobs wait for data and, in a cluster with several locations, where the data of jobs is.
    `has_queued_jobs`: False saves queries that only those need. At most three queries, and one more if a location
    has ReadWriteOnce volumes."""
    locations = locations_of(cluster)
    if locations:
        return DataView(_by_location(cluster, locations), locations)
    uses = _queued_uses(cluster.pk) if has_queued_jobs else []
    return DataView(_waits(cluster, uses)) if uses else DataView()


@prepared
def _queued_uses(cluster: int) -> QuerySet[DatasetUse]:
    return _uses(cluster, Q(job__state=QUEUED))


@prepared
def _unfinished_uses(cluster: int) -> QuerySet[DatasetUse]:
    return _uses(cluster, UNFINISHED)


def _uses(cluster: int, which: Q) -> QuerySet[DatasetUse]:
    rows = DatasetUse.objects.filter(which, job__project__cluster=cluster).order_by("pk")
    return rows.select_related("job").only(
        "job__project", "job__state", "version", "location", "dataset_name", "number", "subset"
    )


def _waits(cluster: Cluster, uses: Sequence[DatasetUse]) -> dict[str, JobData]:
    """Return, by job id, the data of each job among the mounts `uses` whose datasets are not ready; for a cluster
    with a single location."""
    versions = {use.version_id for use in uses}
    found = Cache.objects.filter(location__cluster=cluster, location__is_default=True, version__in=versions)
    caches = {
        (cache.location.project_id, cache.version_id): cache
        for cache in found.select_related("version", "location")
    }
    waited: dict[str, list[tuple[DatasetUse, Cache | None]]] = defaultdict(list)
    for use in uses:
        owner = owner_of(cluster, use.job.project_id)
        cache = caches.get((owner, use.version_id)) if use.version_id else None
        if cache is None or cache.state != Cache.READY:
            waited[str(use.job_id)].append((use, cache))
    return {
        job: JobData(True, progress=_progress(*those[0]), copies=_copies({"": [cache for _, cache in those]}))
        for job, those in waited.items()
    }


def _by_location(cluster: Cluster, locations: Sequence[Location]) -> dict[str, JobData]:
    """Return, by job id, the locations of data of unfinished jobs, except of jobs whose data is ready at every
    location."""
    by_job: dict[str, list[DatasetUse]] = defaultdict(list)
    for use in _unfinished_uses(cluster.pk):
        by_job[str(use.job_id)].append(use)
    if not by_job:
        return {}
    by_pk = location_names(cluster)
    caches = _caches_by_owner(cluster, {use.version_id for uses in by_job.values() for use in uses}, by_pk)
    names = [location.name for location in locations]
    default = next((location.name for location in locations if location.is_default), names[0])
    crowded = crowded_locations(cluster, locations)
    data = {}
    for job, uses in by_job.items():
        own = caches.get(owner_of(cluster, uses[0].job.project_id), {})
        states = {key: cache.state for key, cache in own.items()}
        # Nothing is started or filled there, whatever its volumes hold; new workers of running jobs stay
        # with the others, since elsewhere their data may be missing.
        if uses[0].job.state == QUEUED:
            states |= {(name, use.version_id): Cache.FAILED for name in crowded for use in uses}
        found = find([use.version_id for use in uses], names, states)
        if len(found.ready) == len(names):
            continue
        sent = zip(uses, _sent_to(uses, by_pk, default), strict=True)
        waited = [(use, own.get((at, use.version_id))) for use, at in sent]
        there = {name: [own.get((name, use.version_id)) for use in uses] for name in found.fillable}
        data[job] = _job_data(uses[0], waited, found, _copies(there) if uses[0].job.state == QUEUED else ())
        trouble = next((crowded[at] for at in _sent_to(uses, by_pk, default) if at in crowded), "")
        if trouble and data[job].is_waiting:
            progress = (("dataset", str(uses[0])), ("data_state", Cache.FAILED), ("message", trouble))
            data[job] = JobData(is_waiting=True, progress=progress)
    return data


def _sent_to(uses: Iterable[DatasetUse], names: Mapping[int, str], default: str) -> list[str]:
    """Return, for each mount of a job, the name of the location to which its data was sent last. `names`: by row id;
    `default`: for mounts without one."""
    return [names.get(use.location_id or 0, default) for use in uses]


def _caches_by_owner(
    cluster: Cluster, versions: Collection[UUID | None], names: Mapping[int, str]
) -> dict[int | None, dict[tuple[str, object], Cache]]:
    """Return the caches of these versions by (location name, version), for each project that has volumes of its own;
    under None those that all projects share. `names`: location names by row id."""
    found: dict[int | None, dict[tuple[str, object], Cache]] = defaultdict(dict)
    rows = Cache.objects.filter(location__cluster=cluster, version__in=versions)
    for cache in rows.select_related("version", "location"):
        # A location may be newer than the names.
        if (name := names.get(cache.location_id)) is not None:
            found[cache.location.project_id][name, cache.version_id] = cache
    return found


def _job_data(
    first: DatasetUse,
    waited: Sequence[tuple[DatasetUse, Cache | None]],
    found: Found,
    copies: tuple[tuple[str, int], ...],
) -> JobData:
    is_queued = first.job.state == QUEUED
    unready = next(((use, one) for use, one in waited if one is None or one.state != Cache.READY), None)
    progress = _progress(*unready) if unready else (("dataset", str(first)),)
    if not found.ready:
        return JobData(True, progress=progress, copies=copies) if is_queued else NOWHERE
    if not is_queued:
        return JobData(False, found.ready)
    return JobData(False, found.ready, found.fillable, progress, copies)


def _progress(use: DatasetUse, cache: Cache | None) -> DataProgress:
    """Return the progress of a mount's `cache` (None: it has no row) in coarse numbers."""
    named = ("dataset", str(use))
    if cache is None:
        return (named,)
    if cache.state == Cache.FAILED:
        return (named, ("data_state", cache.state), ("message", cache.message))
    if cache.state != Cache.FILLING:
        return (named, ("data_state", cache.state))
    # Coarse, since each change is written to the rows of all waiting jobs.
    percent = 10 * (10 * cache.bytes_done // max(1, cache.version.size_bytes))
    left = eta_seconds(cache)
    eta = () if left is None else (("eta_seconds", _coarse(left)),)
    trouble = (("message", cache.message),) if cache.message else ()
    return (named, ("data_state", cache.state), ("percent", percent), *eta, *trouble)


def _copies(wanted: Mapping[str, Sequence[Cache | None]]) -> tuple[tuple[str, int], ...]:
    """Return (location, seconds) until all of a job's data is there, for the locations where that can be estimated.
    `wanted`: its caches by location, None for one that has no row."""
    left = {name: [_seconds_left(cache) for cache in caches] for name, caches in wanted.items()}
    return tuple((name, max(known)) for name, seconds in left.items() if (known := _all_known(seconds)))


def _all_known(seconds: Sequence[int | None]) -> list[int]:
    known = [one for one in seconds if one is not None]
    return known if len(known) == len(seconds) else []


def _seconds_left(cache: Cache | None) -> int | None:
    """Return the coarse number of seconds until a cache is ready; None if that is unknown, as while its fill waits."""
    if cache is None or cache.state == Cache.READY:
        return None if cache is None else 0
    left = None if cache.message else eta_seconds(cache)
    return None if left is None else _coarse(left)


def _coarse(seconds: int) -> int:
    step = 10 if seconds < 120 else 60
    return -(-seconds // step) * step


def datasets_to_copy(project: Project, mounts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the datasets that are copied before a job with these entries of `datasets` (with version
    ids) can start; [] if one location has them all."""
    wanted = {UUID(each["version_id"]) for each in mounts}
    caches = Cache.objects.filter(location__cluster=project.cluster, version__in=wanted, state=Cache.READY)
    caches = caches.filter(location__project=owner_of(project.cluster, project.pk))
    there: dict[int, set[UUID]] = defaultdict(set)
    for location, version in caches.values_list("location", "version") if wanted else ():
        there[location].add(version)
    most = max(there.values(), key=len, default=set[UUID]())
    names = (
        version_name(each["dataset"], each["version"], each.get("subset", ""))
        for each in mounts
        if UUID(each["version_id"]) not in most
    )
    return list(dict.fromkeys(names))


def best_location(job: Job, versions: Iterable[DatasetVersion]) -> str:
    """Return the name of the location to which the data of a new job, which mounts `versions`, is sent; "" for a
    cluster with a single location. Runs four queries, one in the latter case."""
    return choose(_candidates(job, versions), job.milli_gpus * job.pods_wanted)


def other_location(job: Job, versions: Iterable[DatasetVersion]) -> str:
    """Return the name of another location for the data of a job, which mounts `versions`, after a fill failed; ""
    if there is none. Runs queries as `best_location`."""
    return choose_other(_candidates(job, versions), job.milli_gpus * job.pods_wanted)


def _candidates(job: Job, versions: Iterable[DatasetVersion]) -> list[Candidate]:
    cluster = job.project.cluster
    locations = locations_of(cluster)
    if not locations:
        return []
    sizes = {version.pk: version.size_bytes for version in versions}
    rows = Cache.objects.filter(location__cluster=cluster, version__in=sizes).exclude(state=Cache.EVICTING)
    found = list(
        rows.filter(location__project=owner_of(cluster, job.project_id)).values_list(
            "location_id", "version_id", "state"
        )
    )
    by_pk = location_names(cluster)
    states = {(by_pk.get(location, ""), key): state for location, key, state in found}
    failed = {location for (location, _), state in states.items() if state == Cache.FAILED}
    failed |= set(crowded_locations(cluster, locations))
    there = {key for key, state in states.items() if state != Cache.FAILED}
    limits = limits_of(cluster)
    room = _room(job, locations)
    return [
        Candidate(
            location.name,
            # Count at least one byte: an empty version must be filled too.
            sum(max(1, size) for key, size in sizes.items() if (location.name, key) not in there),
            *room.get(location.name, (0, 0, 0)),
            room_bytes=limits.get(location.name),
            has_failed=location.name in failed,
        )
        for location in locations
    ]


def _room(job: Job, locations: Sequence[Location]) -> Mapping[str, tuple[int, int, int]]:
    """Return (free milli-GPUs, all milli-GPUs, number of nodes) by cache location, of the schedulable nodes in pools
    that the job may use."""
    pools = [job.spec["node_pool"]] if job.spec["node_pool"] else job.project.node_pools.get(job.kind, ())
    nodes = Node.objects.filter(
        cluster=job.project.cluster_id, is_ready=True, is_cordoned=False, is_closed=False
    )
    nodes = nodes.filter(pool__name__in=pools) if pools else nodes
    present = Q(devices__is_present=True, devices__is_foreign=False)
    counted = nodes.annotate(
        held=Sum("devices__allocated_milli", filter=present, default=0), gpus=Count("devices", filter=present)
    )
    room: dict[str, tuple[int, int, int]] = {}
    for pool, labels, held, gpus in counted.values_list("pool__name", "labels", "held", "gpus"):
        location = location_of(pool or "", labels, locations)
        free, total, count = room.get(location, (0, 0, 0))
        room[location] = free + 1000 * gpus - held, total + 1000 * gpus, count + 1
    return room


def dataset_mounts(job: Job, nodes: Collection[str] = ("",)) -> dict[str, list[list[Any]]]:
    """Return the fields of engines.base.Mount for each dataset of a job, by node. Does not check that the caches are
    ready. Called in the transaction that starts the pods: at most three queries for any number of nodes; no file
    access."""
    if not job.spec.get("datasets"):
        return {node: [] for node in nodes}
    found = locations_on(job.project.cluster, nodes)
    by_location = {location: _mounts_from(job, location) for location in set(found.values())}
    return {node: by_location[location] for node, location in found.items()}


def _mounts_from(job: Job, location: CacheLocation | None) -> list[list[Any]]:
    datasets = job.spec["datasets"]
    if has_cache_volumes(job.project.cluster):
        claim, top = claim_name_at(location), Path()
        return [
            ["", each["mount_path"], True, claim, str(tree_below(top, each["version_id"]))]
            for each in datasets
        ]
    assert location is not None
    directory = directory_of(location)
    trees = ((str(tree_below(directory, each["version_id"])), each["mount_path"]) for each in datasets)
    return [list(Mount(source, path, is_read_only=True, is_stored=True)) for source, path in trees]
