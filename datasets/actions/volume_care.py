"""Periodic work on volumes: measure those that jobs write to, and end jobs whose volume could not be
created."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from controlplane.engines.kinds import engine_kinds
from controlplane.models import Command
from controlplane.models.prepared import Rows, prepared
from controlplane.scheduling.reasons import VOLUME_FAILED, describe
from datasets.actions.volumes import MEASURE
from datasets.models import KnownStorageClass, Volume, VolumeUse
from datasets.models.volumes import FAILED, READY
from datasets.queries.volumes import VOLUME
from datasets.storage.claims import CLAIM_TROUBLES
from jobs import lifecycle
from jobs.lifecycle import ACTIVE_STATES, QUEUED
from jobs.transitions import Target, send

# Limit on the volumes measured by one run: a measurement reads whole directories, so the oldest come first and the next
# run continues.
AT_ONCE = 20
# Limit on the jobs ended by one run, so that a run stays short; the next takes the rest.
ENDED_AT_ONCE = 200
MEASURED_EVERY = timedelta(seconds=60)


def note_storage_classes(_: datetime | None = None) -> None:
    """Record the directory of each configured storage class, so that its volumes can be found after the class
    is removed from the configuration."""
    rows = KnownStorageClass.objects.values_list("name", "directory", "driver")
    known = {name: place for name, *place in rows}
    for name, found in settings.STORAGE_CLASSES.items():
        if known.get(name) != [str(found.directory), found.driver]:
            place = {"directory": str(found.directory), "driver": found.driver}
            KnownStorageClass.objects.update_or_create(name=name, defaults=place)


def end_jobs_without_volume(_: datetime | None = None) -> None:
    """End queued jobs whose volume could not be created, but not those whose claim was deleted or lost."""
    for use in _uses_of_failed_volumes():
        volume = use.volume
        message = f"{volume.name}: {describe(VOLUME_FAILED)} {volume.message}".strip()
        send([(use.job, Target(lifecycle.FAILED, VOLUME_FAILED, message, {"volume": volume.name}))])


@prepared
def _uses_of_failed_volumes() -> QuerySet[VolumeUse]:
    failed = VolumeUse.objects.filter(job__state=QUEUED, volume__state=FAILED)
    # Such a claim may be restored.
    failed = failed.exclude(volume__reason__in=CLAIM_TROUBLES)
    return failed.select_related("job__project", "volume")[:ENDED_AT_ONCE]


def measure_volumes(_: datetime | None = None) -> None:
    """Queue a measurement of each volume that running jobs mount, or whose last job ended after the last
    measurement. Some at a time. Safe to repeat."""
    for (key,) in _written_since(timezone.now() - MEASURED_EVERY):
        measure_volume(str(key))


@prepared
def _written_since(old: datetime) -> Rows[Volume]:
    written = Q(uses__job__state__in=ACTIVE_STATES, measured_at__lt=old)
    written |= Q(uses__job__finished_at__gt=F("measured_at"))
    volumes = Volume.objects.filter(written, state=READY, project__cluster__engine__in=_measured_engines())
    return volumes.order_by("measured_at").distinct().values_list("pk")[:AT_ONCE]


def _measured_engines() -> list[str]:
    """Return the names of the engine kinds whose volumes the control plane can read."""
    return [kind.name for kind in engine_kinds().values() if kind.mounts_volumes]


def measure_volume(volume_id: str) -> None:
    """Queue a measurement of a volume (by id), unless one is unfinished."""
    Command.objects.create_unless_unfinished(MEASURE, VOLUME, volume_id)
