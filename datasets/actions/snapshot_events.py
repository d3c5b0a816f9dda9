"""Take snapshots on job events (`snapshot_on`) and on schedules, and delete those beyond a volume's retention
rules.

All functions are scans that may be repeated at any time. Each event has a mark; events that one scan finds share a
snapshot, which has the marks of all, and the database allows one snapshot per such text. Old snapshots are found from
the rows.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from controlplane.access import SYSTEM, NotVisible
from controlplane.actions.errors import Conflict
from controlplane.models.prepared import prepared
from datasets.actions.snapshots import REQUEST, delete_snapshot, take_snapshot
from datasets.models import Snapshot, Volume, VolumeUse
from datasets.models.volumes import FAILED, LONGEST_MARK, PENDING, READY
from datasets.queries.due_snapshots import BEST_METRIC, better, events_of, known_marks, preempted_attempts
from jobs.lifecycle import FINAL_STATES

logger = logging.getLogger(__name__)

# Limit on the snapshots of a volume that one run removes, so that a run stays short; the next takes the rest.
REMOVED_AT_ONCE = 50
# Limit on the snapshots that one run takes by schedule, for the same reason.
TAKEN_AT_ONCE = 50
SCHEDULE = "schedule"


def snapshot_on_events(_: datetime | None = None) -> None:
    """Take a snapshot for the events of each watched job that have none yet."""
    begun = _watched_uses()
    if not begun:
        return
    preempted, known = preempted_attempts(), known_marks()
    for use in begun:
        best = better(use.job.progress, use.best) if BEST_METRIC in use.snapshot_on else None
        found = list(events_of(use, preempted[use.job_id], best))
        written = {
            mark for _, mark in found if mark in use.written or (use.volume_id, use.job_id, mark) in known
        }
        for events in _together([one for one in found if one[1] not in written]):
            if _take(use, events):
                written.update(mark for _, mark in events)
        _note(use, [mark for _, mark in found if mark in written], best)


def _note(use: VolumeUse, written: list[str], best: Mapping[str, Any] | None) -> None:
    """Write what one run found of a use. Only after its snapshots were written: a new best metric that is stored is not
    better any more, and later runs skip uses that are not watched."""
    changes: dict[str, Any] = {"best": best} if best else {}
    if written != use.written:
        changes["written"] = written
    if use.job.is_final:
        changes["is_watched"] = False
    if changes:
        VolumeUse.objects.filter(pk=use.pk).update(**changes)


@prepared
def _watched_uses() -> QuerySet[VolumeUse]:
    uses = VolumeUse.objects.filter(is_watched=True).select_related("volume", "job")
    return uses.filter(Q(job__attempt__gt=0) | Q(job__state__in=FINAL_STATES)).order_by("pk")


def snapshot_on_schedule(now: datetime) -> None:
    """Take the snapshots that are due at `now`. After a pause, one is taken, not all that were missed."""
    for volume in _due_volumes(now):
        at = now + timedelta(minutes=volume.snapshot_minutes or 0)
        rows = Volume.objects.filter(pk=volume.pk, next_snapshot_at=volume.next_snapshot_at)
        # One transaction: if the process is killed in between, the snapshot remains due.
        with transaction.atomic():
            # No row changed: another loop process has taken it.
            if rows.update(next_snapshot_at=at) == 1:
                _take_scheduled(volume)


@prepared
def _ruled_volumes() -> QuerySet[Volume]:
    return Volume.objects.filter(Q(keep_last__isnull=False) | Q(keep_days__isnull=False))


def has_due_snapshots(now: datetime) -> bool:
    """Return whether a schedule has a snapshot due at `now`. One query."""
    return bool(_due_volumes(now))


@prepared
def _due_volumes(now: datetime) -> QuerySet[Volume]:
    due = Volume.objects.filter(next_snapshot_at__lte=now, snapshot_minutes__isnull=False, state=READY)
    return due.order_by("next_snapshot_at")[:TAKEN_AT_ONCE]


def _take_scheduled(volume: Volume) -> None:
    """Take a snapshot, unless the previous one of the schedule is still pending."""
    # Slow snapshots must not accumulate.
    if volume.snapshots.filter(cause_rows__cause=SCHEDULE, state=PENDING).exists():
        logger.warning("no scheduled snapshot of %s: the last one is not taken yet", volume)
        return
    try:
        take_snapshot(volume, actor=SYSTEM, causes=[SCHEDULE])
    except (Conflict, NotVisible) as refusal:
        logger.warning("no scheduled snapshot of %s: %s", volume, refusal)


def remove_old_snapshots(_: datetime | None = None) -> None:
    """Delete snapshots of events and schedules beyond their volume's retention rules, at most REMOVED_AT_ONCE of a
    volume at a time. Snapshots that users requested stay, and so do those from which a volume is being created."""
    for volume in _ruled_volumes():
        for snapshot in _beyond(volume)[:REMOVED_AT_ONCE]:
            try:
                delete_snapshot(snapshot, actor=SYSTEM)
            except Conflict:
                # A volume is being created from it; the next run removes it.
                continue


def _beyond(volume: Volume) -> list[Snapshot]:
    rows = volume.snapshots.filter(state__in=(READY, FAILED)).exclude(cause_rows__cause=REQUEST)
    found = list(rows.order_by("-number"))
    # Failed snapshots are counted separately, so that they do not displace restorable ones.
    kept = [one for state in (READY, FAILED) for one in _last(volume, found, state)]
    if volume.keep_days is not None:
        since = timezone.now() - timedelta(days=volume.keep_days)
        kept = [one for one in kept if one.created_at >= since]
    keys = {one.pk for one in kept}
    return [one for one in found if one.pk not in keys]


def _last(volume: Volume, found: Sequence[Snapshot], state: str) -> Sequence[Snapshot]:
    return [one for one in found if one.state == state][: volume.keep_last]


def _together(events: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Yield the events in groups that share a snapshot: all together, as far as their marks fit into its column."""
    group: list[tuple[str, str]] = []
    for event in events:
        if sum(len(mark) + 1 for _, mark in (*group, event)) > LONGEST_MARK:
            yield group
            group = []
        group.append(event)
    if group:
        yield group


def _take(use: VolumeUse, events: Sequence[tuple[str, str]]) -> bool:
    """Take one snapshot for the events. Return whether they have one."""
    causes = list(dict.fromkeys(cause for cause, _ in events))
    mark = " ".join(mark for _, mark in events)
    try:
        take_snapshot(use.volume, actor=SYSTEM, causes=causes, mark=mark, job=use.job)
    except IntegrityError:
        logger.info("another loop wrote the snapshot %s of %s", mark, use.volume)
    except (Conflict, NotVisible) as refusal:
        logger.warning("no snapshot of %s on %s of %s: %s", use.volume, ", ".join(causes), use.job, refusal)
        return False
    return True
