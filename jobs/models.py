"""Models of jobs, their attempts, pods, and the pods' shares of devices."""

import uuid

from django.db import models
from django.db.models import Q
from django.utils import timezone

from jobs.lifecycle import FINAL_STATES, STATES


class JobQuerySet(models.QuerySet["Job"]):
    def unfinished(self) -> "JobQuerySet":
        """Return the jobs in a state that is not final."""
        return self.exclude(state__in=FINAL_STATES)


class Job(models.Model):
    """A submitted job. `spec`: the request with defaults filled in; the other columns serve lists and the
    loop. `state` changes only as jobs/lifecycle.py allows."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    project = models.ForeignKey("controlplane.Project", models.CASCADE, related_name="jobs")
    user = models.ForeignKey("controlplane.User", models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=63)
    kind = models.CharField(max_length=16)
    spec = models.JSONField()
    labels = models.JSONField(default=dict)
    priority = models.PositiveSmallIntegerField(default=50)
    is_preemptible = models.BooleanField(default=True)
    milli_gpus = models.PositiveIntegerField(default=0)  # per pod
    # Per pod; an alternative to milli_gpus.
    gpu_memory_mib = models.PositiveIntegerField(null=True)
    max_runtime_seconds = models.PositiveIntegerField(null=True)
    pods_wanted = models.PositiveIntegerField(default=1)
    # Of the latest attempt; an elastic one may have fewer than wanted. db_default: older versions insert rows
    # without this column during an upgrade.
    pods_started = models.PositiveIntegerField(default=0, db_default=0)
    # Order of first submission; kept when the job is preempted.
    submit_rank = models.BigIntegerField(db_index=True)
    created_at = models.DateTimeField(default=timezone.now)

    state = models.CharField(max_length=10, default="queued")
    reason = models.CharField(max_length=40, default="just_submitted")
    message = models.CharField(max_length=500, blank=True, default="")
    details = models.JSONField(default=dict)
    # The state that a stopping job reaches once its last pod is proven gone.
    next_state = models.CharField(max_length=10, blank=True, default="")
    # Set by a user's deletion: the row is deleted as soon as the job's pods are gone.
    is_deleted = models.BooleanField(default=False)

    attempt = models.PositiveIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0)
    not_before = models.DateTimeField(null=True)
    queued_at = models.DateTimeField(default=timezone.now)
    queue_position = models.PositiveIntegerField(null=True)
    allocated_milli = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    # When a finished job is deleted automatically.
    expires_at = models.DateTimeField(null=True)
    exit_code = models.IntegerField(null=True)
    progress = models.JSONField(default=dict)
    gpu_utilization = models.FloatField(null=True)  # 0..1
    # When the job was last seen to use a GPU or report progress; the idle limit counts from it.
    active_at = models.DateTimeField(null=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project", "name"], condition=~Q(state__in=FINAL_STATES), name="job_name_unfinished"
            ),
            models.CheckConstraint(condition=Q(state__in=STATES), name="job_state_known"),
        ]
        indexes = [
            models.Index(fields=["project", "-submit_rank"], name="job_project_newest"),
            models.Index(fields=["state", "-submit_rank"], name="job_state_newest"),
            # Partial index for the loop, which reads unfinished jobs: stays small however long the history
            # is.
            models.Index(fields=["submit_rank"], name="job_unfinished", condition=~Q(state__in=FINAL_STATES)),
            models.Index(fields=["expires_at"], name="job_expiring", condition=Q(expires_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_final(self) -> bool:
        return self.state in FINAL_STATES


class Attempt(models.Model):
    """One start of a job, with its outcome."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=16, blank=True, default="")
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    exit_code = models.IntegerField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "number"], name="attempt_number")]


class StartEstimate(models.Model):
    """The first estimated range in which a waiting job starts; each wait has at most one. `attempt`: the number
    of the job's last attempt before that wait."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="start_estimates")
    attempt = models.PositiveIntegerField()
    shown_at = models.DateTimeField(default=timezone.now, db_index=True)
    earliest = models.DateTimeField()
    latest = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "attempt"], name="estimate_of_wait")]


class SwitchCost(models.Model):
    """What a change of the members of an elastic job cost, as its workers measured it; None if they did not."""

    pause_seconds = models.FloatField(null=True)
    lost_steps = models.PositiveIntegerField(null=True)
    repeated_steps = models.PositiveIntegerField(null=True)

    class Meta:
        abstract = True


class ScaleOperation(SwitchCost):
    """A change of the number of workers of an elastic job: requester, cause and outcome.

    `joining` and `leaving`: ranks. `generation`: the first with the new size, None before it is published.
    The cost is measured at the switch; None for a queued job.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    job = models.ForeignKey(Job, models.CASCADE, related_name="scale_operations")
    requested_by = models.CharField(max_length=150)
    from_workers = models.PositiveIntegerField()
    to_workers = models.PositiveIntegerField()
    state = models.CharField(max_length=12)
    cause = models.CharField(max_length=12, default="user", db_default="user")
    message = models.CharField(max_length=500, blank=True, default="", db_default="")
    attempt = models.PositiveIntegerField(default=0, db_default=0)
    joining = models.JSONField(default=list, db_default=[])
    leaving = models.JSONField(default=list, db_default=[])
    generation = models.PositiveIntegerField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    deadline = models.DateTimeField(null=True)
    published_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["job"], condition=Q(state__in=("pending", "running")), name="scale_one_open"
            )
        ]
        indexes = [models.Index(fields=["job", "-created_at"], name="scale_of_job")]


class Generation(SwitchCost):
    """The members of an elastic attempt from one time on, and the cost of the change to them. `members`: rank
    and address of each, in the order of their new ranks. `step`: None until the workers have switched.
    `epochs_exact`: how many of the `epochs_done` completed so far used every sample exactly once."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="generations")
    number = models.PositiveIntegerField()
    cause = models.CharField(max_length=12)
    members = models.JSONField()
    created_at = models.DateTimeField(default=timezone.now)
    switched_at = models.DateTimeField(null=True)
    step = models.PositiveBigIntegerField(null=True)
    interrupted_steps = models.PositiveIntegerField(null=True)
    epochs_done = models.PositiveIntegerField(default=0)
    epochs_exact = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "number"], name="generation_number")]


class Pod(models.Model):
    """One process group of an attempt. Holds its devices until `released_at`, when it is proven gone."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="pods")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="pods")
    node = models.ForeignKey("controlplane.Node", models.PROTECT, related_name="pods")
    rank = models.PositiveIntegerField()
    role = models.CharField(max_length=16, default="worker")
    name = models.CharField(max_length=128, unique=True)
    state = models.CharField(max_length=10, default="pending")
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    exit_code = models.IntegerField(null=True)
    milli_cpus = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveIntegerField(default=0)
    # Declared port -> [host, port].
    ports = models.JSONField(default=dict)
    # Byte offset up to which the log was read for progress lines.
    log_offset = models.BigIntegerField(default=0)
    # Fraction 0 to 1, from the pod's progress lines.
    gpu_utilization = models.FloatField(null=True)
    gpu_memory_mib = models.PositiveIntegerField(null=True)
    # Seconds per step of an elastic worker, without the time spent waiting for others.
    step_seconds = models.FloatField(null=True)
    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "rank"], name="pod_rank"),
            # At most one unreleased pod per (job, rank): a replacement waits until its predecessor is proven
            # gone.
            models.UniqueConstraint(
                fields=["job", "rank"], condition=Q(released_at=None), name="pod_one_live_rank"
            ),
        ]
        indexes = [models.Index(fields=["node"], name="pod_unreleased", condition=Q(released_at=None))]


class Allocation(models.Model):
    """A pod's share of a device, in milli-GPUs, until released. Triggers keep Device.allocated_milli equal to the sum
    of unreleased rows, so its check refuses a double booking by any writer."""

    pod = models.ForeignKey(Pod, models.CASCADE, related_name="allocations")
    device = models.ForeignKey("controlplane.Device", models.PROTECT, related_name="allocations")
    milli_gpus = models.PositiveSmallIntegerField()
    created_at = models.DateTimeField(default=timezone.now)
    released_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pod", "device"], name="allocation_once"),
            models.UniqueConstraint(
                fields=["device"],
                condition=Q(released_at=None, milli_gpus=1000),
                name="allocation_whole_device",
            ),
            models.CheckConstraint(
                condition=Q(milli_gpus__gte=1, milli_gpus__lte=1000), name="allocation_share"
            ),
        ]
