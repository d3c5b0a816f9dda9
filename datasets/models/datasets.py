"""A dataset and its immutable versions."""

import uuid

from django.db import models
from django.utils import timezone


class Dataset(models.Model):
    """A named line of versions of one directory."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=63)
    description = models.CharField(max_length=500, blank=True, default="")
    # Every signed-in user may read it.
    is_shared = models.BooleanField(default=False)
    # Number of the newest version, 0 before the first. Moved by a conditional UPDATE: of two syncs one wins.
    latest = models.PositiveIntegerField(default=0)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="dataset_name")]

    def __str__(self) -> str:
        return self.name


def version_name(dataset: str, number: int, subset: str) -> str:
    """Return how users name a version or a subset: `xray@3`, `xray@3/train`."""
    return f"{dataset}@{number}/{subset}" if subset else f"{dataset}@{number}"


class VersionRows(models.QuerySet["DatasetVersion"]):
    """Versions and their subsets."""

    def whole(self) -> "VersionRows":
        """Leave the subsets out."""
        return self.filter(subset="")


class DatasetVersion(models.Model):
    """What a dataset was at one moment, or a named subset of that. Never changed; its files are listed by the manifest
    in the project's lake. A subset is a row of its own, so that it is mounted, cached and read as a version is."""

    objects = VersionRows.as_manager()

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="versions")
    # Of a subset: that of its version.
    number = models.PositiveIntegerField()
    # Of a subset: its version.
    parent = models.ForeignKey("self", models.SET_NULL, null=True, related_name="children")
    # Name of the subset, "" for a whole version.
    subset = models.CharField(max_length=63, blank=True, default="")
    # How a subset was chosen: {"include": patterns, "exclude": patterns, "paths": how many were listed}.
    selection = models.JSONField(default=dict)
    # Hash of the manifest, hexadecimal.
    manifest = models.CharField(max_length=64, db_index=True)
    message = models.CharField(max_length=500, blank=True, default="")
    author = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    files = models.PositiveIntegerField()
    size_bytes = models.BigIntegerField()
    # compared with the parent
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
        """Its name within the dataset: `3`, `3/train`."""
        return f"{self.number}/{self.subset}" if self.subset else str(self.number)


class DatasetTag(models.Model):
    """A name for a version that can be moved to another."""

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="tags")
    version = models.ForeignKey(DatasetVersion, models.CASCADE, related_name="tags")
    name = models.CharField(max_length=63)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["dataset", "name"], name="dataset_tag_name")]

    def __str__(self) -> str:
        return self.name
