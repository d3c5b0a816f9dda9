"""Find the events of jobs for which snapshots are taken, and the jobs whose last events have none yet."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Exists, Max, OuterRef, Q, QuerySet
from django.utils import timezone

from controlplane.models import Event
from controlplane.scheduling.reasons import PREEMPTED
from datasets.models import Snapshot, VolumeUse
from jobs.lifecycle import FINAL_STATES, QUEUED, SUCCEEDED, SUSPENDED
from jobs.models import Attempt

# Progress metrics by preference, and whether a higher value is better.
METRICS = (("accuracy", True), ("loss", False))
SUCCESS, PREEMPT, BEST_METRIC, EPOCH = "success", "preempt", "best_metric", "epoch"
# How long snapshots for a job that has ended are expected to be written; longer than any pass of the loop, which looks
# for events every two seconds. A limit, so that a failure of that step keeps no job from a volume.
WRITTEN_WITHIN = timedelta(seconds=30)
EVER = datetime(1970, 1, 1, tzinfo=UTC)


def due_jobs(volumes: Iterable[Any], within: timedelta | None = WRITTEN_WITHIN) -> dict[Any, tuple[Any, str]]:
    """Return the jobs (id and name) by volume that ended or were preempted `within` this time (None: ever), and for
    whose events the loop may still write snapshots. At most three queries."""
    since = timezone.now() - within if within else EVER
    is_over = Q(job__state__in=FINAL_STATES, job__finished_at__gte=since)
    # A suspended one may have been preempted before.
    is_off = Q(job__state__in=(QUEUED, SUSPENDED), job__attempt__gt=0)
    watched = VolumeUse.objects.filter(is_over | is_off, volume__in=volumes, is_watched=True)
    uses = list(watched.select_related("job"))
    unwritten = _unwritten_preemptions([use for use in uses if PREEMPT in use.snapshot_on], since)
    return {
        use.volume_id: (use.job_id, use.job.name)
        for use in uses
        if (use.volume_id, use.job_id) in unwritten or (use.job.is_final and _may_end_with_event(use))
    }


def events_of(
    use: VolumeUse, preempted: Sequence[int], best: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    """Yield (event, mark) for each event of the job so far that requires a snapshot, in this order of importance;
    the mark, such as `epoch:1:7`, identifies one occurrence. `preempted`: the job's preempted attempts; `best`: its new
    best metric, None if there is none."""
    job, wanted = use.job, set(use.snapshot_on)
    if SUCCESS in wanted and job.state == SUCCEEDED:
        yield SUCCESS, SUCCESS
    if PREEMPT in wanted:
        for attempt in preempted:
            yield PREEMPT, _preempt_mark(attempt)
    if best:
        yield BEST_METRIC, f"best:{best['value']:.9g}"
    epoch = job.progress.get("epoch")
    if EPOCH in wanted and isinstance(epoch, int):
        yield EPOCH, f"epoch:{job.attempt}:{epoch}"


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


def preempted_attempts() -> Mapping[Any, Sequence[int]]:
    """Return, by job, the numbers of the attempts that were preempted and whose pods are gone. Only jobs whose
    volumes take snapshots on events."""
    found: defaultdict[Any, list[int]] = defaultdict(list)
    ended = _preempted(Attempt.objects.filter(job__volume_uses__is_watched=True))
    for job, number in ended.order_by("number").values_list("job_id", "number").distinct():
        found[job].append(number)
    return found


def known_marks() -> set[tuple[Any, Any, str]]:
    """Return (volume, job, mark) of the watched jobs' events that have a snapshot."""
    return _marks(Snapshot.objects.filter(job__volume_uses__is_watched=True))


def later_writers(snapshot: Snapshot) -> list[str]:
    """Return the names of up to ten jobs that started after the event of the snapshot and may write to its volume."""
    marks = snapshot.mark.split()
    ended = {int(mark.partition(":")[2]) for mark in marks if mark.startswith(f"{PREEMPT}:")}
    if SUCCESS in marks:
        ended.add(snapshot.attempt)
    # The snapshot may have been requested some time after the end of an attempt, as by a loop that was away.
    attempts = Attempt.objects.filter(job=snapshot.job_id, number__in=ended)
    since = attempts.aggregate(last=Max("ended_at"))["last"] or snapshot.created_at
    mounts = {"job__volume_uses__volume": snapshot.volume_id, "job__volume_uses__is_read_only": False}
    begun = Attempt.objects.filter(created_at__gte=min(since, snapshot.created_at), **mounts)
    others = begun.exclude(job=snapshot.job_id, number__lte=max(ended, default=snapshot.attempt))
    return list(others.order_by("job__name").values_list("job__name", flat=True).distinct()[:10])


def _may_end_with_event(use: VolumeUse) -> bool:
    """Return whether a job that has ended may have a last event without a snapshot, other than a preemption."""
    if SUCCESS in use.snapshot_on and use.job.state == SUCCEEDED:
        return True
    # Telemetry may read the end of the log, which has the last of these, only after the job's end.
    return not {EPOCH, BEST_METRIC}.isdisjoint(use.snapshot_on)


def _unwritten_preemptions(uses: Sequence[VolumeUse], since: datetime) -> set[tuple[Any, Any]]:
    """Return (volume, job) of those uses whose job was preempted after `since` without a snapshot of that."""
    if not uses:
        return set()
    jobs = {use.job_id for use in uses}
    ended = _preempted(Attempt.objects.filter(job__in=jobs, ended_at__gte=since))
    preempted = set(ended.values_list("job_id", "number"))
    if not preempted:
        return set()
    known = _marks(Snapshot.objects.filter(job__in=jobs))
    return {
        (use.volume_id, use.job_id)
        for use in uses
        for job, number in preempted
        for mark in (_preempt_mark(number),)
        if job == use.job_id and mark not in use.written and (use.volume_id, job, mark) not in known
    }


def _preempted(attempts: QuerySet[Attempt]) -> QuerySet[Attempt]:
    """Return those of the attempts that were preempted and whose pods are gone."""
    # A program that exits with 0 on SIGTERM has succeeded, and its attempt has no other reason.
    stops = Event.objects.filter(job_id=OuterRef("job_id"), kind="job.stopping", reason=PREEMPTED)
    ended_well = Q(outcome=SUCCEEDED) & Exists(stops.filter(at__gte=OuterRef("created_at")))
    return attempts.filter(Q(reason=PREEMPTED) | ended_well, ended_at__isnull=False)


def _marks(snapshots: QuerySet[Snapshot]) -> set[tuple[Any, Any, str]]:
    found = snapshots.exclude(mark="").values_list("volume_id", "job_id", "mark")
    return {(volume, job, mark) for volume, job, marks in found for mark in marks.split()}


def _preempt_mark(attempt: int) -> str:
    return f"{PREEMPT}:{attempt}"
