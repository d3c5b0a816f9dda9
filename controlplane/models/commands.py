"""Durable orders to an engine: written with the decision, carried out later, safe to repeat."""

from django.db import models
from django.utils import timezone


class Command(models.Model):
    """One effect outside the database. Names are derived from (job, attempt, rank), so a repeat is harmless."""

    START_POD, STOP_POD, FORGET_POD, FORGET_JOB = "start_pod", "stop_pod", "forget_pod", "forget_job"
    CHECK_CLUSTER, FORGET_PROJECT = "check_cluster", "forget_project"
    KINDS = (START_POD, STOP_POD, FORGET_POD, FORGET_JOB, CHECK_CLUSTER, FORGET_PROJECT)
    CLEANING_UP = (FORGET_JOB, FORGET_PROJECT)  # nobody orders these a second time
    MOST_TRIES = 5  # of what is bounded; what is not is told of from then on
    PENDING, CLAIMED, DONE, FAILED = "pending", "claimed", "done", "failed"
    STATES = (PENDING, CLAIMED, DONE, FAILED)

    kind = models.CharField(max_length=16)
    cluster = models.ForeignKey("controlplane.Cluster", models.CASCADE, related_name="commands")
    # whom it is about: forget_job the job's id, forget_project the project's name, check_cluster the cluster's
    pod_name = models.CharField(max_length=128)
    payload = models.JSONField(default=dict)
    state = models.CharField(max_length=8, default=PENDING)
    not_before = models.DateTimeField(default=timezone.now)
    tries = models.PositiveSmallIntegerField(default=0)
    claim_token = models.CharField(max_length=32, blank=True, default="")
    claim_expires_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [
            # the executor's only question; finished commands leave the index
            models.Index(
                fields=["not_before"],
                name="command_due",
                condition=models.Q(state__in=["pending", "claimed"]),
            ),
            models.Index(fields=["pod_name"], name="command_pod"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(
                    kind__in=[
                        "start_pod",
                        "stop_pod",
                        "forget_pod",
                        "forget_job",
                        "check_cluster",
                        "forget_project",
                    ]
                ),
                name="command_kind_known",
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "claimed", "done", "failed"]),
                name="command_state_known",
            ),
        ]
