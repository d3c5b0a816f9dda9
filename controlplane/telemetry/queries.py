"""Time series for the API and the charts: at most 400 points each, for any range.

Gauges come from samples with the step that fits the range; allocated GPUs come from change points and are exact.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.db.models import OuterRef, Subquery, Sum
from django.utils import timezone

from controlplane.models import Sample
from controlplane.telemetry.metrics import (
    CHANGE_POINT,
    GPU_SECONDS,
    KEEP,
    MEMBER,
    METRICS,
    QUEUE_WAIT,
    STEPS,
    STEPWISE,
    SUBJECTS,
    Aggregate,
    floor,
    joined,
)

__all__ = ["METRICS", "SUBJECTS", "Point", "Series", "first_sample", "gpu_hours", "queue_waits", "series"]

POINTS_MOST = 400


@dataclass(frozen=True, slots=True)
class Point:
    """Values of a series over the span that begins at `at`; in a series with `step_seconds` 0, its value until the
    next point."""

    at: datetime
    min: float
    max: float
    mean: float


@dataclass(frozen=True, slots=True)
class Series:
    """The series of one subject. `step_seconds` 0: a step function with exact points; else the length of each span."""

    subject: str
    step_seconds: int
    points: tuple[Point, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the series as a REST object."""
        points = [asdict(point) for point in self.points]
        return {"subject": self.subject, "step_seconds": self.step_seconds, "points": points}


def series(
    metric: str,
    by: str,
    subjects: Sequence[str] | None,
    start: datetime,
    end: datetime,
    step_seconds: int | None = None,
) -> list[Series]:
    """Return the series of each subject that has values in start..end, sorted by subject. `subjects` None: all.

    `step_seconds` None chooses a step; one that would give more than 400 points is raised. Allocation without a step
    is an exact step function that begins with the value at `start`, unless it changed more than 400 times. The caller
    checks access to the subjects. Raise ValueError for an unknown metric or subject kind, or if end <= start.
    """
    if metric not in (*METRICS, *STEPWISE) or by not in SUBJECTS or end <= start:
        raise ValueError("unknown metric or subject kind, or an empty range")
    if metric in STEPWISE:
        found = _changes(metric, by, subjects, start, end)
        return [_allocation(subject, points, end, step_seconds) for subject, points in sorted(found.items())]
    step = _fitting_step(start, end, step_seconds)
    rows = _rows(metric, by, subjects, start, end, _stored_step(step))
    lines: dict[str, list[Point]] = defaultdict(list)
    for ((_, _, subject), at), aggregate in joined(rows, step).items():
        point = Point(at, aggregate.minimum, aggregate.maximum, aggregate.total / aggregate.count)
        lines[subject].append(point)
    return [Series(subject, step, tuple(points)) for subject, points in sorted(lines.items())]


def gpu_hours(start: datetime, end: datetime, project_ids: Collection[int] | None) -> dict[int, float]:
    """Return, by user id, the GPU-hours that the user's jobs held in start..end. `project_ids`: count these projects
    only (None: all, also deleted ones). Both ends are accurate to the step of the stored samples."""
    step = _stored_step(_fitting_step(start, end, None))
    rows = Sample.objects.filter(
        metric=GPU_SECONDS, by=MEMBER, step_seconds=step, at__gt=start - timedelta(seconds=step), at__lt=end
    )
    hours: dict[int, float] = defaultdict(float)
    for subject, seconds in rows.values_list("subject").annotate(Sum("total")).order_by():
        project_id, user_id = map(int, subject.split("/"))
        if project_ids is None or project_id in project_ids:
            hours[user_id] += seconds / 3600
    return dict(hours)


def queue_waits(start: datetime, end: datetime, spans: int) -> tuple[int, dict[datetime, Aggregate]]:
    """Return (length of a span in seconds, waits in seconds by the start of their span) of the jobs that started in
    start..end on all clusters. `spans`: about how many spans to divide the range into; spans without starts are
    absent."""
    stored = _fitting_step(start, end, None)
    step = stored * max(1, -(-int((end - start).total_seconds()) // (stored * spans)))
    rows = _rows(QUEUE_WAIT, "cluster", None, start, end, _stored_step(stored))
    found: dict[datetime, Aggregate] = {}
    for (_, at), aggregate in joined(rows, step).items():
        if at in found:
            found[at].add(aggregate)
        else:
            found[at] = aggregate
    return step, found


def first_sample(now: datetime) -> datetime:
    """Return the time of the first sample; `now` if there is none."""
    oldest = [
        Subquery(Sample.objects.filter(step_seconds=step).order_by("at").values("at")[:1])
        for step in (CHANGE_POINT, *STEPS)
    ]
    found = next(iter(Sample.objects.order_by().values_list(*oldest)[:1]), None)
    if found is None:
        return now
    first: datetime | None = None
    coarse = 0
    for step, at in reversed(list(zip(STEPS, found[1:], strict=True))):
        # A coarse row begins before its data does, so the finer step is used if it reaches back as far.
        if at is not None and (first is None or floor(at, coarse) == first):
            first, coarse = at, step
    return min(at for at in (first, found[0]) if at is not None)


def _rows(
    metric: str, by: str, subjects: Sequence[str] | None, start: datetime, end: datetime, stored: int
) -> Iterable[Sample]:
    # The first span is the one that contains `start`.
    first = start - timedelta(seconds=stored)
    rows = Sample.objects.filter(metric=metric, by=by, step_seconds=stored, at__gt=first, at__lt=end)
    if subjects is not None:
        rows = rows.filter(subject__in=subjects)
    return rows.order_by("subject", "at")


def _fitting_step(start: datetime, end: datetime, asked: int | None) -> int:
    """Return the smallest step in seconds that is at least `asked`, gives at most POINTS_MOST points, and is still
    stored for `start`. If no stored step is so long, return a multiple of the longest."""
    least = max((end - start).total_seconds() / (POINTS_MOST - 1), asked or 0)
    age = timezone.now() - start
    for step in STEPS:
        if step >= least and age <= KEEP[step]:
            return step
    coarsest = STEPS[-1]
    return coarsest * max(1, -(-int(least) // coarsest))


def _stored_step(step: int) -> int:
    """Return the coarsest stored step of at most `step` seconds; a finer one would only take longer to read."""
    return max(stored for stored in STEPS if stored <= step)


def _changes(
    metric: str, by: str, subjects: Sequence[str] | None, start: datetime, end: datetime
) -> dict[str, list[tuple[datetime, float]]]:
    """Return each subject's change points in start..end, after a first one with its value at `start`."""
    points = Sample.objects.filter(metric=metric, by=by, step_seconds=CHANGE_POINT)
    if subjects is not None:
        points = points.filter(subject__in=subjects)
    held = points.filter(subject=OuterRef("subject"), at__lte=start).order_by("-at").values("total")[:1]
    subjects_known = points.order_by().values("subject").distinct().annotate(held=Subquery(held))
    found: dict[str, list[tuple[datetime, float]]] = {
        name: [(start, value or 0.0)] for name, value in subjects_known.values_list("subject", "held")
    }
    inside = points.filter(at__gt=start, at__lt=end).order_by("at")
    for name, at, value in inside.values_list("subject", "at", "total"):
        found[name].append((at, value))
    return found


def _allocation(
    subject: str, changes: Sequence[tuple[datetime, float]], end: datetime, asked: int | None
) -> Series:
    if asked is None and len(changes) <= POINTS_MOST:
        return Series(subject, 0, tuple(Point(at, value, value, value) for at, value in changes))
    start = changes[0][0]
    step = max(asked or 1, -(-int((end - start).total_seconds()) // POINTS_MOST))
    return Series(subject, step, tuple(_spans(changes, start, end, step)))


def _spans(
    changes: Sequence[tuple[datetime, float]], start: datetime, end: datetime, step: int
) -> Iterable[Point]:
    """Yield a step function as spans of `step` seconds, with minimum, maximum and time-weighted mean. `changes`:
    (time, value) in order, from `start` on."""
    pieces = [(at, after, value) for (at, value), (after, _) in pairwise([*changes, (end, 0.0)])]
    index, at = 0, start
    while at < end:
        until = min(at + timedelta(seconds=step), end)
        values, area = [], 0.0
        while index < len(pieces) and pieces[index][0] < until:
            piece_start, piece_end, value = pieces[index]
            overlap = (min(piece_end, until) - max(piece_start, at)).total_seconds()
            if overlap > 0:
                values.append(value)
                area += value * overlap
            if piece_end > until:
                break
            index += 1
        if values:
            yield Point(at, min(values), max(values), area / (until - at).total_seconds())
        at = until
