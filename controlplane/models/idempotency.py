"""Answers kept for a day: a repeated request with the same Idempotency-Key gets the same answer."""

from django.db import models
from django.utils import timezone


class IdempotencyRecord(models.Model):
    """The first answer to (user, key). `body_digest` distinguishes a repeat from another request under the same key."""

    user = models.ForeignKey("controlplane.User", models.CASCADE)
    key = models.CharField(max_length=255)
    body_digest = models.CharField(max_length=64)
    # 0 while the first request is still at work.
    status = models.PositiveSmallIntegerField(default=0)
    body = models.BinaryField(default=b"")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_record_per_key")]
