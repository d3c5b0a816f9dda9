"""Verbs on the datasets that jobs mount: record them at submission, and fill caches where the jobs may run."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from controlplane.access import SYSTEM, NotVisible
from controlplane.actions.errors import Conflict, Invalid
from controlplane.loop.wake import wake
from controlplane.models import Event, Project
from controlplane.models.prepared import prepared
from controlplane.scheduling.reasons import WAITING_FOR_DATA
from datasets.actions.caches import cache_event, location_for, volume_at, want_cache
from datasets.models import Cache, CacheLocation, Dataset, DatasetUse, DatasetVersion
from datasets.queries.cache_locations import crowded_locations, locations_of
from datasets.queries.caches import UNFINISHED, is_used_at, is_wanted_at
from datasets.queries.job_data import best_location, other_location
from jobs.lifecycle import QUEUED
from jobs.models import Job

# The locations without a project, by cluster and name, and where a project's caches at one are.
Locations = Mapping[tuple[int, str], CacheLocation]
VolumeOf = Callable[[CacheLocation, Project], CacheLocation | None]


def use_datasets(jobs: Sequence[Job]) -> None:
    """Record which versions new jobs mount, and start to fill their caches. Raises Conflict for a dataset or
    version that was deleted since it was looked up. Call it in the transaction that submits the jobs. No
    queries for jobs without datasets."""
    wanted = [(job, each) for job in jobs for each in job.spec["datasets"]]
    if not wanted:
        return
    keys = {each["version_id"] for _, each in wanted}
    datasets = Dataset.objects.filter(versions__in=keys).order_by("pk")
    # A concurrent deletion waits for this transaction, and then finds the jobs.
    list(datasets.select_for_update(no_key=True).values_list("pk"))
    versions = {
        str(version.pk): version
        for version in DatasetVersion.objects.filter(pk__in=keys).select_related("dataset__project")
    }
    if len(versions) != len(keys):
        raise Conflict("dataset_removed", "A dataset of the job was deleted meanwhile; submit it again.")
    placed = _placed(jobs, versions)
    DatasetUse.objects.bulk_create(
        DatasetUse(
            job=job,
            version=versions[each["version_id"]],
            dataset_name=each["dataset"],
            number=each["version"],
            subset=each.get("subset", ""),
            mount_path=each["mount_path"],
            is_cached=each["cached"],
            location=placed[job.pk],
        )
        for job, each in wanted
    )
    # Sorted, so that concurrent submissions write the rows of caches in the same order.
    for location in sorted(set(placed.values()), key=attrgetter("pk")):
        _bring(location, [(job, each) for job, each in wanted if placed[job.pk] == location], versions)


def _placed(jobs: Sequence[Job], versions: Mapping[str, DatasetVersion]) -> dict[UUID, CacheLocation]:
    """Return the cache location for each of these jobs, by job id. The jobs belong to one project. `versions`:
    those that their specs name, by id."""
    project = jobs[0].project
    # The default one takes over what a location serves that is deleted or used no more.
    default, placed = location_for(project.cluster, project), dict[UUID, CacheLocation]()
    # Most jobs of a batch are alike, so each combination is computed once.
    chosen: dict[tuple[Any, ...], CacheLocation] = {}
    for job in jobs:
        alike = _alike(job)
        if alike not in chosen:
            name = best_location(job, [versions[key] for key in _version_keys(job)])
            chosen[alike] = location_for(project.cluster, project, name) if name else default
        placed[job.pk] = chosen[alike]
    return placed


def _version_keys(job: Job) -> list[str]:
    return sorted({each["version_id"] for each in job.spec["datasets"]})


def _alike(job: Job) -> tuple[Any, ...]:
    """Return a key that is equal for jobs whose data goes to the same location."""
    shape = (job.project_id, job.kind, job.spec["node_pool"], job.milli_gpus, job.pods_wanted)
    return (*shape, *_version_keys(job))


def _bring(
    location: CacheLocation,
    wanted: Sequence[tuple[Job, Mapping[str, Any]]],
    versions: Mapping[str, DatasetVersion],
) -> None:
    for key, version in sorted(versions.items()):
        jobs = [(job, each) for job, each in wanted if each["version_id"] == key]
        if not jobs:
            continue
        is_kept = any(each["cached"] for _, each in jobs)
        cache = want_cache(version, location, _known_as(jobs[0][0], version), is_kept=is_kept)
        if cache.state == Cache.READY:
            Cache.objects.filter(pk=cache.pk).update(hits=F("hits") + len({job.pk for job, _ in jobs}))


def _known_as(job: Job, version: DatasetVersion) -> str:
    """Return the requester's name as readers of the dataset may see it: the user for jobs of the dataset's own
    project, else the project (as in `users_of`)."""
    is_own = job.project_id == version.dataset.project_id
    return job.user.username if is_own else job.project.name


def follow_room(now: datetime) -> None:
    """Fill caches for queued jobs at the location where the scheduler found free GPUs, and at another
    location if a fill failed. Safe to repeat; one query if no cluster has several locations."""
    locations = {(one.cluster_id, one.name): one for one in _shared_locations()}
    # With one location per cluster there is none to move to, so the volumes need not be read.
    if len(locations) == len({cluster for cluster, _ in locations}):
        return
    # The rows of a project's volumes are read once, not for each of its jobs.
    volume_of = cache(_volume_at)
    _go_where_room_is(locations, volume_of)
    _leave_failed(locations, volume_of)


@prepared
def _shared_locations() -> QuerySet[CacheLocation]:
    return CacheLocation.objects.filter(project=None).select_related("cluster")


def _go_where_room_is(locations: Locations, volume_of: VolumeOf) -> None:
    failed = set(Cache.objects.filter(state=Cache.FAILED).values_list("location_id", "version_id"))
    waiting: dict[str, Any] = {"job__state": QUEUED, "job__reason": WAITING_FOR_DATA}
    uses = DatasetUse.objects.filter(**waiting, job__details__has_key="fill_at", version__isnull=False)
    for use in uses.select_related("job__project", "version__dataset").order_by("pk"):
        location = locations.get((use.job.project.cluster_id, use.job.details["fill_at"]))
        own = location and volume_of(location, use.job.project)
        # A fill failed here since; the scheduler will choose another location.
        if own is not None and (own.pk, use.version_id) not in failed:
            _move([use], own)


def _leave_failed(locations: Locations, volume_of: VolumeOf) -> None:
    """Move the data of queued jobs away from locations where a fill failed or that have too many nodes, all data
    of a job together. `volume_of` returns a project's place at a location, None if there is none. Each failure
    excludes one more location, so this terminates."""
    uses_there = DatasetUse.objects.filter(
        job__state=QUEUED, job__project__cluster__in={cluster for cluster, _ in locations}
    )
    failed = uses_there.filter(version__caches__state=Cache.FAILED, version__caches__location=F("location"))
    stuck = Q(pk__in=failed.values("job"))
    if crowded := _crowded(locations):
        stuck |= Q(pk__in=uses_there.filter(location__parent__in=crowded).values("job"))
    jobs = Job.objects.filter(stuck).select_related("project__cluster").order_by("submit_rank")
    chosen: dict[tuple[Any, ...], str] = {}
    for job in jobs.prefetch_related("dataset_uses__version__dataset"):
        uses = [use for use in job.dataset_uses.all() if use.version is not None]
        alike = _alike(job)
        if alike not in chosen:
            chosen[alike] = other_location(job, [use.version for use in uses if use.version is not None])
        location = locations.get((job.project.cluster_id, chosen[alike]))
        own = location and volume_of(location, job.project)
        if own is not None:
            _move(uses, own)


def _crowded(locations: Locations) -> list[int]:
    """Return the ids of ReadWriteOnce locations that more than one node reads from. Without locations of that access
    mode it runs no query."""
    of_one = {one.cluster for one in locations.values() if one.access_mode == CacheLocation.ONE_NODE}
    crowded = [
        (cluster.pk, name) for cluster in of_one for name in crowded_locations(cluster, locations_of(cluster))
    ]
    return [locations[key].pk for key in crowded if key in locations]


def _volume_at(location: CacheLocation, project: Project) -> CacheLocation | None:
    """Return `volume_at`, but None if the location was deleted meanwhile or the cluster cannot have caches now, so
    that jobs of other clusters do not fail with it."""
    try:
        return volume_at(location, project)
    except (Invalid, NotVisible):
        return None


def _move(uses: Sequence[DatasetUse], location: CacheLocation) -> None:
    """Assign these mounts to a location, and start to fill the caches that it lacks. Does nothing for mounts that
    are assigned to it already."""
    elsewhere = [(use, use.version) for use in uses if use.location_id != location.pk]
    if not elsewhere:
        return
    with transaction.atomic():
        for use, version in elsewhere:
            if version is None:
                continue
            DatasetUse.objects.filter(pk=use.pk).update(location=location)
            cache = want_cache(version, location, SYSTEM.name, is_kept=use.is_cached)
            Event.objects.append([cache_event("cache.requested", cache, SYSTEM)])
        wake()


def ensure_wanted(location: CacheLocation) -> None:
    """Start to fill the caches that unfinished jobs need at a location and that have no row: one may have been
    removed just before its job was submitted. Marks the existing ones as used now."""
    uses = DatasetUse.objects.filter(UNFINISHED, is_used_at(location), version__isnull=False)
    # If a version is mounted several times, the mount that requests a kept cache decides.
    wanted = dict(uses.order_by("is_cached").values_list("version_id", "is_cached"))
    if not wanted:
        return
    known = Cache.objects.filter(location=location, version__in=wanted)
    known.update(used_at=timezone.now())
    needed = uses.filter(is_wanted_at(location)).values_list("version_id", flat=True)
    missing = set(needed) - set(known.values_list("version_id", flat=True))
    with transaction.atomic():
        for version in DatasetVersion.objects.filter(pk__in=missing).order_by("pk"):
            want_cache(version, location, SYSTEM.name, is_kept=wanted[version.pk])
