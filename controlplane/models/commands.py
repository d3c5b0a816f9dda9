"""Durable requests for an effect outside the database: written with the decision, carried out later, safe to repeat."""

from collections.abc import Iterable

from django.db import models
from django.utils import timezone


class CommandQuerySet(models.QuerySet["Command"]):
    """Commands by what they are about."""

    def about(self, subject_kind: str, subject_id: object) -> "CommandQuerySet":
        """Return the commands of one subject."""
        return self.filter(subject_kind=subject_kind, subject_id=str(subject_id))

    def unfinished(self) -> "CommandQuerySet":
        """Return the commands that are still to be carried out, or are being carried out."""
        return self.filter(state__in=Command.UNFINISHED)

    def of_kinds(self, kinds: Iterable[str]) -> "CommandQuerySet":
        """Return the commands of these kinds."""
        return self.filter(kind__in=list(kinds))

    def cancel(self) -> int:
        """Cancel those that have not finished and return how many that were. A handler at work on one gets Cancelled
        from its next report, at the latest after its claim is renewed."""
        return self.unfinished().update(state=Command.CANCELLED, finished_at=timezone.now())


class Command(models.Model):
    """One effect outside the database. Its kind names the handler that carries it out (controlplane.commands.registry);
    its subject is what it is about. A handler must bear being run twice for one command."""

    # The control plane's own kinds.
    CHECK_CLUSTER, FORGET_PROJECT = "check_cluster", "forget_project"
    MOST_TRIES = 5
    PENDING, CLAIMED, DONE, FAILED, CANCELLED = "pending", "claimed", "done", "failed", "cancelled"
    UNFINISHED, FINISHED = (PENDING, CLAIMED), (DONE, FAILED, CANCELLED)

    kind = models.CharField(max_length=64)
    # None: the command concerns no cluster; else it is carried out while that cluster is attached or being cleaned up
    cluster = models.ForeignKey("controlplane.Cluster", models.CASCADE, related_name="commands", null=True)
    subject_kind = models.CharField(max_length=32)
    subject_id = models.CharField(max_length=128)
    payload = models.JSONField(default=dict)
    state = models.CharField(max_length=9, default=PENDING)
    not_before = models.DateTimeField(default=timezone.now)
    tries = models.PositiveSmallIntegerField(default=0)
    claim_token = models.CharField(max_length=32, blank=True, default="")
    claim_expires_at = models.DateTimeField(null=True)
    # when its task was last published; None: it is to be published. Unused where the loop's own threads carry it out.
    sent_at = models.DateTimeField(null=True)
    # {"done": 3, "total": 10, "message": "..."} as its handler reported last; {} before
    progress = models.JSONField(default=dict)
    error = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    objects = CommandQuerySet.as_manager()

    class Meta:
        indexes = [
            # the executor's only question; finished commands leave the index
            models.Index(
                fields=["not_before"],
                name="command_due",
                condition=models.Q(state__in=["pending", "claimed"]),
            ),
            models.Index(fields=["subject_id", "kind"], name="command_subject"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=["pending", "claimed", "done", "failed", "cancelled"]),
                name="command_state_known",
            ),
        ]

    @property
    def required_cluster_id(self) -> int:
        """Return the id of the command's cluster. Raises LookupError without one."""
        if self.cluster_id is None:
            raise LookupError(f"The command {self.pk}, {self.kind}, concerns no cluster.")
        return self.cluster_id
