"""Model of artifacts, the output that jobs keep."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone


class Artifact(models.Model):
    """A directory of a job's output, stored in the project's lake. Deleted with its job."""

    WAITING, KEEPING, READY, FAILED, SKIPPED = "waiting", "keeping", "ready", "failed", "skipped"
    STATES = (WAITING, KEEPING, READY, FAILED, SKIPPED)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="artifacts")
    job = models.ForeignKey("jobs.Job", models.CASCADE, related_name="artifacts")
    name = models.CharField(max_length=63)
    # From the submission: see jobs.fields.artifacts.
    path = models.CharField(max_length=1024)
    # Store it even if the job did not succeed.
    is_kept_always = models.BooleanField(default=False)
    state = models.CharField(max_length=7, default=WAITING)
    # The reason for the state; "" if the state needs none.
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=1000, blank=True, default="")
    # The attempt whose output is stored: the job's last. 0 while the artifact waits.
    attempt = models.PositiveIntegerField(default=0)
    # Hash of the manifest, hexadecimal; "" until the artifact is ready.
    manifest = models.CharField(max_length=64, blank=True, default="", db_index=True)
    files = models.PositiveIntegerField(null=True)
    size_bytes = models.BigIntegerField(null=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    ready_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "name"], name="artifact_name")]
        indexes = [models.Index(fields=["job"], name="artifact_waiting", condition=Q(state="waiting"))]

    def __str__(self) -> str:
        return self.name
