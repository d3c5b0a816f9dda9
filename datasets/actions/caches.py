"""Verbs on caches. Each is one transaction with one event."""

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Coalesce
from django.utils import timezone

from controlplane.access import SYSTEM, Actor, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, invalid
from controlplane.actions.events import announce
from controlplane.models import Cluster, Command, Event, Project
from datasets.models import Cache, CacheLocation, DatasetUse, DatasetVersion
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

FILL_CACHE, EVICT_CACHE = "datasets.fill_cache", "datasets.evict_cache"
CACHE, TREE = "cache", "cache_tree"  # Command.subject_kind


def location_for(cluster: Cluster, project: Project | None = None, at: str = "") -> CacheLocation:
    """Return the cache location of a cluster for a project's jobs, or the project's volume there; creates it on first
    use. `project`: None for the location itself, without projects' volumes. `at`: the name of a location; "" or an
    unknown name selects the default location. Raises Invalid if the cluster cannot have caches."""
    if words := cache_refusal(cluster):
        raise invalid("/location", "no_location", words)
    named = CacheLocation.objects.filter(cluster=cluster, name=at, project=None) if at else None
    location = named.select_related("cluster").first() if named is not None else None
    if location is None or location.is_default:
        return location_of(cluster, project) or _new_location(cluster, project)
    return location if project is None else volume_at(location, project)


def volume_at(location: CacheLocation, project: Project) -> CacheLocation:
    """Return where a project's caches at a location are: in a cluster with volumes the project's own volume there,
    created on first use, else the location. Raises NotVisible if the location was deleted meanwhile, Invalid as
    `location_for`."""
    if not has_cache_volumes(location.cluster):
        return location
    if location.is_default:
        return location_for(location.cluster, project)
    if known := location.volumes.select_related("cluster", "parent").filter(project=project).first():
        return known
    with transaction.atomic():
        # Waits for a concurrent deletion.
        reread(location, lock=True)
        name = _free_name(f"{location.name}.{project.name}", f"{location.pk}")
        first = {"name": name, "room_bytes": location.room_bytes, "unused_days": location.unused_days}
        volume, _ = CacheLocation.objects.get_or_create(
            parent=location, project=project, cluster=location.cluster, is_default=False, defaults=first
        )
    return volume


def _new_location(cluster: Cluster, project: Project | None) -> CacheLocation:
    owner = project if has_cache_volumes(cluster) else None
    name = f"{cluster.name}.{owner.name}" if owner else cluster.name
    with transaction.atomic():
        # A detached cluster's name is free for reuse, but its caches stay until they expire.
        for old in CacheLocation.objects.filter(name=name, cluster__detached_at__isnull=False):
            CacheLocation.objects.filter(pk=old.pk).update(name=f"{old.name}-{old.cluster_id}")
        location, _ = CacheLocation.objects.get_or_create(
            cluster=cluster,
            project=owner,
            is_default=True,
            defaults={"name": _free_name(name, f"{cluster.pk}")},
        )
    return location


def _free_name(name: str, suffix: str) -> str:
    """Return a name for a new location, with the suffix if another location has it already."""
    return f"{name}-{suffix}" if CacheLocation.objects.filter(name=name).exists() else name


def cache_version(version: DatasetVersion, location: CacheLocation, *, actor: Actor) -> Cache:
    """Return the cache of a version at a location. Starts to fill it unless it is ready or being filled; retries
    a failed one. The cache stays when no job uses it."""
    with transaction.atomic():
        cache = want_cache(version, location, actor.name, is_kept=True)
        write_audit(actor, "cache.create", "cache", str(cache.pk), after={"version": str(version.pk)})
        announce(cache_event("cache.requested", cache, actor))
    return cache


def pin_cache(cache: Cache, is_pinned: bool, *, actor: Actor) -> Cache:
    """Protect a cache from removal by age or for space if `is_pinned`, else end the protection. Return the cache."""
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
    """Start to remove a cache, or cancel its fill, and return it; does nothing if it is being removed. Raises Conflict
    while an unfinished job needs it, NotVisible if it is gone."""
    with transaction.atomic():
        if not evict([cache.pk], with_pinned=True):
            reread(cache)
            uses = uses_of([cache.version]).filter(is_used_at(cache.location))
            if cache.state != Cache.EVICTING and uses.exists():
                users = users_of(uses, cache.version.dataset.project)
                raise Conflict("cache_in_use", f"The cache is used by {users}; it can be removed afterwards.")
            return cache
        reread(cache)
        write_audit(actor, "cache.clear", "cache", str(cache.pk), before={"version": str(cache.version_id)})
        announce(cache_event("cache.evicting", cache, actor))
    return cache


def evict(keys: Iterable[Any], *, with_pinned: bool = False) -> list[Cache]:
    """Start the removal of the caches with the ids `keys`, except those that unfinished jobs need or that are
    being removed, and pinned ones unless `with_pinned`. Return those whose removal was started. Needs an open
    transaction."""
    evicted = []
    # Sorted, so that two concurrent evictions lock rows in the same order.
    for key in sorted(keys):
        rows = Cache.objects.filter(~Exists(_wanting()), pk=key).exclude(state=Cache.EVICTING)
        rows = rows if with_pinned else rows.filter(is_pinned=False)
        # One UPDATE with the conditions: if a job is submitted or the cache pinned concurrently, it stays.
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


def lose_volumes(project: Project) -> None:
    """Fail the caches on the project's volumes in its cluster, which are deleted with the project's namespace.
    Call it in the transaction that moves the project."""
    volumes = CacheLocation.objects.filter(cluster=project.cluster_id, project=project)
    volumes.update(kept_keys=[], used_bytes=0)
    message = f"Its volume was removed when {project.name} moved to another cluster."
    words = {"reason": "project_moved", "message": message, "changed_at": timezone.now()}
    caches = Cache.objects.filter(location__in=volumes).select_related("version__dataset")
    for cache in caches.order_by("pk"):
        Cache.objects.filter(pk=cache.pk).update(charged_bytes=0)
        rows = Cache.objects.filter(pk=cache.pk, state__in=(Cache.QUEUED, Cache.FILLING, Cache.READY))
        if rows.update(state=Cache.FAILED, **words):
            Command.objects.about(CACHE, cache.pk).of_kinds([FILL_CACHE]).cancel()
            Event.objects.append([cache_event("cache.failed", cache, SYSTEM)])


def refill(cache: Cache) -> bool:
    """Start to fill a failed cache again, or one whose removal had begun before a new job needed it. Return
    False, and do nothing, in any other state. Needs an open transaction."""
    rows = Cache.objects.filter(pk=cache.pk, state__in=(Cache.FAILED, Cache.EVICTING))
    fresh = {"state": Cache.QUEUED, "files_done": 0, "bytes_done": 0, "bytes_moved": 0, "bytes_per_second": 0}
    if not rows.update(**fresh, reason="", message="", changed_at=timezone.now(), ready_at=None):
        return False
    _order_fill(cache)
    return True


def cache_event(kind: str, cache: Cache, actor: Actor) -> Event:
    """Return an unsaved event about a cache; it updates the live topic of its dataset."""
    dataset = cache.version.dataset
    return Event(
        kind=kind,
        project_id=dataset.project_id,
        actor=actor.name,
        message=f"Cache of {cache.version}: {kind.partition('.')[2]}.",
        data={"dataset": str(dataset.pk), "cache": str(cache.pk), "version": cache.version.number},
    )


def want_cache(version: DatasetVersion, location: CacheLocation, by: str, *, is_kept: bool) -> Cache:
    """Return the cache of a version at a location, created or retried if necessary. `by`: the user or project that
    is shown as its requester; `is_kept`: requested by a user, not only by a job. Needs an open transaction."""
    fresh = {"created_by": by, "is_kept": is_kept}
    cache, is_new = Cache.objects.get_or_create(version=version, location=location, defaults=fresh)
    if is_new:
        _order_fill(cache)
        return cache
    Cache.objects.filter(pk=cache.pk).update(used_at=timezone.now())
    if is_kept and not cache.is_kept:
        Cache.objects.filter(pk=cache.pk).update(is_kept=True)
    # A removal that is still to be carried out leaves a cache that is wanted again.
    refill(cache)
    reread(cache)
    return cache


def _order_fill(cache: Cache) -> None:
    Command.objects.create(kind=FILL_CACHE, subject_kind=CACHE, subject_id=str(cache.pk))


def _wanting() -> Any:
    """Return a subquery: mounts, in unfinished jobs, of the outer query's cache."""
    same: dict[str, Any] = {
        "version": OuterRef("version"),
        "job__project__cluster": OuterRef("location__cluster"),
    }
    # A location without a project serves all projects, so the project of any job matches.
    same["job__project"] = Coalesce(OuterRef("location__project"), F("job__project"))
    return DatasetUse.objects.filter(UNFINISHED, Q(**same))
