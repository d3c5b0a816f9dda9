"""Models of caches, of cache locations, and of the jobs that use them."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

from datasets.models.datasets import version_name


class CacheLocation(models.Model):
    """A directory near a cluster's GPUs that holds caches, or a project's volume in its cluster.

    In a cluster with volumes, a location without a project holds no caches: it defines which nodes the volumes with
    this `parent` serve. Each project has one such volume.
    """

    MANY_NODES, ONE_NODE = "ReadWriteMany", "ReadWriteOnce"

    # The default location, named as the cluster or as cluster.project, is created on first use. Admins create
    # others for some of the cluster's nodes.
    cluster = models.ForeignKey("controlplane.Cluster", models.CASCADE, related_name="cache_locations")
    # The project whose namespace has the volume; None for a directory, which serves all projects.
    project = models.ForeignKey("controlplane.Project", models.CASCADE, null=True, related_name="+")
    # For a volume: the location that it belongs to, None for the default one.
    parent = models.ForeignKey("self", models.CASCADE, null=True, related_name="volumes")
    # The claims of volumes at this location. "": the storage class of the cluster's settings.
    storage_class = models.CharField(max_length=253, blank=True, default="", db_default="")
    access_mode = models.CharField(max_length=20, default=MANY_NODES, db_default=MANY_NODES)
    # For a volume: the trees that the last pod reported, because only pods can read it.
    kept_keys = models.JSONField(default=list)
    name = models.CharField(max_length=130, unique=True)
    # The default serves the nodes that no other location of the cluster serves.
    is_default = models.BooleanField(default=True, db_default=True)
    # Serves nodes in one of these pools, and nodes with all of these labels.
    node_pools = models.JSONField(default=list)
    node_labels = models.JSONField(default=dict)
    # "": below TRAINYARD_CACHE_DIR.
    directory = models.CharField(max_length=500, blank=True, default="")
    # None: limited only by the disk or the volume's size.
    room_bytes = models.BigIntegerField(null=True)
    # Caches that no job has used for this many days are removed.
    unused_days = models.PositiveIntegerField(default=1)
    # Bytes of the contents of all caches, each counted once.
    used_bytes = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["cluster"],
                condition=Q(project=None, is_default=True),
                name="cache_location_of_cluster",
            ),
            models.UniqueConstraint(
                fields=["cluster", "project"], condition=Q(is_default=True), name="cache_location_of_project"
            ),
            models.UniqueConstraint(fields=["parent", "project"], name="cache_volume_of_project"),
        ]

    def __str__(self) -> str:
        return self.name


class Cache(models.Model):
    """A version at a cache location. `state` changes by conditional UPDATE: queued, filling, ready, failed,
    evicting."""

    QUEUED, FILLING, READY, FAILED, EVICTING = "queued", "filling", "ready", "failed", "evicting"
    STATES = (QUEUED, FILLING, READY, FAILED, EVICTING)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    version = models.ForeignKey("datasets.DatasetVersion", models.CASCADE, related_name="caches")
    location = models.ForeignKey(CacheLocation, models.CASCADE, related_name="caches")
    state = models.CharField(max_length=8, default=QUEUED)
    # Reason of a failure.
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    is_pinned = models.BooleanField(default=False)
    # False: made for jobs that did not request a kept cache; removed when none of them is unfinished.
    is_kept = models.BooleanField(default=True)
    # Number of jobs that found it ready.
    hits = models.PositiveIntegerField(default=0)
    files_done = models.PositiveIntegerField(default=0)
    bytes_done = models.BigIntegerField(default=0)
    # Bytes copied by this fill; contents that other caches of the location have are not copied.
    bytes_moved = models.BigIntegerField(default=0)
    # How the newest fill that brought contents did: storage.contents.Sharing. "": none has brought any.
    sharing = models.CharField(max_length=9, blank=True, default="", db_default="")
    # Bytes reserved for a fill in progress, so that no other fill counts on them.
    reserved_bytes = models.BigIntegerField(default=0)
    bytes_per_second = models.BigIntegerField(default=0)
    # Bytes of its contents, each divided by the number of caches that share it.
    charged_bytes = models.BigIntegerField(default=0)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    # When the state changed last.
    changed_at = models.DateTimeField(default=timezone.now)
    ready_at = models.DateTimeField(null=True)
    # When an unfinished job last mounted it, or a user requested it: from then on the `unused_days` of its location
    # count.
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
    """A dataset that a job mounts. `version`: None if the version was deleted afterwards."""

    job = models.ForeignKey("jobs.Job", models.CASCADE, related_name="dataset_uses")
    version = models.ForeignKey(
        "datasets.DatasetVersion", models.SET_NULL, null=True, related_name="job_uses"
    )
    # Name and number as in the job's spec; they stay when the version is deleted.
    dataset_name = models.CharField(max_length=120)
    number = models.PositiveIntegerField()
    # "": the whole version.
    subset = models.CharField(max_length=63, blank=True, default="")
    mount_path = models.CharField(max_length=4096)
    # Keep the cache after the job.
    is_cached = models.BooleanField(default=False)
    # The location to which the data was last sent for the job; None: the default of the job's cluster.
    location = models.ForeignKey(CacheLocation, models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "mount_path"], name="dataset_use_path")]

    def __str__(self) -> str:
        return version_name(self.dataset_name, self.number, self.subset)
