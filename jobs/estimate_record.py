"""Whether jobs started inside the range in which they were shown to start."""

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
    """Jobs that started inside the range that was shown, before it, and after it or not yet although it is over."""

    inside: int
    early: int
    late: int

    @property
    def share(self) -> float | None:
        """Return the part that started inside, 0 to 1; None without any."""
        return self.inside / sum(self) if any(self) else None


def record_estimate(job: Job, found: StartRange | None) -> None:
    """Store the first range that is shown of a wait; later ones are easier and do not count, nor do open ones."""
    if found is None or found.latest is None:
        return
    shown = StartEstimate(
        job=job, attempt=job.attempt, earliest=_at(found.earliest), latest=_at(found.latest)
    )
    # The job may be deleted meanwhile.
    with suppress(IntegrityError), transaction.atomic():
        StartEstimate.objects.bulk_create([shown], ignore_conflicts=True)


def estimate_counts(since: datetime) -> EstimateCounts:
    """Count the ranges that were shown since then and can be judged by now."""
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
