"""Model of registrations: directories of the control plane's machine that become versions."""

import uuid

from django.db import models
from django.utils import timezone


class DatasetRegistration(models.Model):
    """A request to create a version from a directory that an admin has allowed. The command datasets.register
    carries it out."""

    PENDING, READY, FAILED = "pending", "ready", "failed"
    STATES = (PENDING, READY, FAILED)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    dataset = models.ForeignKey("datasets.Dataset", models.CASCADE, related_name="registrations")
    path = models.CharField(max_length=4096)
    # The message of the version that it creates.
    note = models.CharField(max_length=500, blank=True, default="")
    state = models.CharField(max_length=7, default=PENDING)
    # Why it failed or waits: a code and a sentence. When ready, `message` says that nothing changed and which
    # files were left out.
    reason = models.CharField(max_length=64, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    files_done = models.PositiveIntegerField(default=0)
    files = models.PositiveIntegerField(default=0)
    bytes_done = models.BigIntegerField(default=0)
    size_bytes = models.BigIntegerField(default=0)
    version = models.ForeignKey("datasets.DatasetVersion", models.SET_NULL, null=True, related_name="+")
    created_by = models.ForeignKey("controlplane.User", models.SET_NULL, null=True)
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "ready", "failed"]), name="registration_state_known"
            ),
            models.UniqueConstraint(
                fields=["dataset"], condition=models.Q(state="pending"), name="registration_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.dataset_id}: {self.path}"
