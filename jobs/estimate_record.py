"""Record start estimates and count how many were right."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Count, F, OuterRef, Q, Subquery
from django.utils import timezone

from controlplane.scheduling.estimates import StartRange
from jobs.lifecycle import QUEUED
from jobs.models import Attempt, Job, StartEstimate


class EstimateCounts(NamedTuple):
    """Counts of start estimates by result. `inside`: the job started within the estimated range; `early`:
    before it; `late`: after it, or the range is over and the job still waits."""

    inside: int
    early: int
    late: int

    @property
    def share(self) -> float | None:
        """Return the share of estimates that were right, 0 to 1; None if there are none."""
        return self.inside / sum(self) if any(self) else None


def record_estimate(job: Job, found: StartRange | None) -> None:
    """Store a job's estimate if it is the first of the present wait. Stores nothing if `found` is None or has no
    end."""
    if found is None or found.latest is None:
        return
    shown = StartEstimate(
        job=job, attempt=job.attempt, earliest=_at(found.earliest), latest=_at(found.latest)
    )
    # The job may have been deleted since it was read.
    with suppress(IntegrityError), transaction.atomic():
        # Only the first estimate counts: later ones are easier.
        StartEstimate.objects.bulk_create([shown], ignore_conflicts=True)


def estimate_counts(since: datetime) -> EstimateCounts:
    """Return the numbers of estimates stored since `since`, by their result (see EstimateCounts). Leaves out
    those without a result yet."""
    starts = Attempt.objects.filter(job=OuterRef("job"), number=OuterRef("attempt") + 1)
    shown = StartEstimate.objects.filter(shown_at__gte=since)
    is_overdue = Q(started=None, latest__lt=timezone.now(), job__state=QUEUED)
    found = shown.annotate(started=Subquery(starts.values("created_at")[:1])).aggregate(
        inside=Count("pk", filter=Q(started__gte=F("earliest"), started__lte=F("latest"))),
        early=Count("pk", filter=Q(started__lt=F("earliest"))),
        late=Count("pk", filter=Q(started__gt=F("latest")) | is_overdue),
    )
    return EstimateCounts(**found)


def _at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
