"""Combine samples into coarser ones with age, and delete expired rows, a bounded number at a time."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.contrib.sessions.models import Session
from django.db.models import Max, Min, QuerySet

from controlplane.models import Command, Cycle, Event, IdempotencyRecord, Sample
from controlplane.telemetry.metrics import KEEP, SAMPLED, STEPS, floor
from controlplane.telemetry.samples import rolled, upsert

KEEP_EVENTS = timedelta(days=90)
# Short, because these events only announce new samples, and are many.
KEEP_TICKS = timedelta(hours=1)
# How long cycles and finished commands are kept.
KEEP_WORK = timedelta(days=7)
KEEP_REQUESTS = timedelta(hours=24)
# Bounds the transaction, because other writers wait for it; later calls delete the rest.
DELETE_MOST = 5000
# The most coarse steps that one call writes after a long pause, because other writers wait for its
# transaction.
SPAN_MOST = 1000

_ticks_cleared_to = 0


def roll_up(now: datetime) -> None:
    """Combine fine samples into coarser ones, and delete expired samples, events, cycles, commands, responses and
    sessions. A call does a bounded amount of work; later calls do the rest. Safe to repeat."""
    for fine, coarse in pairwise(STEPS):
        _join(fine, coarse, now)
    for step in STEPS:
        _delete(Sample.objects.filter(step_seconds=step, at__lt=now - KEEP[step]))
    _delete(Event.objects.filter(at__lt=now - KEEP_EVENTS))
    _clear_ticks(now)
    _delete(Cycle.objects.filter(at__lt=now - KEEP_WORK))
    _delete(Command.objects.filter(state__in=Command.FINISHED, finished_at__lt=now - KEEP_WORK))
    _delete(IdempotencyRecord.objects.filter(created_at__lt=now - KEEP_REQUESTS))
    _delete(Session.objects.filter(expire_date__lt=now))


def _join(fine: int, coarse: int, now: datetime) -> None:
    """Combine samples of step `fine` into samples of step `coarse`, from the newest coarse one on, which may have
    been incomplete."""
    newest = Sample.objects.filter(step_seconds=coarse).aggregate(at=Max("at"))["at"]
    start = newest or Sample.objects.filter(step_seconds=fine).aggregate(at=Min("at"))["at"]
    if start is None:
        return
    start = floor(start, coarse)
    end = min(now, start + timedelta(seconds=coarse * SPAN_MOST))
    rows = Sample.objects.filter(step_seconds=fine, at__gte=start, at__lte=end)
    upsert(rolled(rows.iterator(), coarse))


def _clear_ticks(now: datetime) -> None:
    """Delete old telemetry events, DELETE_MOST per call. Remembers the last number examined, because events have no
    index by kind."""
    global _ticks_cleared_to
    old = Event.objects.filter(seq__gt=_ticks_cleared_to, at__lt=now - KEEP_TICKS).order_by("seq")
    batch = list(old.values_list("seq", "kind")[:DELETE_MOST])
    if batch:
        Event.objects.filter(pk__in=[seq for seq, kind in batch if kind == SAMPLED]).delete()
        _ticks_cleared_to = batch[-1][0]


def _delete(rows: QuerySet[Any]) -> None:
    keys = list(rows.values_list("pk", flat=True)[:DELETE_MOST])
    if keys:
        rows.model._default_manager.filter(pk__in=keys).delete()
