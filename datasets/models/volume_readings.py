"""Model of readings: directories and files of volumes that only pods can access."""

import uuid
from hashlib import sha256

from django.db import models
from django.utils import timezone

from datasets.models.volumes import Volume

PATH_MOST, AFTER_MOST = 4096, 1024  # characters


def digest_of(path: str, after: str, is_file: bool) -> str:
    """Return the SHA-256, in hex, of (path, after, is_file): a key short enough for an index. `path` and `after` must
    not contain NUL, which separates them."""
    return sha256(f"{path}\0{after}\0{is_file}".encode("utf-8", "surrogateescape")).hexdigest()


class VolumeReading(models.Model):
    """One reading: of a directory's entries after a name, or of a file. The command datasets.read_volume
    carries it out; the result is kept for a minute."""

    PENDING, READY, FAILED = "pending", "ready", "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    volume = models.ForeignKey(Volume, models.CASCADE, related_name="readings")
    path = models.CharField(max_length=PATH_MOST)
    after = models.CharField(max_length=AFTER_MOST, blank=True, default="")
    is_file = models.BooleanField(default=False)
    # digest_of(path, after, is_file).
    digest = models.CharField(max_length=64)
    state = models.CharField(max_length=7, default=PENDING)
    # Reason of a failure.
    reason = models.CharField(max_length=64, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    # Per entry: name in base64, kind, bytes and time.
    entries = models.JSONField(default=list)
    has_more = models.BooleanField(default=False)
    content = models.BinaryField(null=True)
    # Bytes of entries or content; while pending, an upper bound.
    held_bytes = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "ready", "failed"]),
                name="volume_reading_state_known",
            ),
            models.UniqueConstraint(
                fields=["volume", "digest"],
                condition=models.Q(state="pending"),
                name="volume_reading_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.volume_id}: {self.path}"
