"""Accumulate gauges every second and write one row per subject and step."""

from collections.abc import Iterable, Iterator
from datetime import datetime

from django.db.models import QuerySet

from controlplane.models import Sample
from controlplane.models.prepared import prepared
from controlplane.telemetry.metrics import Aggregate, Key, floor, joined

STEP_SECONDS = 10
UNIQUE = ["metric", "by", "subject", "step_seconds", "at"]
VALUES = ["minimum", "maximum", "total", "count"]


class Accumulator:
    """Accumulates one cluster's measurements over the current step. A subject that stays at 0 gets no row, so a
    missing row means 0; the cluster's own metrics always get one, as proof that the collector ran."""

    def __init__(self) -> None:
        self._at: datetime | None = None
        self._aggregates: dict[Key, Aggregate] = {}
        self._shown: set[Key] = set()

    def add(self, key: Key, value: float) -> None:
        """Add a measurement to the current step."""
        aggregate = self._aggregates.get(key)
        if aggregate is None:
            self._aggregates[key] = Aggregate(value, value, value)
        else:
            aggregate.add(Aggregate(value, value, value))

    def turn(self, now: datetime) -> None:
        """Begin the step that contains `now`. If that is a new step, first write the previous one to the database."""
        at = floor(now, STEP_SECONDS)
        if self._at is not None and at != self._at:
            rows = {
                key: aggregate
                for key, aggregate in self._aggregates.items()
                if aggregate.maximum or key in self._shown or key[1] == "cluster"
            }
            write_samples((key, self._at, aggregate) for key, aggregate in rows.items())
            # A subject that ends gets one row with 0, so that its line in a chart ends at 0.
            self._shown = {key for key, aggregate in rows.items() if aggregate.maximum}
            self._aggregates = {}
        self._at = at


def write_samples(rows: Iterable[tuple[Key, datetime, Aggregate]]) -> None:
    """Write samples of the finest step: (key, start of the step, aggregate). What another process wrote for the same
    step is merged in."""
    new = {(*key, at): aggregate for key, at, aggregate in rows}
    times = {at for *_, at in new}
    for known in (sample for at in times for sample in _written_at(at)):
        aggregate = new.get((known.metric, known.by, known.subject, known.at))
        if aggregate is not None:
            aggregate.add(Aggregate(known.minimum, known.maximum, known.total, known.count))
    upsert(
        _row((metric, by, subject), STEP_SECONDS, at, aggregate)
        for (metric, by, subject, at), aggregate in new.items()
    )


@prepared
def _written_at(at: datetime) -> QuerySet[Sample]:
    return Sample.objects.filter(step_seconds=STEP_SECONDS, at=at)


def upsert(rows: Iterable[Sample]) -> None:
    """Insert samples; one with the same metric, subject, step and time is replaced."""
    Sample.objects.bulk_create(
        rows, batch_size=500, update_conflicts=True, unique_fields=UNIQUE, update_fields=VALUES
    )


def rolled(rows: Iterable[Sample], step_seconds: int) -> Iterator[Sample]:
    """Yield samples of `step_seconds` that combine finer ones."""
    for (key, at), aggregate in joined(rows, step_seconds).items():
        yield _row(key, step_seconds, at, aggregate)


def _row(key: Key, step_seconds: int, at: datetime, aggregate: Aggregate) -> Sample:
    metric, by, subject = key
    return Sample(
        metric=metric,
        by=by,
        subject=subject,
        step_seconds=step_seconds,
        at=at,
        minimum=aggregate.minimum,
        maximum=aggregate.maximum,
        total=aggregate.total,
        count=aggregate.count,
    )
