"""Periodic work on caches: retry failed fills, remove unused caches, and end jobs whose dataset is gone."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from controlplane.access import SYSTEM
from controlplane.actions.events import announce
from controlplane.loop.wake import wake
from controlplane.models import Cluster, Command
from controlplane.models.prepared import Rows, prepared
from controlplane.scheduling.reasons import DATASET_GONE, describe
from datasets.actions.caches import EVICT_CACHE, TREE, cache_event, evict, location_for, refill
from datasets.actions.job_data import ensure_wanted
from datasets.aging import Aged, too_old
from datasets.models import Cache, CacheLocation, DatasetUse
from datasets.queries.caches import (
    cache_refusal,
    holds_caches,
    key_of,
    needed_versions,
    reported_keys,
    store_of,
    wanted_versions,
    without_their_data,
)
from datasets.storage.base import NOT_MOUNTED, Blocked
from datasets.storage.cache import CacheStore
from jobs import lifecycle
from jobs.transitions import Target, send

CONTENT_DAMAGED = "content_damaged"
DAMAGED = "Some of its files are damaged. The next fill replaces them."
NOT_FLUSHED = "not_flushed"
INTERRUPTED = "The machine stopped before its files were on disk. The next fill verifies them."
# After this time a failed fill is retried if a job waits for it.
RETRY = timedelta(minutes=1)


def keep_caches(now: datetime) -> None:
    """End jobs whose dataset is gone. Then at every location: fill missing caches, retry failed fills, remove unused
    caches, mark caches as failed whose files are gone, and remove files that belong to no cache. Safe to repeat."""
    _end_jobs_without_data()
    _create_defaults()
    states: defaultdict[int, set[str]] = defaultdict(set)
    for location_id, state in _states():
        states[location_id].add(state)
    for location in filter(holds_caches, _locations()):
        ensure_wanted(location)
        if Cache.FAILED in states[location.pk]:
            _retry_failed(location, now)
        if states[location.pk] & {Cache.READY, Cache.FAILED}:
            _age_out(location, now)
        is_mounted = _compare_with_disk(location)
        if is_mounted and Cache.FAILED in states[location.pk]:
            _bring_back(location)


@prepared
def _locations() -> QuerySet[CacheLocation]:
    return CacheLocation.objects.select_related("cluster")


@prepared
def _states() -> Rows[Cache]:
    return Cache.objects.values_list("location", "state").distinct()


def distrust_caches() -> None:
    """Mark caches as failed whose files were not flushed yet when the machine stopped, and those at locations where
    that cannot be known yet. Must run before any job is started. Safe to repeat."""
    for location in filter(holds_caches, _locations()):
        # A volume is flushed before its pod ends.
        if location.project_id is not None:
            continue
        ready = _ready_at(location.pk)
        try:
            _fail_interrupted(store_of(location), ready)
        except Blocked as blocked:
            for cache in ready:
                _fail(cache, blocked.code, blocked.detail)


class VerifiedCaches(NamedTuple):
    """Result of `verify_caches`. `failed`: ready caches with a damaged file; `unread`: directories of caches that could
    not be used."""

    failed: list[Cache]
    unread: list[CacheLocation]


def verify_caches(digests: Collection[bytes]) -> VerifiedCaches:
    """Read the files of these contents in all caches in directories. Mark caches as failed in which one is damaged.
    The next fill repairs them; running jobs keep their mounts. Fills that may have ended but for their
    row are repeated. Safe to repeat."""
    found = VerifiedCaches([], [])
    locations = CacheLocation.objects.filter(project=None).select_related("cluster")
    for location in filter(holds_caches, locations):
        caches = location.caches.filter(state__in=(Cache.READY, Cache.FILLING))
        if not caches.exists():
            continue
        try:
            damaged = store_of(location).find_damaged(digests)
        except Blocked:
            # It must not keep the other locations from being checked.
            found.unread.append(location)
            continue
        caches = caches.filter(version__in=map(UUID, damaged))
        words = {"reason": CONTENT_DAMAGED, "message": DAMAGED}
        # Fills first: one that ends in between is then found among the ready ones.
        caches.filter(state=Cache.FILLING).update(**words)
        for cache in caches.filter(state=Cache.READY).select_related("version__dataset", "location"):
            _fail(cache, CONTENT_DAMAGED, DAMAGED)
            found.failed.append(cache)
    return found


def aged_caches(location: CacheLocation) -> list[Aged]:
    """Return those caches of a location that use space, the ready and the failed ones, with what decides whether they
    are removed."""
    wanted = wanted_versions(location)
    rows = Cache.objects.filter(location=location, state__in=(Cache.READY, Cache.FAILED))
    return [
        Aged(
            str(cache.pk),
            cache.used_at,
            cache.charged_bytes,
            cache.version_id in wanted,
            cache.is_pinned,
            cache.is_kept,
        )
        for cache in rows
    ]


def _end_jobs_without_data() -> None:
    for use in _uses_without_data():
        message = f"{use}: {describe(DATASET_GONE)}"
        details = {"dataset": str(use)}
        send([(use.job, Target(lifecycle.FAILED, DATASET_GONE, message, details))])


@prepared
def _uses_without_data() -> QuerySet[DatasetUse]:
    return without_their_data().select_related("job__project")


def _create_defaults() -> None:
    """Create the default location of each cluster that can have caches and has none."""
    # Before the first cache is filled, so that an admin can limit the location first.
    for cluster in _clusters_without_default():
        if not cache_refusal(cluster):
            location_for(cluster)


@prepared
def _clusters_without_default() -> QuerySet[Cluster]:
    defaults = CacheLocation.objects.filter(cluster=OuterRef("pk"), project=None, is_default=True)
    return Cluster.objects.filter(~Exists(defaults), detached_at=None)


def _retry_failed(location: CacheLocation, now: datetime) -> None:
    wanted = needed_versions(location)
    failed = Cache.objects.filter(location=location, state=Cache.FAILED, changed_at__lt=now - RETRY)
    for cache in failed.filter(version__in=wanted):
        with transaction.atomic():
            refill(cache)
            wake()


def _age_out(location: CacheLocation, now: datetime) -> None:
    keys = too_old(aged_caches(location), now, location.unused_days)
    if not keys:
        return
    with transaction.atomic():
        announce(*[cache_event("cache.evicting", cache, SYSTEM) for cache in evict(keys)])


def _compare_with_disk(location: CacheLocation) -> bool:
    """Fail the ready caches whose files are not at the location, and remove unknown trees. Return whether its directory
    could be used."""
    # Query the rows before the disk: the files of a fill that ends in between are then on the disk.
    ready = _ready_at(location.pk)
    if location.project_id is not None:
        # A volume is flushed before its pod ends.
        found = reported_keys(location)
    else:
        try:
            store = store_of(location)
            _fail_interrupted(store, ready)
            found = store.keys()
        except Blocked as blocked:
            # The files may be back with the disk; until then no job may be started to read them.
            for cache in ready if blocked.code == NOT_MOUNTED else ():
                _fail(cache, NOT_MOUNTED, blocked.detail)
            return False
    for cache in ready:
        if key_of(cache.version_id) not in found:
            _note_lost(cache)
    _remove_unknown(location, found)
    return True


def _bring_back(location: CacheLocation) -> None:
    """Fill the caches again that failed because the location's disk was not mounted: their files are there again."""
    failed = Cache.objects.filter(location=location, state=Cache.FAILED, reason=NOT_MOUNTED)
    for cache in failed.select_related("version__dataset", "location"):
        with transaction.atomic():
            refill(cache)
            wake()


def _fail_interrupted(store: CacheStore, ready: Iterable[Cache]) -> None:
    """Fail those of the `ready` caches of a directory whose flush was interrupted. Raises Blocked if the disk does not
    answer."""
    keys = store.interrupted()
    # First, because their files must not be read even if the disk cannot be written.
    for cache in ready:
        if key_of(cache.version_id) in keys:
            _fail(cache, NOT_FLUSHED, INTERRUPTED)
    # Otherwise the next fill does it.
    with suppress(Blocked):
        store.distrust_interrupted()


@prepared
def _ready_at(location: int) -> QuerySet[Cache]:
    return Cache.objects.filter(location=location, state=Cache.READY).select_related("version__dataset")


def _note_lost(cache: Cache) -> None:
    """Mark a cache as failed because its files are missing, as after a disk failure; it is filled again when a
    job needs it."""
    _fail(cache, "files_gone", "Its files have disappeared from the location.")


def _fail(cache: Cache, reason: str, message: str) -> None:
    # With `changed_at`, so that a cache that was filled again meanwhile does not fail.
    rows = Cache.objects.filter(pk=cache.pk, state=Cache.READY, changed_at=cache.changed_at)
    with transaction.atomic():
        if rows.update(state=Cache.FAILED, reason=reason, message=message):
            announce(cache_event("cache.failed", cache, SYSTEM))


def _remove_unknown(location: CacheLocation, found: set[str]) -> None:
    """Queue an eviction for each key in `found` (directories at the location) that has no cache row: its dataset
    or project was deleted. Safe to repeat."""
    if not found:
        return
    known = {key_of(version) for version in location.caches.values_list("version_id", flat=True)}
    for key in sorted(found - known):
        subject = f"{location.pk}/{key}"
        with transaction.atomic():
            if Command.objects.about(TREE, subject).of_kinds([EVICT_CACHE]).unfinished().exists():
                continue
            payload = {"location": location.pk, "key": key}
            Command.objects.create(kind=EVICT_CACHE, subject_kind=TREE, subject_id=subject, payload=payload)
            wake()
