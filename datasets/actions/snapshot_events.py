"""Take snapshots on job events (`snapshot_on`) and on schedules, and delete those beyond a volume's retention
rules.

All functions are scans that may be repeated at any time. Each event has a mark; events that one scan finds share a
snapshot, which has the marks of all, and the database allows one snapshot per such text. Old snapshots are found from
the rows.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from controlplane.access import SYSTEM, NotVisible
from controlplane.actions.errors import Conflict
from controlplane.models import Event
from controlplane.models.prepared import prepared
from controlplane.scheduling.reasons import PREEMPTED
from datasets.actions.snapshots import REQUEST, delete_snapshot, take_snapshot
from datasets.models import Snapshot, Volume, VolumeUse
from datasets.models.volumes import FAILED, LONGEST_MARK, PENDING, READY
from jobs.lifecycle import FINAL_STATES, SUCCEEDED
from jobs.models import Attempt

logger = logging.getLogger(__name__)

# Progress metrics by preference, and whether a higher value is better.
METRICS = (("accuracy", True), ("loss", False))
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
    preempted, known = _preempted(), _known_marks()
    for use in begun:
        best = better(use.job.progress, use.best) if "best_metric" in use.snapshot_on else None
        found = _events(use, preempted[use.job_id], best)
        for events in _together([one for one in found if (use.volume_id, use.job_id, one[1]) not in known]):
            _take(use, events)
        # Only after its snapshot was written: once it is stored, the value is not better any more.
        if best:
            VolumeUse.objects.filter(pk=use.pk).update(best=best)
        # Only after its snapshots were written, because later runs skip uses that are not watched.
        if use.job.is_final:
            VolumeUse.objects.filter(pk=use.pk).update(is_watched=False)


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


def _events(
    use: VolumeUse, preempted: Sequence[int], best: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    """Yield (event, mark) for each event of the job so far that requires a snapshot, in this order of importance;
    the mark, such as `epoch:1:7`, identifies one occurrence. `preempted`: the job's preempted attempts; `best`: its new
    best metric, None if there is none."""
    job, wanted = use.job, set(use.snapshot_on)
    if "success" in wanted and job.state == SUCCEEDED:
        yield "success", "success"
    if "preempt" in wanted:
        for attempt in preempted:
            yield "preempt", f"preempt:{attempt}"
    if best:
        yield "best_metric", f"best:{best['value']:.9g}"
    epoch = job.progress.get("epoch")
    if "epoch" in wanted and isinstance(epoch, int):
        yield "epoch", f"epoch:{job.attempt}:{epoch}"


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


def better(progress: Mapping[str, Any], best: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return {"name", "value"} of the job's metric if `progress` improves on `best`, the last such result ({} for
    none), else None. The first metric that a job reports is compared throughout."""
    for name, is_more in METRICS:
        value = progress.get(name)
        if best.get("name", name) != name or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if not best or (value > best["value"] if is_more else value < best["value"]):
            return {"name": name, "value": value}
        return None
    return None


def _preempted() -> Mapping[Any, Sequence[int]]:
    """Return, by job, the numbers of the attempts that were preempted and whose pods are gone. Only jobs whose
    volumes take snapshots on events."""
    # A program that exits with 0 on SIGTERM has succeeded, and its attempt has no other reason.
    stops = Event.objects.filter(job_id=OuterRef("job_id"), kind="job.stopping", reason=PREEMPTED)
    ended_well = Q(outcome=SUCCEEDED) & Exists(stops.filter(at__gte=OuterRef("created_at")))
    ended = Attempt.objects.filter(job__volume_uses__is_watched=True, ended_at__isnull=False)
    rows = ended.filter(Q(reason=PREEMPTED) | ended_well)
    found: defaultdict[Any, list[int]] = defaultdict(list)
    for job, number in rows.order_by("number").values_list("job_id", "number").distinct():
        found[job].append(number)
    return found


def _known_marks() -> set[tuple[Any, Any, str]]:
    """Return (volume, job, mark) of the watched jobs' events that have a snapshot."""
    rows = Snapshot.objects.filter(job__volume_uses__is_watched=True).exclude(mark="")
    found = rows.values_list("volume_id", "job_id", "mark")
    return {(volume, job, mark) for volume, job, marks in found for mark in marks.split()}


def _take(use: VolumeUse, events: Sequence[tuple[str, str]]) -> None:
    causes = list(dict.fromkeys(cause for cause, _ in events))
    mark = " ".join(mark for _, mark in events)
    try:
        take_snapshot(use.volume, actor=SYSTEM, causes=causes, mark=mark, job=use.job)
    except IntegrityError:
        logger.info("another loop wrote the snapshot %s of %s", mark, use.volume)
    except Conflict as conflict:
        logger.warning("no snapshot of %s on %s of %s: %s", use.volume, ", ".join(causes), use.job, conflict)
