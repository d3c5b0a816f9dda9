"""Commands: durable requests for work outside the database, such as starting a pod. They are written in the
transaction of the decision, executed later, and safe to repeat."""

from collections.abc import Iterable

from django.db import models, transaction
from django.utils import timezone


class CommandQuerySet(models.QuerySet["Command"]):
    def about(self, subject_kind: str, subject_id: object) -> "CommandQuerySet":
        """Return the commands that concern one object, for example ("project", its name)."""
        return self.filter(subject_kind=subject_kind, subject_id=str(subject_id))

    def unfinished(self) -> "CommandQuerySet":
        """Return the commands that are pending or claimed by a worker."""
        # With the condition of the index, word for word: SQLite does not compare it with the values of parameters.
        return self.filter(finished_at=None, state__in=Command.UNFINISHED)

    def claimed_by(self, token: str) -> "CommandQuerySet":
        """Return the commands that this claim token holds, even if the claim has expired, as long as no other took
        them."""
        return self.filter(state=Command.CLAIMED, claim_token=token)

    def of_kinds(self, kinds: Iterable[str]) -> "CommandQuerySet":
        return self.filter(kind__in=list(kinds))

    def create_unless_unfinished(self, kind: str, subject_kind: str, subject_id: str) -> None:
        """Create a command, unless the subject has an unfinished one of this kind. Deletes the subject's finished
        ones of this kind."""
        with transaction.atomic():
            commands = self.of_kinds([kind]).about(subject_kind, subject_id)
            if not commands.unfinished().exists():
                commands.delete()
                self.create(kind=kind, subject_kind=subject_kind, subject_id=subject_id)

    def cancel(self) -> int:
        """Cancel the unfinished commands; return how many. A running handler gets Cancelled from its CommandRun
        within seconds."""
        return self.unfinished().update(state=Command.CANCELLED, finished_at=timezone.now())


class Command(models.Model):
    """One effect outside the database. `kind` names its handler (controlplane.commands.registry); `subject_kind` and
    `subject_id` name the object it concerns. A handler may run more than once for one command."""

    # The control plane's own kinds.
    CHECK_CLUSTER, FORGET_PROJECT = "check_cluster", "forget_project"
    MOST_TRIES = 5
    PENDING, CLAIMED, DONE, FAILED, CANCELLED = "pending", "claimed", "done", "failed", "cancelled"
    UNFINISHED, FINISHED = (PENDING, CLAIMED), (DONE, FAILED, CANCELLED)

    kind = models.CharField(max_length=64)
    # None: it concerns no cluster. Else it is executed only while that cluster is attached or being cleaned up.
    cluster = models.ForeignKey("controlplane.Cluster", models.CASCADE, related_name="commands", null=True)
    subject_kind = models.CharField(max_length=32)
    subject_id = models.CharField(max_length=128)
    payload = models.JSONField(default=dict)
    state = models.CharField(max_length=9, default=PENDING)
    not_before = models.DateTimeField(default=timezone.now)
    tries = models.PositiveSmallIntegerField(default=0)
    claim_token = models.CharField(max_length=32, blank=True, default="")
    claim_expires_at = models.DateTimeField(null=True)
    # When its task was last sent; None: it has to be sent. Unused for commands on the loop's own threads.
    sent_at = models.DateTimeField(null=True)
    # The handler's last progress report, {"done": 3, "total": 10, "message": "..."}; {} before the first.
    progress = models.JSONField(default=dict)
    error = models.CharField(max_length=500, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    # Set with each of the states FINISHED.
    finished_at = models.DateTimeField(null=True)

    objects = CommandQuerySet.as_manager()

    class Meta:
        indexes = [
            # For the queries of due and of unfinished commands; finished commands leave the index.
            models.Index(
                fields=["not_before"], name="command_open", condition=models.Q(finished_at__isnull=True)
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
        """Return the id of the command's cluster. Raise LookupError if it concerns none."""
        if self.cluster_id is None:
            raise LookupError(f"The command {self.pk}, {self.kind}, concerns no cluster.")
        return self.cluster_id
