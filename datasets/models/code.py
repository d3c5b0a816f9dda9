"""A tree of source files that a project's jobs run."""

from django.db import models
from django.utils import timezone


class CodeTree(models.Model):
    """A directory as it was at one moment, named by the hash of its manifest (datasets.code_manifest).

    Files and manifest are in the code store; a row says that the project has all of them. The same tree under another
    commit is another row."""

    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="code_trees")
    digest = models.CharField(max_length=64)  # SHA-256 of the manifest, hexadecimal
    commit = models.CharField(max_length=64, blank=True, default="")  # "" outside of git
    branch = models.CharField(max_length=255, blank=True, default="")
    is_dirty = models.BooleanField(default=False)  # differs from the commit
    diff = models.TextField(blank=True, default="")  # from the commit to the tree
    is_diff_cut = models.BooleanField(default=False)  # `diff` is only its beginning
    source = models.CharField(max_length=8, default="upload")  # or "git": fetched by the control plane
    repository = models.CharField(max_length=500, blank=True, default="")  # URL, without credentials
    files = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    used_at = models.DateTimeField(default=timezone.now, db_index=True)  # last submission or start with it

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "digest", "commit"], name="code_tree_commit"),
        ]

    def __str__(self) -> str:
        return f"sha256:{self.digest[:12]}"
