"""Model of code trees, the source files that a project's jobs run."""

from django.db import models
from django.utils import timezone


class CodeTree(models.Model):
    """The state of a directory at one moment, named by the hash of its manifest (datasets.code_manifest).

    Files and manifest are in the code store; the row says that the project has all of them. The same tree
    from another commit has its own row.
    """

    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="code_trees")
    # SHA-256 of the manifest, hexadecimal.
    digest = models.CharField(max_length=64)
    # "" if not from git.
    commit = models.CharField(max_length=64, blank=True, default="")
    branch = models.CharField(max_length=255, blank=True, default="")
    # The working directory had uncommitted changes.
    is_dirty = models.BooleanField(default=False)
    # From the commit to the tree.
    diff = models.TextField(blank=True, default="")
    # `diff` has only the beginning.
    is_diff_cut = models.BooleanField(default=False)
    # Or "git": imported by the control plane.
    source = models.CharField(max_length=8, default="upload")
    # Repository URL, without credentials.
    repository = models.CharField(max_length=500, blank=True, default="")
    files = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    # When a submission or start last used it: trees that were not used for long are deleted.
    used_at = models.DateTimeField(default=timezone.now, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "digest", "commit"], name="code_tree_commit"),
        ]

    def __str__(self) -> str:
        return f"sha256:{self.digest[:12]}"
