"""Snapshots that jobs asked for with `snapshot_on`, and the removal of those beyond a volume's rules.

Both are scans that may be repeated at any time: an event has a mark of its own, of which the database permits one
snapshot, and what is beyond the rules is found from the rows.
"""

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError
from django.db.models import Q
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict
from controlplane.scheduling.reasons import PREEMPTED
from datasets.actions.snapshots import REQUEST, delete_snapshot, take_snapshot
from datasets.models import Snapshot, Volume, VolumeUse
from datasets.models.volumes import FAILED, READY
from jobs.lifecycle import FINAL_STATES, SUCCEEDED
from jobs.models import Job

logger = logging.getLogger(__name__)

# Metrics of progress lines, by preference, and whether more is better.
METRICS = (("accuracy", True), ("loss", False))
# Snapshots that one run removes.
REMOVED_AT_ONCE = 50


def snapshot_on_events(_: datetime | None = None) -> None:
    """Write a snapshot for every event of a watched job that has none."""
    uses = VolumeUse.objects.filter(is_watched=True).select_related("volume", "job")
    for use in uses.filter(Q(job__attempt__gt=0) | Q(job__state__in=FINAL_STATES)).order_by("pk"):
        for cause, mark in _events(use):
            if not Snapshot.objects.filter(volume=use.volume, job=use.job, mark=mark).exists():
                _take(use, cause, mark)
        if use.job.is_final:
            VolumeUse.objects.filter(pk=use.pk).update(is_watched=False)


def remove_old_snapshots(_: datetime | None = None) -> None:
    """Delete snapshots of events beyond what the rules of their volume keep. Requested ones stay."""
    ruled = Volume.objects.filter(Q(keep_last__isnull=False) | Q(keep_days__isnull=False))
    for volume in ruled:
        for snapshot in _beyond(volume)[:REMOVED_AT_ONCE]:
            try:
                delete_snapshot(snapshot, actor=SYSTEM)
            except Conflict:
                # a volume is made of it: the next run removes it
                continue


def _beyond(volume: Volume) -> list[Snapshot]:
    rows = volume.snapshots.filter(state__in=(READY, FAILED)).exclude(cause=REQUEST).order_by("-number")
    found = list(rows)
    kept = found if volume.keep_last is None else found[: volume.keep_last]
    if volume.keep_days is not None:
        since = timezone.now() - timedelta(days=volume.keep_days)
        kept = [one for one in kept if one.created_at >= since]
    keys = {one.pk for one in kept}
    return [one for one in found if one.pk not in keys]


def _events(use: VolumeUse) -> Iterator[tuple[str, str]]:
    """Yield (event, mark) of what has happened to the job and calls for a snapshot."""
    job, wanted = use.job, set(use.snapshot_on)
    if "success" in wanted and job.state == SUCCEEDED:
        yield "success", "success"
    if "preempt" in wanted:
        for attempt in _preempted(job):
            yield "preempt", f"preempt:{attempt}"
    epoch = job.progress.get("epoch")
    if "epoch" in wanted and isinstance(epoch, int):
        yield "epoch", f"epoch:{job.attempt}:{epoch}"
    if "best_metric" in wanted and (best := better(job.progress, use.best)):
        VolumeUse.objects.filter(pk=use.pk).update(best=best)
        yield "best_metric", f"best:{best['value']:.9g}"


def better(progress: Mapping[str, Any], best: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the metric of this progress when it is better than the best so far. The first metric that a job reports is
    the one that counts from then on."""
    for name, is_more in METRICS:
        value = progress.get(name)
        if best.get("name", name) != name or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not best or (value > best["value"] if is_more else value < best["value"]):
            return {"name": name, "value": value}
        return None
    return None


def _preempted(job: Job) -> list[int]:
    """Return the numbers of the attempts that were preempted and whose pods are gone."""
    ended = job.attempts.filter(ended_at__isnull=False, reason=PREEMPTED)
    return list(ended.values_list("number", flat=True))


def _take(use: VolumeUse, cause: str, mark: str) -> None:
    try:
        take_snapshot(use.volume, actor=SYSTEM, cause=cause, mark=mark, job=use.job)
    except IntegrityError:
        logger.info("another loop wrote the snapshot %s of %s", mark, use.volume)
    except Conflict as conflict:
        logger.warning("no snapshot of %s on %s of %s: %s", use.volume, cause, use.job, conflict)
