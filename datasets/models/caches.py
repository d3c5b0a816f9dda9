"""Versions brought beside the GPUs, where that is, and the jobs that use them."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

from datasets.models.datasets import version_name


class CacheLocation(models.Model):
    """A directory beside a cluster's GPUs that holds caches, or a volume of a project in its cluster."""

    # A cluster's default is created when it is first needed, named as the cluster, or as cluster.project. Others, of
    # some of its nodes, are created by admins.
    cluster = models.ForeignKey("controlplane.Cluster", models.CASCADE, related_name="cache_locations")
    # Whose namespace has the volume; None for a directory, which is of all projects.
    project = models.ForeignKey("controlplane.Project", models.CASCADE, null=True, related_name="+")
    # The trees on a volume, as the pod that worked there last reported them.
    kept_keys = models.JSONField(default=list)
    name = models.CharField(max_length=130, unique=True)
    # Of the nodes that no other location of the cluster has.
    is_default = models.BooleanField(default=True, db_default=True)
    # Nodes in one of these pools, or with all of these labels, read from it.
    node_pools = models.JSONField(default=list)
    node_labels = models.JSONField(default=dict)
    # "": below TRAINYARD_CACHE_DIR.
    directory = models.CharField(max_length=500, blank=True, default="")
    # None: as much as its disk has, or the volume's size.
    room_bytes = models.BigIntegerField(null=True)
    # Caches that no job used for this long are removed.
    unused_days = models.PositiveIntegerField(default=1)
    # Contents of all caches, each counted once.
    used_bytes = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster"],
                condition=Q(project=None, is_default=True),
                name="cache_location_of_cluster",
            ),
            models.UniqueConstraint(fields=["cluster", "project"], name="cache_location_of_project"),
        ]

    def __str__(self) -> str:
        return self.name


class Cache(models.Model):
    """A version at a location. `state` is moved by conditional UPDATE: queued, filling, ready, failed, evicting."""

    QUEUED, FILLING, READY, FAILED, EVICTING = "queued", "filling", "ready", "failed", "evicting"
    STATES = (QUEUED, FILLING, READY, FAILED, EVICTING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    version = models.ForeignKey("datasets.DatasetVersion", models.CASCADE, related_name="caches")
    location = models.ForeignKey(CacheLocation, models.CASCADE, related_name="caches")
    state = models.CharField(max_length=8, default=QUEUED)
    # Why it failed.
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    is_pinned = models.BooleanField(default=False)
    # False: made for jobs that did not ask for a cache; removed once none of them is unfinished.
    is_kept = models.BooleanField(default=True)
    # Jobs that found it ready.
    hits = models.PositiveIntegerField(default=0)
    files_done = models.PositiveIntegerField(default=0)
    bytes_done = models.BigIntegerField(default=0)
    # Of this fill: contents that other caches of the location have are not moved.
    bytes_moved = models.BigIntegerField(default=0)
    # Of a fill under way: room that it was promised.
    reserved_bytes = models.BigIntegerField(default=0)
    bytes_per_second = models.BigIntegerField(default=0)
    # Its contents, each divided by the number of caches that share it.
    charged_bytes = models.BigIntegerField(default=0)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    # Of its state.
    changed_at = models.DateTimeField(default=timezone.now)
    ready_at = models.DateTimeField(null=True)
    # Last time that an unfinished job had it, or it was asked for.
    used_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["version", "location"], name="cache_once"),
            models.CheckConstraint(
                condition=Q(state__in=["queued", "filling", "ready", "failed", "evicting"]),
                name="cache_state_known",
            ),
        ]


class DatasetUse(models.Model):
    """A dataset that a job mounts. `version` None: it was deleted since."""

    job = models.ForeignKey("jobs.Job", models.CASCADE, related_name="dataset_uses")
    version = models.ForeignKey(
        "datasets.DatasetVersion", models.SET_NULL, null=True, related_name="job_uses"
    )
    # Of the version, for the time after it.
    dataset_name = models.CharField(max_length=120)
    number = models.PositiveIntegerField()
    # "": the whole version.
    subset = models.CharField(max_length=63, blank=True, default="")
    mount_path = models.CharField(max_length=4096)
    # Its cache is kept after the job.
    is_cached = models.BooleanField(default=False)
    # Where it was last brought for the job; None: the default of the job's cluster.
    location = models.ForeignKey(CacheLocation, models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "mount_path"], name="dataset_use_path")]

    def __str__(self) -> str:
        return version_name(self.dataset_name, self.number, self.subset)
