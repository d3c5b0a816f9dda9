"""Read caches and cache locations as plain data in REST form."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import Least

from controlplane.clusters import quantities
from controlplane.engines.kinds import engine_kind, is_delegated
from controlplane.models import Cluster, Project
from controlplane.notation import some_of
from datasets.models import Cache, CacheLocation, Dataset, DatasetUse, DatasetVersion
from datasets.queries.code import control_url, data_image, settings_hint
from datasets.queries.disks import require_directory
from datasets.storage.cache import CacheStore
from jobs.lifecycle import FINAL_STATES, QUEUED

UNFINISHED = ~Q(job__state__in=FINAL_STATES)


def has_cache_volumes(cluster: Cluster) -> bool:
    """Return whether caches of this cluster are on volumes of its projects rather than in a directory of its
    nodes."""
    kind = engine_kind(cluster.engine)
    return kind.claims_volumes and not kind.mounts_volumes


def holds_caches(location: CacheLocation) -> bool:
    """Return whether caches are at this location itself, not on the volumes that projects have there."""
    return location.project_id is not None or not has_cache_volumes(location.cluster)


def cache_refusal(cluster: Cluster) -> str:
    """Return why jobs of this cluster cannot mount datasets; "" if they can."""
    if engine_kind(cluster.engine).mounts_volumes:
        return ""
    if not has_cache_volumes(cluster):
        return f"{cluster.name} cannot mount datasets; put the data into the image or on a host path."
    return settings_hint(
        cluster,
        f"Caches of {cluster.name} are not configured. An admin names a storage class with ReadWriteMany, the address"
        " of the control plane for pods, and an image with python3",
        {
            "cache_storage_class=CLASS": cluster.settings.get("cache_storage_class"),
            "control_url=https://...": control_url(cluster),
            "code_image=IMAGE": data_image(cluster),
        },
    )


def location_of(cluster: Cluster, project: Project | None) -> CacheLocation | None:
    """Return the default cache location for a project's jobs (None: for those of all projects), None before its
    first use."""
    owner = project if has_cache_volumes(cluster) else None
    return CacheLocation.objects.filter(cluster=cluster, project=owner, is_default=True).first()


def directory_of(location: CacheLocation) -> Path:
    """Return the directory of a location: a subdirectory of the one that an admin configured, which may have
    other files."""
    below = str(location.cluster_id) if location.is_default else f"{location.cluster_id}-{location.pk}"
    return Path(location.directory or settings.CACHE_DIR) / below


def store_of(location: CacheLocation) -> CacheStore:
    """Return the caches in a location's directory. Raises Blocked if the directory cannot be created, and
    Blocked(NOT_MOUNTED) if it is not there because its disk is not."""
    directory = directory_of(location)
    # The state directory is on a disk that the control plane itself needs.
    if location.directory or not directory.is_relative_to(settings.STATE_DIR):
        filled = CacheLocation.objects.filter(pk=location.pk, used_bytes__gt=0)
        lost = "An operator mounts its disk or, if its caches are lost, makes the directory."
        require_directory(directory, (), [filled], f"{location.name} is not there. {lost}")
    return CacheStore(directory)


def reported_keys(volume: CacheLocation) -> set[str]:
    """Return the keys of the trees on a project's volume, as the last pod there reported them."""
    return set(CacheLocation.objects.values_list("kept_keys", flat=True).get(pk=volume.pk))


def unread_at(
    version: DatasetVersion, visible: QuerySet[CacheLocation], unusable: Sequence[CacheLocation]
) -> list[str]:
    """Return the names of those `visible` locations with a cache of this version whose files this process cannot read:
    volumes of projects, and the directories `unusable`."""
    states = Cache.READY, Cache.FILLING
    caches = Cache.objects.filter(version=version, state__in=states, location__in=visible)
    caches = caches.filter(Q(location__project__isnull=False) | Q(location__in=unusable))
    return sorted(caches.values_list("location__name", flat=True))


def key_of(version_id: object) -> str:
    """Return the key under which a location stores the tree of a version (by id)."""
    return str(version_id)


def uses_of(rows: QuerySet[DatasetVersion] | Iterable[DatasetVersion]) -> QuerySet[DatasetUse]:
    """Return the mounts of these versions by unfinished jobs."""
    return DatasetUse.objects.filter(UNFINISHED, version__in=rows)


def is_used_at(location: CacheLocation) -> Q:
    """Return a filter for mounts by jobs that may use a location's caches: all jobs of its cluster or, for a
    project's volume, of that project. Wider than `is_wanted_at`: with several locations it includes jobs that another
    location serves."""
    used = Q(job__project__cluster=location.cluster_id)
    return used if location.project_id is None else used & Q(job__project=location.project_id)


def is_wanted_at(location: CacheLocation) -> Q:
    """Return a filter for mounts that this location serves. A mount without a location counts for the default
    location."""
    if location.is_default and is_delegated(location.cluster.scheduler):
        # Its own scheduler chooses the nodes, so every pod mounts the default location.
        return is_used_at(location)
    wanted = Q(location=location.pk)
    return is_used_at(location) & ((wanted | Q(location=None)) if location.is_default else wanted)


def users_of(uses: QuerySet[DatasetUse], project: Project) -> str:
    """Return a text that names the jobs of the mounts `uses`, for readers of `project`: its own jobs by name,
    others by their project."""
    rows = uses.order_by("job__submit_rank").values_list("job__name", "job__project__name").distinct()
    found = [f"job {job}" if owner == project.name else f"a job of {owner}" for job, owner in rows[:100]]
    return some_of(list(dict.fromkeys(found)))


def eta_seconds(cache: Cache) -> int | None:
    """Return the estimated remaining seconds of a fill; None if it is not running or has no measured rate."""
    if cache.state != Cache.FILLING or not cache.bytes_per_second:
        return None
    return max(0, cache.version.size_bytes - cache.bytes_done) // cache.bytes_per_second


def jobs_with(dataset: Dataset, project_ids: Sequence[int] | None) -> QuerySet[DatasetUse]:
    """Return the mounts of a dataset by jobs of the projects with these ids (None: all projects), newest job
    first."""
    uses = DatasetUse.objects.filter(version__dataset=dataset).select_related("job__project", "job__user")
    uses = uses if project_ids is None else uses.filter(job__project__in=project_ids)
    return uses.order_by("-job__submit_rank", "pk")


def cache_rows(rows: QuerySet[Cache]) -> list[Cache]:
    """Return the rows of the query with the relations that `cache_shapes` needs."""
    return list(rows.select_related("version__dataset__project", "location"))


def cache_shapes(caches: Sequence[Cache]) -> list[dict[str, Any]]:
    """Return caches in REST form."""
    return [cache_shape(cache) for cache in caches]


def cache_shape(cache: Cache) -> dict[str, Any]:
    """Return one cache in REST form."""
    version = cache.version
    days = None if cache.is_pinned or cache.state != Cache.READY else cache.location.unused_days
    return {
        "id": str(cache.pk),
        "dataset_id": str(version.dataset_id),
        "dataset": version.dataset.name,
        "project": version.dataset.project.name,
        "version": version.number,
        "subset": version.subset,
        "version_id": str(version.pk),
        "location": cache.location.name,
        "state": cache.state,
        "reason": {"code": cache.reason, "message": cache.message},
        "is_pinned": cache.is_pinned,
        "is_kept": cache.is_kept,
        "hits": cache.hits,
        "progress": {
            "files": cache.files_done,
            "total_files": version.files,
            "bytes": cache.bytes_done,
            "total_bytes": version.size_bytes,
            "moved_bytes": cache.bytes_moved,
            "bytes_per_second": cache.bytes_per_second,
            "eta_seconds": eta_seconds(cache),
        },
        "charged_bytes": cache.charged_bytes,
        "sharing": cache.sharing,
        "created_by": cache.created_by,
        "created_at": cache.created_at,
        "ready_at": cache.ready_at,
        "used_at": cache.used_at,
        "expires_at": None if days is None else cache.used_at + timedelta(days=days),
    }


def is_at(names: Sequence[str]) -> Q:
    """Return a filter for caches at the locations with these names, including projects' volumes there. A cluster's
    name selects its default location."""
    default = Q(location__is_default=True, location__cluster__name__in=names)
    return Q(location__name__in=names) | Q(location__parent__name__in=names) | default


def location_rows(rows: QuerySet[CacheLocation]) -> list[CacheLocation]:
    """Return the rows of the query with the relations that `location_shapes` needs."""
    return list(with_relations(rows))


def with_relations(rows: QuerySet[CacheLocation]) -> QuerySet[CacheLocation]:
    """Return the same locations with the relations that `location_shapes` needs."""
    return rows.select_related("cluster", "project", "parent")


def location_shapes(locations: Sequence[CacheLocation]) -> list[dict[str, Any]]:
    """Return locations in REST form; one query for any number. Looks at the disks: call it outside of transactions."""
    sums = _fill_sums(locations)
    return [_location_shape(one, sums[one.pk], disk_free_bytes(one)) for one in locations]


def location_shape(location: CacheLocation, disk: int | None) -> dict[str, Any]:
    """Return a location in REST form. `disk`: its `disk_free_bytes`, which the caller read before its transaction."""
    return _location_shape(location, _fill_sums([location])[location.pk], disk)


def _fill_sums(locations: Sequence[CacheLocation]) -> dict[int, dict[str, int]]:
    """Return the sums of each location's caches, by its id."""
    is_filling = Q(state=Cache.FILLING)
    sums = {
        "caches": Count("pk"),
        "hits": Sum("hits"),
        "reserved": Sum("reserved_bytes", filter=is_filling, default=0),
        "written": Sum(Least("bytes_moved", "reserved_bytes"), filter=is_filling, default=0),
    }
    rows = Cache.objects.filter(location__in=locations).order_by().values("location_id").annotate(**sums)
    found = {row.pop("location_id"): row for row in rows.values("location_id", *sums)}
    return {one.pk: found.get(one.pk, dict.fromkeys(sums, 0)) for one in locations}


def _location_shape(location: CacheLocation, sums: Mapping[str, int], disk: int | None) -> dict[str, Any]:
    reserved, stated = sums["reserved"], location.parent or location
    return {
        "name": location.name,
        "cluster": location.cluster.name,
        "project": location.project.name if location.project else None,
        "parent": location.parent.name if location.parent else None,
        "node_pools": stated.node_pools,
        "node_labels": stated.node_labels,
        "storage_class": stated.storage_class,
        "access_mode": stated.access_mode,
        "room_bytes": room_of(location),
        "used_bytes": location.used_bytes,
        "committed_bytes": location.used_bytes + reserved,
        "free_bytes": free_bytes(location, disk, reserved, sums["written"]),
        "unused_days": location.unused_days,
        "caches": sums["caches"],
        "hits": sums["hits"],
    }


def disk_free_bytes(location: CacheLocation) -> int | None:
    """Return the free bytes of the disk of a location's directory, which need not exist: 0 if it cannot be examined,
    None for a volume, which only a pod could measure. `location` may be unsaved."""
    try:
        return free_on_disk(location)
    except OSError:
        # Only where it is shown: a fill that saw a full disk would remove other caches.
        return 0


def free_bytes(location: CacheLocation, disk: int | None, reserved: int = 0, written: int = 0) -> int:
    """Return the free bytes of a location: the rest of its limit; for a directory at most `disk`, its `free_on_disk`.
    `reserved`: the bytes promised to running fills; `written`: the part of them that is on the disk already."""
    limit = room_of(location)
    rest = None if limit is None else limit - location.used_bytes - reserved
    # What running fills have not written yet still counts as free on the disk.
    on_disk = None if disk is None else disk - (reserved - written)
    return max(0, min((each for each in (rest, on_disk) if each is not None), default=0))


def free_on_disk(location: CacheLocation) -> int | None:
    """Return the free bytes of the disk of a location's directory, None for a volume. Raises OSError if the disk cannot
    be examined. Call it outside of transactions."""
    if has_cache_volumes(location.cluster):
        return None
    path = directory_of(location)
    # The first fill creates it, on the disk of its nearest existing parent.
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def room_of(location: CacheLocation) -> int | None:
    """Return the limit of a location in bytes, or of each project's volume there; None if only its disk limits
    it."""
    cluster = location.cluster
    if location.room_bytes is not None or not has_cache_volumes(cluster):
        return location.room_bytes
    size = cluster.settings.get("cache_size") or engine_kind(cluster.engine).knobs["cache_size"].default
    return int(quantities.pieces(str(size)))


def wanted_versions(location: CacheLocation) -> set[Any]:
    """Return the ids of versions whose caches at a location must not be removed: those that unfinished jobs may use
    there (see `is_used_at`)."""
    uses = DatasetUse.objects.filter(UNFINISHED, is_used_at(location), version__isnull=False)
    return set(uses.values_list("version_id", flat=True))


def needed_versions(location: CacheLocation) -> set[Any]:
    """Return the ids of versions that a location must cache, since it serves their mounts in unfinished jobs (see
    `is_wanted_at`)."""
    uses = DatasetUse.objects.filter(UNFINISHED, is_wanted_at(location), version__isnull=False)
    return set(uses.values_list("version_id", flat=True))


def without_their_data() -> QuerySet[DatasetUse]:
    """Return the mounts of queued jobs whose dataset was deleted, or belongs to another project and is shared
    no more."""
    foreign = Q(version__dataset__is_shared=False) & ~Q(version__dataset__project=F("job__project"))
    return DatasetUse.objects.filter(Q(version=None) | foreign, job__state=QUEUED)
