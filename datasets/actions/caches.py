"""Verbs on caches, and on the mounts of jobs that use them. One function, one transaction, one event each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane.access import SYSTEM, Actor, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, invalid
from controlplane.loop.wake import wake
from controlplane.models import Cluster, Command, Event, Project
from datasets.models import Cache, CacheLocation, Dataset, DatasetUse, DatasetVersion
from datasets.queries.caches import (
    UNFINISHED,
    cache_refusal,
    has_cache_volumes,
    is_used_at,
    key_of,
    location_of,
    users_of,
    uses_of,
)
from jobs.models import Job

FILL_CACHE, EVICT_CACHE = "datasets.fill_cache", "datasets.evict_cache"
CACHE, TREE = "cache", "cache_tree"  # Command.subject_kind


def location_for(cluster: Cluster, project: Project | None = None) -> CacheLocation:
    """Return where caches for jobs of a project are in a cluster, created when it is first needed. `project`: None only
    where caches are in a directory for all projects. Raises Invalid for a cluster without a location."""
    if words := cache_refusal(cluster):
        raise invalid("/location", "no_location", words)
    return location_of(cluster, project) or _new_location(cluster, project)


def _new_location(cluster: Cluster, project: Project | None) -> CacheLocation:
    owner = project if has_cache_volumes(cluster) else None
    name = f"{cluster.name}.{owner.name}" if owner else cluster.name
    with transaction.atomic():
        # The name of a detached cluster is free again; its caches stay until they are too old.
        for old in CacheLocation.objects.filter(name=name, cluster__detached_at__isnull=False):
            CacheLocation.objects.filter(pk=old.pk).update(name=f"{old.name}-{old.cluster_id}")
        location, _ = CacheLocation.objects.get_or_create(
            cluster=cluster, project=owner, defaults={"name": name}
        )
    return location


def edit_location(location: CacheLocation, changes: Mapping[str, Any], *, actor: Actor) -> CacheLocation:
    """Change room or age limit (checked values)."""
    with transaction.atomic():
        reread(location, lock=True)
        before = {name: getattr(location, name) for name in changes}
        for name, value in changes.items():
            setattr(location, name, value)
        location.save(update_fields=list(changes))
        write_audit(
            actor, "cache_location.edit", "cache_location", location.name, before=before, after=dict(changes)
        )
        Event.objects.append([Event(kind="cache_location.edited", actor=actor.name, data=dict(changes))])
    return location


def cache_version(version: DatasetVersion, location: CacheLocation, *, actor: Actor) -> Cache:
    """Bring a version to a location, unless it is there or on its way; one that failed is tried again."""
    with transaction.atomic():
        cache = _wanted(version, location, actor.name, is_kept=True)
        write_audit(actor, "cache.create", "cache", str(cache.pk), after={"version": str(version.pk)})
        Event.objects.append([cache_event("cache.requested", cache, actor)])
        wake()
    return cache


def pin_cache(cache: Cache, is_pinned: bool, *, actor: Actor) -> Cache:
    """Keep a cache from being removed by age or for room, or stop doing so."""
    kind = "cache.pinned" if is_pinned else "cache.unpinned"
    with transaction.atomic():
        reread(cache, lock=True)
        cache.is_pinned, cache.used_at = is_pinned, timezone.now()
        cache.is_kept = cache.is_kept or is_pinned
        cache.save(update_fields=["is_pinned", "is_kept", "used_at"])
        write_audit(actor, kind.replace("ned", ""), "cache", str(cache.pk), after={"is_pinned": is_pinned})
        Event.objects.append([cache_event(kind, cache, actor)])
    return cache


def clear_cache(cache: Cache, *, actor: Actor) -> Cache:
    """Remove a cache, or break its fill off. Raises Conflict while an unfinished job wants it."""
    with transaction.atomic():
        if not evict([cache.pk]):
            reread(cache)
            uses = uses_of([cache.version]).filter(is_used_at(cache.location))
            if cache.state != Cache.EVICTING and uses.exists():
                users = users_of(uses, cache.version.dataset.project)
                raise Conflict("cache_in_use", f"The cache is used by {users}; it can be removed afterwards.")
            return cache
        reread(cache)
        write_audit(actor, "cache.clear", "cache", str(cache.pk), before={"version": str(cache.version_id)})
        Event.objects.append([cache_event("cache.evicting", cache, actor)])
        wake()
    return cache


def evict(keys: Iterable[Any]) -> list[Cache]:
    """Begin to remove those caches that no unfinished job wants, and return them. Call it in a transaction."""
    evicted = []
    for key in sorted(keys):
        rows = Cache.objects.filter(~Exists(_wanting()), pk=key).exclude(state=Cache.EVICTING)
        if not rows.update(state=Cache.EVICTING, changed_at=timezone.now()):
            continue
        cache = Cache.objects.select_related("version__dataset", "location").get(pk=key)
        Command.objects.about(CACHE, cache.pk).of_kinds([FILL_CACHE]).cancel()
        payload = {"location": cache.location_id, "key": key_of(cache.version_id)}
        Command.objects.create(
            kind=EVICT_CACHE, subject_kind=CACHE, subject_id=str(cache.pk), payload=payload
        )
        evicted.append(cache)
    return evicted


def lose_volume(project: Project) -> None:
    """Fail the caches on the project's volume in its cluster, which goes with the project's namespace. Call it in the
    transaction that moves the project."""
    location = CacheLocation.objects.filter(cluster=project.cluster_id, project=project).first()
    if location is None:
        return
    CacheLocation.objects.filter(pk=location.pk).update(kept_keys=[], used_bytes=0)
    message = f"Its volume was removed when {project.name} moved to another cluster."
    words = {"reason": "project_moved", "message": message, "changed_at": timezone.now()}
    for cache in location.caches.select_related("version__dataset").order_by("pk"):
        Cache.objects.filter(pk=cache.pk).update(charged_bytes=0)
        rows = Cache.objects.filter(pk=cache.pk, state__in=(Cache.QUEUED, Cache.FILLING, Cache.READY))
        if rows.update(state=Cache.FAILED, **words):
            Command.objects.about(CACHE, cache.pk).of_kinds([FILL_CACHE]).cancel()
            Event.objects.append([cache_event("cache.failed", cache, SYSTEM)])


def use_datasets(jobs: Sequence[Job]) -> None:
    """Write down which versions new jobs mount, and have them brought to their cluster. Raises Conflict for one that
    was deleted since it was looked up. Call it in the transaction that submits the jobs; without datasets it costs
    nothing."""
    wanted = [(job, each) for job in jobs for each in job.spec["datasets"]]
    if not wanted:
        return
    keys = {each["version_id"] for _, each in wanted}
    datasets = Dataset.objects.filter(versions__in=keys).order_by("pk")
    # a deletion waits for this transaction, and then finds the jobs
    list(datasets.select_for_update(no_key=True).values_list("pk"))
    versions = {
        str(version.pk): version
        for version in DatasetVersion.objects.filter(pk__in=keys).select_related("dataset__project")
    }
    if len(versions) != len(keys):
        raise Conflict("dataset_removed", "A dataset of the job was deleted meanwhile; submit it again.")
    DatasetUse.objects.bulk_create(
        DatasetUse(
            job=job,
            version=versions[each["version_id"]],
            dataset_name=each["dataset"],
            number=each["version"],
            subset=each.get("subset", ""),
            mount_path=each["mount_path"],
            is_cached=each["cached"],
        )
        for job, each in wanted
    )
    _bring(jobs[0].project, wanted, versions)


def ensure_wanted(location: CacheLocation) -> None:
    """Have brought to a location what unfinished jobs want there and what is not there, and note that they use it: a
    cache may have been removed under a job that was just submitted."""
    uses = DatasetUse.objects.filter(UNFINISHED, is_used_at(location), version__isnull=False)
    # of several mounts of a version, one that asks for a cache decides
    wanted = dict(uses.order_by("is_cached").values_list("version_id", "is_cached"))
    if not wanted:
        return
    known = Cache.objects.filter(location=location, version__in=wanted)
    known.update(used_at=timezone.now())
    missing = wanted.keys() - set(known.values_list("version_id", flat=True))
    with transaction.atomic():
        for version in DatasetVersion.objects.filter(pk__in=missing).order_by("pk"):
            _wanted(version, location, SYSTEM.name, is_kept=wanted[version.pk])


def refill(cache: Cache) -> bool:
    """Try a failed cache again, or one that was removed while a new job wanted it. Call it in a transaction."""
    rows = Cache.objects.filter(pk=cache.pk, state__in=(Cache.FAILED, Cache.EVICTING))
    fresh = {"state": Cache.QUEUED, "files_done": 0, "bytes_done": 0, "bytes_moved": 0, "bytes_per_second": 0}
    if not rows.update(**fresh, reason="", message="", changed_at=timezone.now(), ready_at=None):
        return False
    _order_fill(cache)
    return True


def cache_event(kind: str, cache: Cache, actor: Actor) -> Event:
    """Return an unsaved event about a cache; it touches the feed of its dataset."""
    dataset = cache.version.dataset
    return Event(
        kind=kind,
        project_id=dataset.project_id,
        actor=actor.name,
        message=f"Cache of {cache.version}: {kind.partition('.')[2]}.",
        data={"dataset": str(dataset.pk), "cache": str(cache.pk), "version": cache.version.number},
    )


def _bring(
    project: Project,
    wanted: Sequence[tuple[Job, Mapping[str, Any]]],
    versions: Mapping[str, DatasetVersion],
) -> None:
    location = location_for(project.cluster, project)
    for key, version in sorted(versions.items()):
        jobs = [(job, each) for job, each in wanted if each["version_id"] == key]
        is_kept = any(each["cached"] for _, each in jobs)
        cache = _wanted(version, location, _known_as(jobs[0][0], version), is_kept=is_kept)
        if cache.state == Cache.READY:
            Cache.objects.filter(pk=cache.pk).update(hits=F("hits") + len({job.pk for job, _ in jobs}))


def _known_as(job: Job, version: DatasetVersion) -> str:
    """Return who had a version brought, as readers of its dataset may know it: a user of its own project by name, one
    of another by the project, as `users_of` does with jobs."""
    is_own = job.project_id == version.dataset.project_id
    return job.user.username if is_own else job.project.name


def _wanted(version: DatasetVersion, location: CacheLocation, by: str, *, is_kept: bool) -> Cache:
    """Return the cache of a version, created or tried again where that is needed."""
    fresh = {"created_by": by, "is_kept": is_kept}
    cache, is_new = Cache.objects.get_or_create(version=version, location=location, defaults=fresh)
    if is_new:
        _order_fill(cache)
        return cache
    Cache.objects.filter(pk=cache.pk).update(used_at=timezone.now())
    if is_kept and not cache.is_kept:
        Cache.objects.filter(pk=cache.pk).update(is_kept=True)
    if cache.state == Cache.FAILED:
        refill(cache)
    reread(cache)
    return cache


def _order_fill(cache: Cache) -> None:
    Command.objects.create(kind=FILL_CACHE, subject_kind=CACHE, subject_id=str(cache.pk))


def _wanting() -> Any:
    """Return the mounts in unfinished jobs of the cache that an outer query names."""
    same: dict[str, Any] = {
        "version": OuterRef("version"),
        "job__project__cluster": OuterRef("location__cluster"),
    }
    # A location without a project is of all.
    same["job__project"] = Coalesce(OuterRef("location__project"), F("job__project"))
    return DatasetUse.objects.filter(UNFINISHED, Q(**same))
