"""Statistics of the loop's passes that made decisions."""

from django.db import models
from django.utils import timezone


class Cycle(models.Model):
    """One pass of the loop with decisions: how many, and the milliseconds of each step. A pass without decisions
    leaves no row."""

    cluster = models.ForeignKey("controlplane.Cluster", models.CASCADE, related_name="cycles")
    at = models.DateTimeField(default=timezone.now, db_index=True)
    started = models.PositiveIntegerField(default=0)
    preempted = models.PositiveIntegerField(default=0)
    held = models.PositiveIntegerField(default=0)
    observe_ms = models.FloatField(default=0)
    decide_ms = models.FloatField(default=0)
    record_ms = models.FloatField(default=0)
