"""Model of imports of git commits."""

import uuid

from django.db import models
from django.utils import timezone


class CodeImport(models.Model):
    """A request to import a commit. The command datasets.import_code carries it out; the result is a
    CodeTree."""

    PENDING, READY, FAILED = "pending", "ready", "failed"

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="code_imports")
    url = models.CharField(max_length=500)
    ref = models.CharField(max_length=255)
    state = models.CharField(max_length=7, default=PENDING)
    # Reason of a failure: a code of datasets.git_source, datasets.code_manifest or this app, and a sentence.
    reason = models.CharField(max_length=64, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    # Digest of the tree, when ready.
    digest = models.CharField(max_length=64, blank=True, default="")
    commit = models.CharField(max_length=64, blank=True, default="")
    created_by = models.ForeignKey("controlplane.User", models.SET_NULL, null=True)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "ready", "failed"]), name="code_import_state_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.url}@{self.ref}"
