"""What a handler receives: its command, with methods to report progress and, for long work, a claim that is
renewed."""

import threading
import time
from datetime import timedelta
from functools import cached_property

from django.db import DatabaseError, connection
from django.db.models.functions import Now

from controlplane.commands.errors import Cancelled, GivesWay
from controlplane.commands.outcomes import WAITS_SINCE, due
from controlplane.commands.registry import kinds_on, task_queues
from controlplane.models import Cluster, Command

# Several renewals may fail before the claim expires and another worker takes the command.
CLAIM_SECONDS = 30
# The interval of claim renewals; also the longest delay until a handler that reports nothing notices a
# cancellation.
RENEW_SECONDS = 5.0
# The shortest time between two writes of progress, because handlers may report any number of times per
# second.
REPORT_SECONDS = 1.0
# A command that is due for longer than this waits for a thread, not only for its message.
OVERDUE_SECONDS = 1.0


class CommandRun:
    """One try at a command, passed to its handler. As a context manager it renews the claim `token` in the
    background. `cluster`: the command's cluster if the caller has read it."""

    def __init__(self, command: Command, token: str, cluster: Cluster | None = None) -> None:
        self.command, self._token = command, token
        self._is_lost = threading.Event()
        self._ended = threading.Event()
        self._reported_at = float("-inf")
        self._waits_since: float = command.payload.get(WAITS_SINCE) or time.time()
        if cluster is not None:
            self.cluster = cluster

    @cached_property
    def cluster(self) -> Cluster:
        """Return the cluster that the command concerns. Raise LookupError if it concerns none."""
        return Cluster.objects.get(pk=self.command.required_cluster_id)

    def report(self, done: int, total: int | None = None, message: str = "") -> None:
        """Store the progress in units of the handler's choice. `total` None: unknown. Writes at most once per second,
        except when `done` equals `total`. Raise Cancelled if the command was cancelled or another worker has taken
        it."""
        self.raise_if_cancelled()
        # The last report is always written; otherwise the stored progress would stay below the total.
        if time.monotonic() - self._reported_at < REPORT_SECONDS and done != total:
            return
        self._reported_at = time.monotonic()
        if not self._renew(progress={"done": done, "total": total, "message": message}):
            raise Cancelled

    def raise_if_cancelled(self) -> None:
        """Raise Cancelled if the last claim renewal (every RENEW_SECONDS) found the command cancelled or taken by
        another worker, or if the claim expired while the database did not answer. Costs no query."""
        if self._is_lost.is_set():
            raise Cancelled

    @property
    def is_repeated(self) -> bool:
        """Return whether an earlier try at this command may have had effects."""
        return self.command.tries > 1 or WAITS_SINCE in self.command.payload

    @property
    def waited_seconds(self) -> float:
        """Return the time since the first of the tries at this command that gave way began, 0 if none did."""
        return max(0.0, time.time() - self._waits_since) if WAITS_SINCE in self.command.payload else 0.0

    def give_way(self) -> None:
        """Raise GivesWay if another command waits for a thread; this one is tried again after GIVE_WAY_SECONDS. For
        handlers that wait for something outside and whose next try goes on waiting for the same: else a few of them
        would keep all threads of a worker. Costs a query."""
        overdue = due(OVERDUE_SECONDS)
        if Command.objects.filter(overdue, kind__in=kinds_on(*task_queues())).exists():
            raise GivesWay(self._waits_since)

    def __enter__(self) -> "CommandRun":
        """Renew the claim in the background until the block ends."""
        self._keeper = threading.Thread(target=self._keep, name=f"claim-{self.command.pk}", daemon=True)
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._keeper.join()

    def _keep(self) -> None:
        expires_at = time.monotonic() + CLAIM_SECONDS
        try:
            while not self._ended.wait(RENEW_SECONDS):
                # Taken before the query: the database's clock starts the new claim no earlier.
                asked_at = time.monotonic()
                try:
                    if not self._renew():
                        return
                    expires_at = asked_at + CLAIM_SECONDS
                except DatabaseError:
                    # The database is busy or restarting. The claim remains valid until it expires; then another
                    # worker may take it.
                    connection.close()
                    if time.monotonic() >= expires_at:
                        self._is_lost.set()
                        return
        finally:
            connection.close()

    def _renew(self, **values: object) -> bool:
        """Extend the claim and write `values` to the command's row. Return False if the claim is lost, now or at an
        earlier call."""
        ours = Command.objects.claimed_by(self._token).filter(pk=self.command.pk)
        expiry = Now() + timedelta(seconds=CLAIM_SECONDS)
        if not ours.update(claim_expires_at=expiry, **values):
            self._is_lost.set()
        return not self._is_lost.is_set()
