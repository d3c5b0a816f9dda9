"""Periodic care for volumes: measure those that jobs write to."""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from controlplane.models import Command
from datasets.actions.volumes import MEASURE
from datasets.models import Volume
from datasets.models.volumes import READY
from datasets.queries.volumes import VOLUME
from jobs.lifecycle import ACTIVE_STATES

# Volumes that one run has measured.
AT_ONCE = 20
MEASURED_EVERY = timedelta(seconds=60)


def measure_volumes(_: datetime | None = None) -> None:
    """Write a command for volumes that running jobs mount, or whose last job ended after their last measurement, and
    remove the finished one before it."""
    old = timezone.now() - MEASURED_EVERY
    written = Q(uses__job__state__in=ACTIVE_STATES, measured_at__lt=old)
    written |= Q(uses__job__finished_at__gt=F("measured_at"))
    volumes = Volume.objects.filter(written, state=READY).order_by("measured_at").distinct()
    for key in volumes.values_list("pk", flat=True)[:AT_ONCE]:
        measure_volume(str(key))


def measure_volume(volume_id: str) -> None:
    """Have a volume measured, unless that is under way."""
    with transaction.atomic():
        commands = Command.objects.of_kinds([MEASURE]).about(VOLUME, volume_id)
        if commands.unfinished().exists():
            return
        commands.delete()
        Command.objects.create(kind=MEASURE, subject_kind=VOLUME, subject_id=volume_id)
