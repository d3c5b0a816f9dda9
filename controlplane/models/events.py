"""The numbered, append-only event log. Clients remember the last number and read the events after it."""

from collections.abc import Iterable

from django.db import connection, models, transaction
from django.utils import timezone

from controlplane.models.bulk_insert import insert_rows

SYSTEM = "system"
# Name of the counter that numbers events, and the channel that PostgreSQL notifies when it is advanced.
EVENT, EVENTS_CHANNEL = "event", "trainyard_events"


class CounterManager(models.Manager["Counter"]):
    def advance(self, name: str, by: int) -> int:
        """Add `by` to a counter and return its new value. Locks the counter's row until the transaction ends, so call
        it last."""
        table = connection.ops.quote_name(self.model._meta.db_table)
        with connection.cursor() as cursor:
            # Notified at the commit. In the same statement, which spares a round trip; who writes events waits for
            # others that do anyway, as notifying transactions do.
            is_notified = name == EVENT and connection.vendor == "postgresql"
            notified = f", pg_notify('{EVENTS_CHANNEL}', '')" if is_notified else ""
            cursor.execute(
                f"UPDATE {table} SET value = value + %s WHERE name = %s RETURNING value{notified}",  # noqa: S608  # our own table
                (by, name),
            )
            return int(cursor.fetchone()[0])


class Counter(models.Model):
    """A named counter of this installation. `event` and `submission` number events and jobs: they only grow and are
    advanced last in a transaction, so that numbers follow the order of commits. `installation` is a random id, drawn
    once."""

    name = models.CharField(max_length=32, primary_key=True)
    value = models.BigIntegerField(default=0)

    objects = CounterManager()


class EventManager(models.Manager["Event"]):
    """Writes and reads events. Numbers follow the order of commits, so that a reader of `seq > n` misses none
    that is committed later."""

    def append(self, events: Iterable["Event | None"]) -> int:
        """Write events, ignoring None, with the next numbers; return the newest event's number. Call it last in a
        transaction: it locks the counter until the commit, so that numbers follow the order of commits."""
        written = [event for event in events if event is not None]
        if not written:
            return self.last_seq()
        # Without a transaction, a reader could see the number before the row.
        with transaction.atomic(savepoint=False):
            last = Counter.objects.advance(EVENT, len(written))
            for offset, event in enumerate(reversed(written)):
                event.seq = last - offset
            insert_rows(written)
        return last

    def last_seq(self) -> int:
        """Return the number of the newest event; 0 if there is none."""
        return Counter.objects.values_list("value", flat=True).get(name=EVENT)

    def after(self, seq: int, limit: int) -> Iterable["Event"]:
        """Return up to `limit` events numbered above `seq`, oldest first."""
        return self.filter(seq__gt=seq).order_by("seq")[:limit]


class Event(models.Model):
    """Something that happened. `seq`: its number; `kind`: past tense, such as `job.submitted` or
    `telemetry.sampled`."""

    seq = models.BigIntegerField(primary_key=True)
    at = models.DateTimeField(default=timezone.now, db_index=True)
    kind = models.CharField(max_length=40)
    # Plain ids instead of foreign keys, because an event outlives its subject.
    project_id = models.BigIntegerField(null=True)
    job_id = models.UUIDField(null=True)
    node_id = models.BigIntegerField(null=True)
    actor = models.CharField(max_length=150, default=SYSTEM)
    reason = models.CharField(max_length=40, blank=True, default="")
    message = models.CharField(max_length=500, blank=True, default="")
    data = models.JSONField(default=dict)

    objects = EventManager()

    class Meta:
        indexes = [
            models.Index(fields=["job_id", "seq"], name="event_job"),
            models.Index(fields=["project_id", "seq"], name="event_project"),
        ]
