"""Models of volumes, the jobs that mount them, and their snapshots."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

CREATING, READY, FAILED, DELETING = "creating", "ready", "failed", "deleting"
PENDING = "pending"
ONE_JOB, MANY_JOBS = "ReadWriteOnce", "ReadWriteMany"
ACCESS_MODES = (ONE_JOB, MANY_JOBS)
# Length of the column with the marks of a snapshot's events.
LONGEST_MARK = 255


class Volume(models.Model):
    """A directory to which jobs of one project write and which outlives them."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="volumes")
    name = models.CharField(max_length=63)
    # A key of settings.STORAGE_CLASSES.
    storage_class = models.CharField(max_length=63)
    service_tier = models.CharField(max_length=63)
    size_bytes = models.BigIntegerField()
    access_mode = models.CharField(max_length=16, default=ONE_JOB)
    state = models.CharField(max_length=10, default=CREATING)
    # The reason for the state; "" if the state needs none.
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    # None: not measured yet.
    used_bytes = models.BigIntegerField(null=True)
    files = models.PositiveIntegerField(null=True)
    measured_at = models.DateTimeField(null=True)
    # The last measurement reached its limit: the volume holds at least this much.
    is_measured_in_part = models.BooleanField(default=False)
    # The source: {} or {"kind": "volume"|"snapshot", "id": ..., "name": ...}.
    origin = models.JSONField(default=dict)
    # Retention: snapshots of job events beyond these are deleted; None: all are kept.
    keep_last = models.PositiveIntegerField(null=True)
    keep_days = models.PositiveIntegerField(null=True)
    # Interval of scheduled snapshots in minutes; None: no schedule.
    snapshot_minutes = models.PositiveIntegerField(null=True)
    # When the next one is due; None without a schedule. Changed by conditional UPDATE: of two loops one takes
    # it.
    next_snapshot_at = models.DateTimeField(null=True, db_index=True)
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["project", "name"], name="volume_name")]

    def __str__(self) -> str:
        return self.name


class VolumeUse(models.Model):
    """A mount of a volume by a job. While the job is unfinished, the volume cannot be deleted."""

    volume = models.ForeignKey(Volume, models.CASCADE, related_name="uses")
    job = models.ForeignKey("jobs.Job", models.CASCADE, related_name="volume_uses")
    mount_path = models.CharField(max_length=4096)
    is_read_only = models.BooleanField(default=False)
    # Events of the job that trigger a snapshot: success, preempt, epoch, best_metric.
    snapshot_on = models.JSONField(default=list)
    # Whether the job's events are still watched; false after its end, so that later runs skip it.
    is_watched = models.BooleanField(default=False)
    # The best metric so far: {"name": "accuracy", "value": 0.93}.
    best = models.JSONField(default=dict)
    # Marks of the job's present events that have or had a snapshot: one that was deleted is not taken again.
    written = models.JSONField(default=list)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["volume", "job"], name="volume_use_once")]
        indexes = [models.Index(fields=["job"], name="volume_use_watched", condition=Q(is_watched=True))]


class SnapshotNumber(models.Model):
    """The last snapshot number of a volume name. Outlives volume and snapshots, so that numbers are never
    reused."""

    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="snapshot_numbers")
    volume_name = models.CharField(max_length=63)
    last = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "volume_name"], name="snapshot_number_name")
        ]

    def __str__(self) -> str:
        return f"{self.volume_name}@{self.last}"


class KnownStorageClass(models.Model):
    """The directory of a storage class when it was last configured, to find its volumes after the class is
    removed."""

    name = models.CharField(max_length=63, unique=True)
    directory = models.CharField(max_length=4096)
    # For drivers other than "folder" the volumes are not directories that we manage.
    driver = models.CharField(max_length=16, default="folder")

    def __str__(self) -> str:
        return self.name


class Snapshot(models.Model):
    """The state of a volume at one moment. Outlives the volume, and the job whose event caused it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="snapshots")
    volume = models.ForeignKey(Volume, models.SET_NULL, null=True, related_name="snapshots")
    volume_name = models.CharField(max_length=63)
    # Counts the volume's snapshots: `data@3` is the third one of `data`.
    number = models.PositiveIntegerField()
    storage_class = models.CharField(max_length=63)
    # The volume's size then; a volume restored from it gets the same.
    volume_bytes = models.BigIntegerField()
    state = models.CharField(max_length=10, default=PENDING)
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=1000, blank=True, default="")
    # Identifies the job's events, so that each triggers one snapshot only: "best:0.5 epoch:1:7". "" for a request.
    mark = models.CharField(max_length=LONGEST_MARK, blank=True, default="")
    job = models.ForeignKey("jobs.Job", models.SET_NULL, null=True, related_name="snapshots")
    job_name = models.CharField(max_length=63, blank=True, default="")
    attempt = models.PositiveIntegerField(default=0)
    # The job's progress at that time.
    progress = models.JSONField(default=dict)
    # idle, quiesced or crash; "" until the snapshot is ready.
    consistency = models.CharField(max_length=10, blank=True, default="")
    files = models.PositiveIntegerField(null=True)
    size_bytes = models.BigIntegerField(null=True)
    # Bytes of files that no earlier snapshot shares.
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

    @property
    def causes(self) -> list[str]:
        """What the snapshot was taken for: "request", "schedule", or one or several events of the job, the most
        important one first."""
        return [row.cause for row in self.cause_rows.all()]


class SnapshotCause(models.Model):
    """One of the causes of a snapshot. The ids of a snapshot's rows ascend in the order of importance."""

    snapshot = models.ForeignKey(Snapshot, models.CASCADE, related_name="cause_rows")
    cause = models.CharField(max_length=40)

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["snapshot", "cause"], name="snapshot_cause_once")]
