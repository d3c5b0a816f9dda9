"""Projects with a guaranteed quota, under optional departments."""

from typing import Any

from django.db import models
from django.utils import timezone

# Columns of a project or department that determine its share.
SHARE_COLUMNS = ("gpu_quota_milli", "over_quota_weight_milli", "gpu_limit_milli", "priority")


class Share(models.Model):
    """The entitlement of a project or department, in milli-GPUs (1 GPU = 1,000)."""

    gpu_quota_milli = models.PositiveIntegerField(default=0)
    # Null: equal to the quota. 0: gets no share of the surplus.
    over_quota_weight_milli = models.PositiveIntegerField(null=True)
    gpu_limit_milli = models.PositiveIntegerField(null=True)
    priority = models.PositiveIntegerField(default=0)

    class Meta:
        abstract = True

    @property
    def weight_milli(self) -> int:
        """Return the over-quota weight in thousandths; without one of its own, the quota."""
        return self.gpu_quota_milli if self.over_quota_weight_milli is None else self.over_quota_weight_milli

    def share_values(self) -> dict[str, Any]:
        """Return quota, weight, limit and priority by column name (SHARE_COLUMNS)."""
        return {column: getattr(self, column) for column in SHARE_COLUMNS}


class Department(Share):
    """A group of projects, with a quota, limit and weight for all of them together."""

    name = models.CharField(max_length=50, unique=True)
    created_at = models.DateTimeField(default=timezone.now)


class Project(Share):
    """A team with a GPU quota on one cluster. `palette_index`: its colour in charts."""

    name = models.CharField(max_length=50, unique=True)
    description = models.CharField(max_length=500, blank=True, default="")
    cluster = models.ForeignKey("controlplane.Cluster", models.PROTECT, related_name="projects")
    department = models.ForeignKey(Department, models.PROTECT, null=True, related_name="projects")
    # {"train": ["dgx"], "interactive": []}; an empty list allows every pool.
    node_pools = models.JSONField(default=dict)
    interactive_max_seconds = models.PositiveIntegerField(null=True)
    interactive_idle_seconds = models.PositiveIntegerField(null=True)
    palette_index = models.PositiveSmallIntegerField(default=0)
    # Computed by the last cycle.
    fair_share_milli = models.PositiveIntegerField(default=0)
    # The fraction (0 to 1) of the cluster that it used recently; None if past use does not count there.
    recent_usage = models.FloatField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return self.name
