"""Ask for a look at files of a volume that pods alone see, and write down what it found."""

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.actions.errors import Conflict
from controlplane.fields import LONGEST_MESSAGE
from controlplane.loop.wake import wake
from controlplane.models import Command
from datasets.models import Volume, VolumeReading
from datasets.queries.volume_files import BeingRead
from datasets.storage.volume_files import Child

READ_VOLUME, READING = "datasets.read_volume", "volume_reading"  # kind and subject of the commands
# Of one volume: each is a pod in its cluster.
PENDING_MOST = 4
KEPT = timedelta(minutes=5)


def ask_for(volume: Volume, asked: BeingRead) -> None:
    """Have a pod read what was asked for, unless one does. Raises Conflict where the volume has many such pods."""
    pending = volume.readings.filter(state=VolumeReading.PENDING)
    if pending.filter(path=asked.path, after=asked.after, is_file=asked.is_file).exists():
        return
    if pending.count() >= PENDING_MOST:
        raise Conflict("many_readings", f"{PENDING_MOST} pods read files of {volume.name}; try again later.")
    try:
        with transaction.atomic():
            reading = VolumeReading.objects.create(
                volume=volume, path=asked.path, after=asked.after, is_file=asked.is_file
            )
            Command.objects.create(kind=READ_VOLUME, subject_kind=READING, subject_id=str(reading.pk))
            wake()
    except IntegrityError:
        # Another request was first.
        return


def reading_ready(key: str, children: Sequence[Child], content: bytes | None, has_more: bool) -> None:
    """Write what was found. Call it in a transaction."""
    entries = [[b64encode(one.name).decode(), one.kind, one.size_bytes, one.mtime] for one in children]
    _finish(key, state=VolumeReading.READY, entries=entries, content=content, has_more=has_more)


def reading_failed(key: str, reason: str, message: str) -> None:
    """Write why nothing was found. Call it in a transaction."""
    _finish(key, state=VolumeReading.FAILED, reason=reason, message=message[:LONGEST_MESSAGE])


def _finish(key: str, **what: object) -> None:
    rows = VolumeReading.objects.filter(pk=key, state=VolumeReading.PENDING)
    rows.update(finished_at=timezone.now(), **what)


def forget_readings(now: datetime) -> None:
    """Remove looks that are over."""
    VolumeReading.objects.filter(finished_at__lt=now - KEPT).delete()
