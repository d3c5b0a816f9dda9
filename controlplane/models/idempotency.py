"""Responses kept for a day: a repeated request with the same Idempotency-Key gets the same response."""

from django.db import models
from django.utils import timezone


class IdempotencyRecord(models.Model):
    """The first response to (user, key). `body_digest` distinguishes a repeat from a different request with the
    same key."""

    user = models.ForeignKey("controlplane.User", models.CASCADE)
    key = models.CharField(max_length=255)
    body_digest = models.CharField(max_length=64)
    # 0 while the first request is being processed.
    status = models.PositiveSmallIntegerField(default=0)
    body = models.BinaryField(default=b"")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_record_per_key")]
