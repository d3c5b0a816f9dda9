"""Looks at files of volumes that pods alone see."""

import uuid

from django.db import models
from django.utils import timezone

from datasets.models.volumes import Volume


class VolumeReading(models.Model):
    """One look: of a directory from a name on, or of a file. Its command (datasets.read_volume) carries it out; it is
    kept for minutes."""

    PENDING, READY, FAILED = "pending", "ready", "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    volume = models.ForeignKey(Volume, models.CASCADE, related_name="readings")
    path = models.CharField(max_length=4096)
    after = models.CharField(max_length=1024, blank=True, default="")
    is_file = models.BooleanField(default=False)
    state = models.CharField(max_length=7, default=PENDING)
    # Why it failed.
    reason = models.CharField(max_length=64, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    # Of each entry its name in base64, kind, bytes and time.
    entries = models.JSONField(default=list)
    has_more = models.BooleanField(default=False)
    content = models.BinaryField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "ready", "failed"]),
                name="volume_reading_state_known",
            ),
            models.UniqueConstraint(
                fields=["volume", "path", "after", "is_file"],
                condition=models.Q(state="pending"),
                name="volume_reading_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.volume_id}: {self.path}"
