"""Models of datasets and their immutable versions."""

import uuid

from django.db import models
from django.utils import timezone


class Dataset(models.Model):
    """A named sequence of versions of one directory."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=63)
    description = models.CharField(max_length=500, blank=True, default="")
    # Every signed-in user may read it.
    is_shared = models.BooleanField(default=False)
    # Number of the newest version, 0 before the first. Changed by conditional UPDATE: of two concurrent syncs
    # one succeeds.
    latest = models.PositiveIntegerField(default=0)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="dataset_name")]

    def __str__(self) -> str:
        return self.name


def version_name(dataset: str, number: int, subset: str) -> str:
    """Return the name of a version or subset for users: `xray@3`, `xray@3/train`. `subset`: "" for a whole
    version."""
    return f"{dataset}@{number}/{subset}" if subset else f"{dataset}@{number}"


class VersionRows(models.QuerySet["DatasetVersion"]):
    def whole(self) -> "VersionRows":
        """Return only whole versions, without subsets."""
        return self.filter(subset="")


class DatasetVersion(models.Model):
    """The state of a dataset at one moment, or a named subset of it. Immutable; the manifest in the project's
    lake lists its files. A subset has its own row, so that it can be mounted, cached and read like a
    version."""

    objects = VersionRows.as_manager()

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="versions")
    # For a subset: its version's number.
    number = models.PositiveIntegerField()
    # For a subset: its version.
    parent = models.ForeignKey("self", models.SET_NULL, null=True, related_name="children")
    # Name of the subset, "" for a whole version.
    subset = models.CharField(max_length=63, blank=True, default="")
    # How a subset was selected: {"include": patterns, "exclude": patterns, "paths": number of listed paths}.
    selection = models.JSONField(default=dict)
    # Hash of the manifest, hexadecimal.
    manifest = models.CharField(max_length=64, db_index=True)
    message = models.CharField(max_length=500, blank=True, default="")
    author = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    files = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    # Differences to the parent version.
    files_added = models.PositiveIntegerField(default=0)
    files_changed = models.PositiveIntegerField(default=0)
    files_removed = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["dataset", "number", "subset"], name="dataset_version_number")
        ]

    def __str__(self) -> str:
        return version_name(self.dataset.name, self.number, self.subset)

    @property
    def name(self) -> str:
        """Return the version's name within its dataset: `3`, or `3/train` for a subset."""
        return f"{self.number}/{self.subset}" if self.subset else str(self.number)


class DatasetTag(models.Model):
    """A name for a version; it can be moved to another version."""

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="tags")
    version = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="tags")
    name = models.CharField(max_length=63)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["dataset", "name"], name="dataset_tag_name")]

    def __str__(self) -> str:
        return self.name
