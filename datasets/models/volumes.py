"""Volumes, the jobs that mount them, and their snapshots."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

CREATING, READY, FAILED, DELETING = "creating", "ready", "failed", "deleting"
PENDING = "pending"
ONE_JOB, MANY_JOBS = "ReadWriteOnce", "ReadWriteMany"
ACCESS_MODES = (ONE_JOB, MANY_JOBS)


class Volume(models.Model):
    """A directory that jobs of one project write to, and that outlives them."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="volumes")
    name = models.CharField(max_length=63)
    # A key of settings.STORAGE_CLASSES.
    storage_class = models.CharField(max_length=63)
    service_tier = models.CharField(max_length=63)
    size_bytes = models.BigIntegerField()
    access_mode = models.CharField(max_length=16, default=ONE_JOB)
    state = models.CharField(max_length=10, default=CREATING)
    # Why it is in this state; "" where the state says all.
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    # None: not measured yet.
    used_bytes = models.BigIntegerField(null=True)
    files = models.PositiveIntegerField(null=True)
    measured_at = models.DateTimeField(null=True)
    # The last measurement ended at its limit: it holds at least that much.
    is_measured_in_part = models.BooleanField(default=False)
    # What it was made of: {} or {"kind": "volume"|"snapshot", "id": ..., "name": ...}.
    origin = models.JSONField(default=dict)
    # Snapshots that a job's events made are removed beyond these; None: kept.
    keep_last = models.PositiveIntegerField(null=True)
    keep_days = models.PositiveIntegerField(null=True)
    # How often a snapshot is taken by the clock; None: never.
    snapshot_minutes = models.PositiveIntegerField(null=True)
    # When the next one is due; None without a schedule. Moved by conditional UPDATE: of two loops one takes it.
    next_snapshot_at = models.DateTimeField(null=True, db_index=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="volume_name")]

    def __str__(self) -> str:
        return self.name


class VolumeUse(models.Model):
    """A job that mounts a volume. While the job is unfinished, the volume cannot be deleted."""

    volume = models.ForeignKey(Volume, models.CASCADE, related_name="uses")
    job = models.ForeignKey("jobs.Job", models.CASCADE, related_name="volume_uses")
    mount_path = models.CharField(max_length=4096)
    is_read_only = models.BooleanField(default=False)
    # Events of the job that make a snapshot: success, preempt, epoch, best_metric.
    snapshot_on = models.JSONField(default=list)
    # The events are still to be watched for.
    is_watched = models.BooleanField(default=False)
    # The best value so far: {"name": "accuracy", "value": 0.93}.
    best = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["volume", "job"], name="volume_use_once")]
        indexes = [models.Index(fields=["job"], name="volume_use_watched", condition=Q(is_watched=True))]


class SnapshotNumber(models.Model):
    """The last number that a snapshot of a volume's name got; it outlives both, so that no number is used again."""

    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="snapshot_numbers")
    volume_name = models.CharField(max_length=63)
    last = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "volume_name"], name="snapshot_number_name")
        ]

    def __str__(self) -> str:
        return f"{self.volume_name}@{self.last}"


class StorageClassPlace(models.Model):
    """The directory that a storage class had when it was last configured, for volumes of one that is no more."""

    name = models.CharField(max_length=63, unique=True)
    directory = models.CharField(max_length=4096)
    # Its volumes are not directories of ours unless it is "folder".
    driver = models.CharField(max_length=16, default="folder")

    def __str__(self) -> str:
        return self.name


class Snapshot(models.Model):
    """A volume at one moment. It outlives the volume and the job."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="snapshots")
    volume = models.ForeignKey(Volume, models.SET_NULL, null=True, related_name="snapshots")
    volume_name = models.CharField(max_length=63)
    # Of the volume's name in its project; `data@3` is the third of `data`.
    number = models.PositiveIntegerField()
    storage_class = models.CharField(max_length=63)
    # Of the volume at that time; a restored one gets it.
    volume_bytes = models.BigIntegerField()
    state = models.CharField(max_length=10, default=PENDING)
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=1000, blank=True, default="")
    # request, or the event of the job.
    cause = models.CharField(max_length=16)
    # Which event of the job, so that none makes two: "epoch:1:7". "" for a request.
    mark = models.CharField(max_length=64, blank=True, default="")
    job = models.ForeignKey("jobs.Job", models.SET_NULL, null=True, related_name="snapshots")
    job_name = models.CharField(max_length=63, blank=True, default="")
    attempt = models.PositiveIntegerField(default=0)
    # The job's progress at that moment.
    progress = models.JSONField(default=dict)
    # idle, quiesced or crash; "" before it is ready.
    consistency = models.CharField(max_length=10, blank=True, default="")
    files = models.PositiveIntegerField(null=True)
    size_bytes = models.BigIntegerField(null=True)
    # Of the files that no earlier snapshot shares.
    new_bytes = models.BigIntegerField(null=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)
    ready_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "volume_name", "number"], name="snapshot_number"),
            models.UniqueConstraint(
                fields=["volume", "job", "mark"], condition=~Q(mark=""), name="snapshot_once"
            ),
        ]
        indexes = [models.Index(fields=["volume", "-number"], name="snapshot_of_volume")]

    def __str__(self) -> str:
        return f"{self.volume_name}@{self.number}"
