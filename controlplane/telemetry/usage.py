"""How much of a cluster each project has used recently; older use counts less."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Sum

from controlplane.models import Cluster, Sample
from controlplane.telemetry.metrics import GPU_SECONDS, MEMBER, STEPS, floor

STEP_SECONDS = STEPS[-1]
# Use older than this many half-lives is ignored, because it would count less than a thirty-second.
HALF_LIVES = 5
# All use within one such span has the same weight, so that one query per span is enough.
SPANS_PER_HALF_LIFE = 4
RENEWED_EVERY = timedelta(minutes=10)
# The longest half-life that can be set.
MOST_HOURS = 2160
# Fractions are rounded to this many digits, because otherwise plans would change with every sample.
DIGITS = 2


def half_life_of(cluster: Cluster) -> timedelta:
    """Return the half-life of past use on this cluster, by default the server's setting; 0: past use does not count."""
    hours = cluster.usage_half_life_hours
    default: timedelta = settings.USAGE_HALF_LIFE
    return default if hours is None else timedelta(hours=hours)


def decayed_usage(
    now: datetime, gpus: int, half_life: timedelta, projects: Collection[int]
) -> Mapping[int, float]:
    """Return, by project id, the fraction (0 to 1) of `gpus` GPUs that the project's jobs held recently; use one
    half-life ago counts half. Projects without use are absent. `half_life` must not be 0.

    `projects`: the ids of all projects of the cluster that has these GPUs. The fractions add up to at most 1, even if
    the cluster was larger before.
    """
    if not gpus:
        return {}
    span = max(STEP_SECONDS, int(half_life.total_seconds()) // SPANS_PER_HALF_LIFE)
    spans = max(1, int(HALF_LIVES * half_life.total_seconds()) // span)
    used: dict[int, float] = defaultdict(float)
    possible = 0.0
    # The first span begins with the current step, which is not complete yet.
    end, until = floor(now, STEP_SECONDS) + timedelta(seconds=STEP_SECONDS), now
    for _ in range(spans):
        start = end - timedelta(seconds=span)
        weight = 0.5 ** ((now - start).total_seconds() / half_life.total_seconds())
        for project, seconds in _held(start, end).items():
            if project in projects:
                used[project] += weight * seconds
        possible += weight * gpus * (until - start).total_seconds()
        end = until = start
    whole = max(possible, sum(used.values()))
    return {project: round(seconds / whole, DIGITS) for project, seconds in used.items()}


def _held(start: datetime, end: datetime) -> Mapping[int, float]:
    """Return, by project id, the GPU-seconds held in the steps that begin in start..end (`end` excluded)."""
    rows = Sample.objects.filter(
        metric=GPU_SECONDS, by=MEMBER, step_seconds=STEP_SECONDS, at__gte=start, at__lt=end
    )
    held: dict[int, float] = defaultdict(float)
    for subject, seconds in rows.values_list("subject").annotate(Sum("total")).order_by():
        held[int(subject.split("/")[0])] += seconds
    return held


class UsageCache:
    """The recent usage of one cluster's projects, read again after RENEWED_EVERY or if the number of GPUs or the
    half-life changed."""

    def __init__(self) -> None:
        self._usage: Mapping[int, float] = {}
        self._read: tuple[datetime, int, timedelta] | None = None

    def of(
        self, now: datetime, gpus: int, half_life: timedelta, projects: Collection[int]
    ) -> Mapping[int, float]:
        """Return `decayed_usage` of these arguments, up to RENEWED_EVERY old, even if `projects` has changed since; {}
        if the half-life is 0."""
        if not half_life:
            return {}
        is_kept = self._read is not None and self._read[1:] == (gpus, half_life)
        if self._read is None or not is_kept or not timedelta() <= now - self._read[0] < RENEWED_EVERY:
            self._usage = decayed_usage(now, gpus, half_life, projects)
            self._read = now, gpus, half_life
        return self._usage
