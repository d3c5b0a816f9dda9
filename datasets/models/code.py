"""A tree of source files that a project's jobs run."""

from django.db import models
from django.utils import timezone


class CodeTree(models.Model):
    """A directory as it was at one moment, named by the hash of its manifest (datasets.code_manifest).

    Files and manifest are in the code store; a row says that the project has all of them. The same tree under another
    commit is another row."""

    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="code_trees")
    # SHA-256 of the manifest, hexadecimal.
    digest = models.CharField(max_length=64)
    # "" outside of git.
    commit = models.CharField(max_length=64, blank=True, default="")
    branch = models.CharField(max_length=255, blank=True, default="")
    # Differs from the commit.
    is_dirty = models.BooleanField(default=False)
    # From the commit to the tree.
    diff = models.TextField(blank=True, default="")
    # `diff` is only its beginning.
    is_diff_cut = models.BooleanField(default=False)
    # Or "git": fetched by the control plane.
    source = models.CharField(max_length=8, default="upload")
    # URL, without credentials.
    repository = models.CharField(max_length=500, blank=True, default="")
    files = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    # Last submission or start with it.
    used_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "digest", "commit"], name="code_tree_commit"),
        ]

    def __str__(self) -> str:
        return f"sha256:{self.digest[:12]}"
