"""Combine samples into coarser ones with age, and delete expired rows, a bounded number at a time."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.contrib.sessions.models import Session
from django.db.models import Model

from controlplane.models import Command, Cycle, Event, IdempotencyRecord, Sample
from controlplane.models.prepared import Rows, prepared
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
        _delete(Sample, _old_samples(step, now - KEEP[step]))
    _delete(Event, _old_events(now - KEEP_EVENTS))
    _clear_ticks(now)
    _delete(Cycle, _old_cycles(now - KEEP_WORK))
    _delete(Command, _old_commands(now - KEEP_WORK))
    _delete(IdempotencyRecord, _old_requests(now - KEEP_REQUESTS))
    _delete(Session, _old_sessions(now))


def _join(fine: int, coarse: int, now: datetime) -> None:
    """Combine samples of step `fine` into samples of step `coarse`, from the newest coarse one on, which may have
    been incomplete."""
    first = _newest(coarse) or _oldest(fine)
    if not first:
        return
    start = floor(first[0][0], coarse)
    end = min(now, start + timedelta(seconds=coarse * SPAN_MOST))
    rows = Sample.objects.filter(step_seconds=fine, at__gte=start, at__lte=end)
    upsert(rolled(rows.iterator(), coarse))


def _clear_ticks(now: datetime) -> None:
    """Delete old telemetry events, DELETE_MOST per call. Remembers the last number examined, because events have no
    index by kind."""
    global _ticks_cleared_to
    batch = _old_ticks(_ticks_cleared_to, now - KEEP_TICKS)
    if batch:
        Event.objects.filter(pk__in=[seq for seq, kind in batch if kind == SAMPLED]).delete()
        _ticks_cleared_to = batch[-1][0]


def _delete(model: type[Model], keys: Sequence[tuple[Any, ...]]) -> None:
    """Delete the rows with these primary keys, each in a tuple."""
    if keys:
        model._default_manager.filter(pk__in=[key for (key,) in keys]).delete()


@prepared
def _newest(step_seconds: int) -> Rows[Sample]:
    return Sample.objects.filter(step_seconds=step_seconds).order_by("-at").values_list("at")[:1]


@prepared
def _oldest(step_seconds: int) -> Rows[Sample]:
    return Sample.objects.filter(step_seconds=step_seconds).order_by("at").values_list("at")[:1]


@prepared
def _old_samples(step_seconds: int, before: datetime) -> Rows[Sample]:
    return Sample.objects.filter(step_seconds=step_seconds, at__lt=before).values_list("pk")[:DELETE_MOST]


@prepared
def _old_events(before: datetime) -> Rows[Event]:
    return Event.objects.filter(at__lt=before).values_list("pk")[:DELETE_MOST]


@prepared
def _old_ticks(after: int, before: datetime) -> Rows[Event]:
    old = Event.objects.filter(seq__gt=after, at__lt=before).order_by("seq")
    return old.values_list("seq", "kind")[:DELETE_MOST]


@prepared
def _old_cycles(before: datetime) -> Rows[Cycle]:
    return Cycle.objects.filter(at__lt=before).values_list("pk")[:DELETE_MOST]


@prepared
def _old_commands(before: datetime) -> Rows[Command]:
    old = Command.objects.filter(state__in=Command.FINISHED, finished_at__lt=before)
    return old.values_list("pk")[:DELETE_MOST]


@prepared
def _old_requests(before: datetime) -> Rows[IdempotencyRecord]:
    return IdempotencyRecord.objects.filter(created_at__lt=before).values_list("pk")[:DELETE_MOST]


@prepared
def _old_sessions(before: datetime) -> Rows[Session]:
    return Session.objects.filter(expire_date__lt=before).values_list("pk")[:DELETE_MOST]
