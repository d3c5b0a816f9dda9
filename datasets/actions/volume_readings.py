"""Read files of a volume that only pods can access: the request, and its result."""

import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.utils import timezone

from controlplane.actions.errors import Conflict
from controlplane.fields import LONGEST_MESSAGE
from controlplane.loop.wake import wake
from controlplane.models import Command
from datasets.models import Volume, VolumeReading
from datasets.models.volume_readings import digest_of
from datasets.queries.volume_files import FILE_BYTES, FRESH, BeingRead
from datasets.storage.volume_files import Child

READ_VOLUME, READING = "datasets.read_volume", "volume_reading"  # kind and subject of the commands
# Limit per cluster: each reading is a pod, and occupies one of the worker's few slots, which fills and
# snapshots need too.
PENDING_MOST = 2
# After this time a reading fails: its worker died, or none is running.
PENDING_LONGEST = timedelta(minutes=5)
# Limits per project, because readings are stored in the database: bytes of all current readings, and the estimate for a
# listing of 1,000 names.
HELD_MOST, LISTING_BYTES = 64 << 20, 512 << 10


def ask_for(volume: Volume, asked: BeingRead) -> None:
    """Queue the reading of the directory or file that `asked` names by a pod, unless it is being read. Raises
    Conflict if the cluster has too many such pods, or the project has read too much in the last minutes."""
    digest = digest_of(asked.path, asked.after, asked.is_file)
    if volume.readings.filter(state=VolumeReading.PENDING, digest=digest).exists():
        return
    held_bytes = FILE_BYTES if asked.is_file else LISTING_BYTES
    _require_room(volume, held_bytes)
    try:
        with transaction.atomic():
            reading = VolumeReading.objects.create(
                volume=volume,
                path=asked.path,
                after=asked.after,
                is_file=asked.is_file,
                digest=digest,
                held_bytes=held_bytes,
            )
            Command.objects.create(kind=READ_VOLUME, subject_kind=READING, subject_id=str(reading.pk))
            wake()
    except IntegrityError:
        # A concurrent request was first.
        return


def _require_room(volume: Volume, more_bytes: int) -> None:
    """Raise Conflict if the cluster has too many readings, or if `more_bytes` would exceed what a project may read
    at a time."""
    rows = VolumeReading.objects
    pending = rows.filter(state=VolumeReading.PENDING, volume__project__cluster=volume.project.cluster_id)
    if pending.count() >= PENDING_MOST:
        words = (
            f"{PENDING_MOST} pods read files of volumes in this cluster already; try again in some seconds."
        )
        raise Conflict("many_readings", words)
    of_project = rows.filter(volume__project=volume.project_id)
    held: int = of_project.aggregate(held=Sum("held_bytes", default=0))["held"]
    if held + more_bytes > HELD_MOST:
        words = f"{held >> 20} MiB of the project's volumes were read just now; try again in a minute."
        raise Conflict("many_readings", words)


def reading_ready(key: str, children: Sequence[Child], content: bytes | None, has_more: bool) -> None:
    """Record what the pod of a reading (by its id `key`) has read: the `children` of a directory or the `content` of a
    file, None for a directory. `has_more`: it was cut at the limit. Needs an open transaction."""
    entries = [[b64encode(one.name).decode(), one.kind, one.size_bytes, one.mtime] for one in children]
    held_bytes = len(json.dumps(entries)) + len(content or b"")
    what = {"entries": entries, "content": content, "has_more": has_more, "held_bytes": held_bytes}
    _finish(key, state=VolumeReading.READY, **what)


def reading_failed(key: str, reason: str, message: str) -> None:
    """Record why a reading (by its id `key`) failed: a reason code and a message. Needs an open transaction."""
    _finish(key, state=VolumeReading.FAILED, reason=reason, message=message[:LONGEST_MESSAGE], held_bytes=0)


def _finish(key: str, **what: object) -> None:
    rows = VolumeReading.objects.filter(pk=key, state=VolumeReading.PENDING)
    rows.update(finished_at=timezone.now(), **what)


def forget_readings(now: datetime) -> None:
    """Delete readings that are no longer shown, and fail those that no worker has carried out."""
    VolumeReading.objects.filter(finished_at__lt=now - FRESH).delete()
    stale = VolumeReading.objects.filter(state=VolumeReading.PENDING, created_at__lt=now - PENDING_LONGEST)
    words = f"No worker has read it within {PENDING_LONGEST.total_seconds() / 60:g} minutes."
    stale.update(
        state=VolumeReading.FAILED, reason="reading_timeout", message=words, held_bytes=0, finished_at=now
    )
