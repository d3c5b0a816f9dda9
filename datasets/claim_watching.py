"""Detect PersistentVolumeClaims that were deleted or lost in a cluster, by the watch of its engine.

A watch may be behind the cluster, so a command checks the claim in the cluster before anything is recorded.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Protocol, cast

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kinds import engine_kind
from controlplane.loop.engine_pool import attached_clusters, engine_for
from controlplane.loop.wake import wake
from controlplane.models import Cluster, Command
from datasets.actions.cache_locations import LOCATION
from datasets.actions.volumes import CHECK
from datasets.command_handlers.caches import CHECK_LOCATION
from datasets.models import CacheLocation, Volume
from datasets.models.volumes import FAILED, READY
from datasets.queries.volumes import VOLUME
from datasets.storage.claims import CLAIM_TROUBLES, cache_claim_name, claim_name

# Shortest interval between two checks of a claim while the watch says the same, because each check asks the cluster.
CHECKED_EVERY = timedelta(seconds=60)


class WatchingEngine(Protocol):
    """The additional method of engines whose kind has `claims_volumes`."""

    def claim_trouble(self, project: str, claim: str) -> str | None:
        """Return the problem of a claim as the watch last saw it, a code of storage.claims: "" for none, None while
        unknown. Returns at once."""


def has_claims(_: datetime | None = None) -> bool:
    """Return whether a cluster has volumes that are claims. One query."""
    return any(engine_kind(cluster.engine).claims_volumes for cluster in attached_clusters())


def check_claims(_: datetime | None = None) -> None:
    """Queue a check of every volume and cache location whose claim differs from its row. Safe to repeat."""
    for cluster in attached_clusters():
        if engine_kind(cluster.engine).claims_volumes:
            for kind, subject_kind, subject, seen in _to_check(cluster):
                _order_check(kind, subject_kind, subject, seen)


def _to_check(cluster: Cluster) -> Iterator[tuple[str, str, str, str]]:
    """Yield (command kind, subject kind, subject, trouble) for each claim that has a problem according to the watch
    or to its row. `trouble`: the watch's code of storage.claims, "" for none."""
    known = Q(state=READY) | Q(state=FAILED, reason__in=CLAIM_TROUBLES)
    volumes = Volume.objects.filter(known, project__cluster=cluster).order_by("pk")
    locations = CacheLocation.objects.filter(cluster=cluster, project__cluster=cluster).exclude(kept_keys=[])
    wanted = [
        (CHECK, VOLUME, str(key), project, claim_name(str(key)), reason)
        for key, project, reason in volumes.values_list("pk", "project__name", "reason")
    ]
    wanted += [
        (CHECK_LOCATION, LOCATION, str(key), project, cache_claim_name(parent), "")
        for key, project, parent in locations.values_list("pk", "project__name", "parent_id")
    ]
    if not wanted:
        return
    try:
        engine = cast(WatchingEngine, engine_for(cluster))
    except (EngineRefused, EngineUnreachable):
        # A warning of the cluster already reports this.
        return
    for kind, subject_kind, subject, project, claim, reason in wanted:
        trouble = engine.claim_trouble(project, claim)
        # The watch does not see a claim that was made again without its label, so one in trouble is asked about anyway.
        if trouble is not None and (reason or trouble):
            yield kind, subject_kind, subject, trouble


def _order_check(kind: str, subject_kind: str, subject: str, seen: str) -> None:
    commands = Command.objects.of_kinds([kind]).about(subject_kind, subject)
    recent = commands.filter(payload={"seen": seen}, created_at__gt=timezone.now() - CHECKED_EVERY)
    with transaction.atomic():
        if commands.unfinished().exists() or recent.exists():
            return
        commands.delete()
        Command.objects.create(
            kind=kind, subject_kind=subject_kind, subject_id=subject, payload={"seen": seen}
        )
        wake()
