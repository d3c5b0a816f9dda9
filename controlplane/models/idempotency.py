"""Responses kept for a day: a repeated request with the same Idempotency-Key gets the same response."""

from django.db import models
from django.utils import timezone


class IdempotencyRecord(models.Model):
    """The first response to a user's request with this Idempotency-Key; a repeat of that request gets it again.
    `body_digest` shows whether a later request with the key is such a repeat."""

    user = models.ForeignKey("controlplane.User", models.CASCADE)
    key = models.CharField(max_length=255)
    body_digest = models.CharField(max_length=64)
    # 0 while the first request is being processed.
    status = models.PositiveSmallIntegerField(default=0)
    body = models.BinaryField(default=b"")
    created_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="one_record_per_key")]
