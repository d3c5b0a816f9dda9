"""Command handlers that fill and remove caches."""

import time
from functools import partial

from django.db import transaction
from django.db.models import F, QuerySet, Sum
from django.db.models.functions import Least
from django.utils import timezone

from controlplane.access import SYSTEM, reread
from controlplane.actions.events import announce
from controlplane.commands.errors import Cancelled, CommandRefused
from controlplane.commands.registry import CommandHandler, register
from controlplane.commands.run import CommandRun
from controlplane.fields import LONGEST_MESSAGE
from controlplane.models import Cluster, Command, Event
from controlplane.notation import decimal_bytes
from datasets.actions.cache_locations import REMOVE_VOLUME
from datasets.actions.cache_upkeep import CONTENT_DAMAGED, aged_caches
from datasets.actions.caches import CACHE, EVICT_CACHE, FILL_CACHE, cache_event, evict, refill
from datasets.aging import to_make_room
from datasets.cache_shares import Charges, charges
from datasets.cache_volumes import WAITED_FOR, Caches, caches_of, claimed_volume, volume_of
from datasets.ingest.worker import WorkerFailed
from datasets.long_work import DATA, budget_of, refusals
from datasets.manifests import Manifest
from datasets.models import Cache, CacheLocation
from datasets.queries.caches import free_bytes, free_on_disk, key_of, needed_versions
from datasets.queries.lake import lake_of, manifest_named, mounted
from datasets.storage.base import Blocked, ContentDamaged, ContentMissing
from datasets.storage.claims import CLAIM_DELETED, CLAIM_LOST, CacheClaim, cache_claim_name
from datasets.storage.tree_fill import Progress

# Codes retried without limit: other commands free space, and an unreachable S3 server recovers.
MAKING_ROOM = "making_room"
# Shortest interval between two progress reports of a fill, because each is a write to the database.
REPORT_SECONDS = 1.0
LONGEST_REASON = 40
# Fields of a cache that waits for nothing and has not failed.
NO_REASON = {"reason": "", "message": ""}
CHECK_LOCATION = "datasets.check_cache_location"


@register
class FillCache(CommandHandler):
    """Copy a version to a cache location. A repeat continues with the contents that are missing."""

    kind, queue = FILL_CACHE, DATA

    def run(self, run: CommandRun) -> Charges[str] | None:
        rows = Cache.objects.select_related(
            "version__dataset__project", "location__cluster", "location__project", "location__parent"
        )
        cache = rows.filter(pk=run.command.subject_id).first()
        if cache is None:
            return None
        if not _begin(cache):
            # An earlier try that made it ready may have been killed before its charges were known.
            return _charges_at(cache.location, run)
        project, version = cache.version.dataset.project, cache.version
        try:
            manifest = manifest_named(project, version.manifest)
            store = caches_of(cache.location, run)
            _make_room(cache, store, manifest)
            report = _Reporter(run, cache)
            on_usable = partial(_make_ready, cache, report)
            with mounted(project):
                store.fill(key_of(version.pk), lake_of(project), manifest, budget_of(run), report, on_usable)
            # After the cache is ready: the manifests of all caches here are read for it.
            return _charges_at(cache.location, run)
        except (ContentMissing, ContentDamaged) as error:
            detail = f"{error} yard dataset verify {version} says what is lost and how to store it again."
            raise CommandRefused("content_missing", detail) from error
        except Blocked as blocked:
            is_passing = blocked.code in WAITED_FOR
            raise CommandRefused(blocked.code, blocked.detail, is_passing=is_passing) from blocked
        except WorkerFailed as error:
            raise CommandRefused("process_ended", str(error), is_passing=True) from error

    def on_done(self, command: Command, result: Charges[str] | None) -> None:
        cache = _cache_of(command)
        if cache is not None and result is not None:
            _write_charges(cache.location, result)
        # The fill may have looked for damage before that was found.
        rows = Cache.objects.filter(pk=command.subject_id, state=Cache.FILLING, reason=CONTENT_DAMAGED)
        if rows.update(state=Cache.FAILED) and (cache := _cache_of(command)):
            refill(cache)

    def may_retry(self, command: Command, refusal: CommandRefused) -> bool:
        return refusal.code in (MAKING_ROOM, *WAITED_FOR) or super().may_retry(command, refusal)

    def on_retry(self, command: Command, refusal: CommandRefused) -> None:
        cache = _cache_of(command)
        if cache is None:
            return
        words = {"reason": refusal.code[:LONGEST_REASON], "message": refusal.message[:LONGEST_MESSAGE]}
        # A ready one could not be flushed.
        rows = Cache.objects.filter(pk=cache.pk, state__in=(Cache.FILLING, Cache.READY)).exclude(**words)
        with transaction.atomic():
            if rows.update(state=Cache.FILLING, **words):
                _happened("cache.waits", cache)

    def on_failed(self, command: Command, refusal: CommandRefused) -> None:
        cache = _cache_of(command)
        if cache is None:
            return
        words = {"reason": refusal.code, "message": refusal.message[:LONGEST_MESSAGE]}
        rows = Cache.objects.filter(pk=cache.pk, state__in=(Cache.QUEUED, Cache.FILLING, Cache.READY))
        if rows.update(state=Cache.FAILED, changed_at=timezone.now(), **words):
            _happened("cache.failed", cache)


@register
class EvictCache(CommandHandler):
    """Remove a version's files from a location; the cache is filled again if a new job needs it."""

    kind, queue, is_cleanup = EVICT_CACHE, DATA, True

    def run(self, run: CommandRun) -> Charges[str] | None:
        rows = CacheLocation.objects.select_related("cluster", "project", "parent")
        location = rows.filter(pk=run.command.payload["location"]).first()
        if location is None:
            return None
        key = run.command.payload["key"]
        # A repeated command, or one for a tree without a cache, may run after the version was requested
        # again.
        live = Cache.objects.filter(version=key, location=location).exclude(state=Cache.EVICTING)
        with refusals():
            store = caches_of(location, run)
            store.remove(key, live.exists)
            return charges(store.manifests())

    def on_done(self, command: Command, result: Charges[str] | None) -> None:
        location = CacheLocation.objects.filter(pk=command.payload["location"]).first()
        if location is None or result is None:
            return
        _write_charges(location, result)
        cache = Cache.objects.filter(version=command.payload["key"], location=location, state=Cache.EVICTING)
        found = cache.select_related("version__dataset", "location__cluster").first()
        if found is None:
            return
        _happened("cache.evicted", found)
        if found.version_id in needed_versions(location):
            refill(found)
        else:
            found.delete()


@register
class RemoveVolume(CommandHandler):
    """Delete the claim of a project's caches at a location that was deleted."""

    kind, queue, is_cleanup = REMOVE_VOLUME, DATA, True

    def run(self, run: CommandRun) -> None:
        given = run.command.payload
        cluster = Cluster.objects.filter(pk=given["cluster"], detached_at=None).first()
        if cluster is not None:
            with refusals():
                claimed_volume(cluster, given["project"], CacheClaim(given["claim"])).delete()


@register
class CheckLocation(CommandHandler):
    """Check a project's cache claim in the cluster after the engine's watch reported it deleted or lost."""

    kind, queue, max_tries = CHECK_LOCATION, DATA, 1

    def run(self, run: CommandRun) -> list[str]:
        """Return the keys of the trees that were on the location's claim if the claim was deleted or lost, else
        []. A claim that is still being deleted counts as present."""
        rows = CacheLocation.objects.select_related("cluster", "project", "parent")
        location = rows.filter(pk=run.command.subject_id, project__cluster=F("cluster")).first()
        if location is None:
            return []
        with refusals():
            # While a claim is being deleted, jobs still read from it.
            is_lost = volume_of(location).trouble() in (CLAIM_DELETED, CLAIM_LOST)
        return list(location.kept_keys) if is_lost else []

    def on_done(self, command: Command, result: list[str]) -> None:
        location = CacheLocation.objects.filter(pk=command.subject_id).first()
        # A fill makes the claim again, and writes what it holds then.
        if result and location is not None and not _fills(location).exists():
            # Caches without their tree are failed and brought again by the upkeep of caches.
            rows = CacheLocation.objects.filter(pk=location.pk, kept_keys=result)
            if rows.update(kept_keys=[], used_bytes=0):
                Event.objects.append([_lost(location, len(result))])


def _lost(location: CacheLocation, count: int) -> Event:
    claim = cache_claim_name(location.parent_id)
    message = f"The cluster lost the volume of {location.name} ({claim}), with {count} caches."
    data = {"location": location.name, "claim": claim}
    return Event(
        kind="cache_location.lost",
        project_id=location.project_id,
        actor=SYSTEM.name,
        message=message,
        data=data,
    )


def _fills(location: CacheLocation) -> QuerySet[Command]:
    keys = [str(key) for key in location.caches.values_list("pk", flat=True)]
    fills = Command.objects.unfinished().of_kinds([FILL_CACHE])
    return fills.filter(subject_kind=CACHE, subject_id__in=keys)


class _Reporter:
    """Writes the progress of a fill to the row and the live topic, at most once a second."""

    def __init__(self, run: CommandRun, cache: Cache) -> None:
        self._run, self._cache = run, cache
        self._began = self._wrote = time.monotonic()
        self.bytes_moved, self.sharing = cache.bytes_moved, cache.sharing

    def __call__(self, progress: Progress) -> None:
        self.bytes_moved, before = progress.bytes_moved, self.sharing
        self.sharing = progress.sharing or before
        if self.sharing != before:
            # Not throttled: a fill that repeats a killed one finds the contents there, and not how they came.
            Cache.objects.filter(pk=self._cache.pk).update(sharing=self.sharing)
        now = time.monotonic()
        if now - self._wrote < REPORT_SECONDS:
            return
        self._wrote = now
        self._run.report(progress.bytes_done, self._cache.version.size_bytes)
        rows = Cache.objects.filter(pk=self._cache.pk, state=Cache.FILLING)
        updated = rows.update(
            files_done=progress.files,
            bytes_done=progress.bytes_done,
            bytes_moved=progress.bytes_moved,
            sharing=self.sharing,
            # Not by `bytes_done`: what an earlier try or another version brought is found within seconds.
            bytes_per_second=int((progress.bytes_moved or progress.bytes_done) / (now - self._began)),
            **NO_REASON,
        )
        if not updated:
            # The cache was removed, or its dataset deleted.
            raise Cancelled
        _happened("cache.progressed", self._cache)


def _begin(cache: Cache) -> bool:
    rows = Cache.objects.filter(pk=cache.pk, state__in=(Cache.QUEUED, Cache.FILLING))
    # Of damage that is found from now on.
    rows.filter(reason=CONTENT_DAMAGED).update(**NO_REASON)
    # Release what an earlier try reserved; otherwise two fills could block each other forever.
    if not rows.update(state=Cache.FILLING, reserved_bytes=0, changed_at=timezone.now()):
        return False
    _happened("cache.filling", cache)
    return True


def _make_ready(cache: Cache, report: _Reporter) -> None:
    """Let jobs use a filled cache, unless damage was found meanwhile. What it copied is charged to it until the charges
    of all caches are known."""
    version, now, moved = cache.version, timezone.now(), report.bytes_moved
    # The report of the last fill is throttled; a fill shorter than that interval would show no bytes.
    done = {
        "files_done": version.files,
        "bytes_done": version.size_bytes,
        "bytes_moved": moved,
        "charged_bytes": moved,
        "sharing": report.sharing,
    }
    rows = Cache.objects.filter(pk=cache.pk, state=Cache.FILLING).exclude(reason=CONTENT_DAMAGED)
    with transaction.atomic():
        if rows.update(state=Cache.READY, changed_at=now, ready_at=now, used_at=now, **NO_REASON, **done):
            CacheLocation.objects.filter(pk=cache.location_id).update(used_bytes=F("used_bytes") + moved)
            _happened("cache.ready", cache)


def _make_room(cache: Cache, store: Caches, manifest: Manifest) -> None:
    """Reserve space at the location for a fill. If it does not fit, start to remove old caches and raise
    CommandRefused to be retried; if it can never fit, raise CommandRefused for good."""
    lacking = store.lacking_bytes(manifest)
    location = CacheLocation.objects.select_related("cluster").get(pk=cache.location_id)
    disk = free_on_disk(location)
    with transaction.atomic():
        # The lock serialises fills: the second sees what the first reserved or used.
        reread(location, lock=True)
        filling = location.caches.filter(state=Cache.FILLING).exclude(pk=cache.pk)
        written = Sum(Least("bytes_moved", "reserved_bytes"), default=0)
        sums = filling.aggregate(reserved=Sum("reserved_bytes", default=0), written=written)
        reserved, free = sums["reserved"], free_bytes(location, disk, **sums)
        if lacking <= free:
            Cache.objects.filter(pk=cache.pk).update(reserved_bytes=lacking, bytes_moved=0)
            return
    short = lacking - free
    others = [one for one in aged_caches(location) if one.key != str(cache.pk)]
    keys = to_make_room(others, short)
    is_waiting = reserved > 0 or location.caches.filter(state=Cache.EVICTING).exists()
    if keys is None and not is_waiting:
        detail = (
            f"{location.name} has room for {decimal_bytes(max(0, free))} more, and {decimal_bytes(lacking)} are"
            " needed. Pinned caches and those that jobs use stay: unpin one, or give it more room."
        )
        raise CommandRefused("no_room", detail)
    with transaction.atomic():
        announce(*[cache_event("cache.evicting", one, SYSTEM) for one in evict(keys or ())])
    raise CommandRefused(
        MAKING_ROOM, "Room is being made, or another cache is being filled.", is_passing=True
    )


def _charges_at(location: CacheLocation, run: CommandRun) -> Charges[str]:
    with refusals():
        return charges(caches_of(location, run).manifests())


def _write_charges(location: CacheLocation, found: Charges[str]) -> None:
    CacheLocation.objects.filter(pk=location.pk).update(used_bytes=found.used_bytes)
    for cache in Cache.objects.filter(location=location).order_by("pk"):
        charged = found.by_cache.get(key_of(cache.version_id), 0)
        Cache.objects.filter(pk=cache.pk).exclude(charged_bytes=charged).update(charged_bytes=charged)


def _cache_of(command: Command) -> Cache | None:
    rows = Cache.objects.select_related("version__dataset", "location")
    return rows.filter(pk=command.subject_id).first()


def _happened(kind: str, cache: Cache) -> None:
    announce(cache_event(kind, cache, SYSTEM))
