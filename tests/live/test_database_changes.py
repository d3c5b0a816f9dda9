"""PostgreSQL notifies the hub of events, and without notifications the hub asks for them."""

from collections.abc import Iterator
from select import select

import pytest
from django.db import connection

from controlplane.access import SYSTEM
from controlplane.live import database_changes
from controlplane.live.database_changes import NotifiedChanges
from controlplane.models import Event
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif("connection.vendor != 'postgresql'", reason="SQLite counts commits instead.")


@pytest.fixture
def changes(live_db: None) -> Iterator[NotifiedChanges]:
    """Fixture: changes that are announced, with what was committed before already read."""
    changes = NotifiedChanges()
    assert changes.has_any()
    changes.prepare()
    settle(changes)
    yield changes
    changes.close()


def settle(changes: NotifiedChanges) -> None:
    wait_until(lambda: not changes.has_any(), what="quiet")


def write_event() -> None:
    Event.objects.append([Event(kind="job.submitted", actor=SYSTEM.name)])


def test_an_event_is_announced_once(changes: NotifiedChanges):
    assert not changes.has_any()
    write_event()
    wait_until(changes.has_any, what="the notification")
    assert not changes.has_any()
    changes.forget()
    assert changes.has_any()
    assert not changes.has_any()


def test_writes_without_events_are_not_announced(changes: NotifiedChanges):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE controlplane_counter SET value = value WHERE name = 'submission'")
    write_event()
    wait_until(changes.has_any, what="the notification")
    assert not changes.has_any()


def test_after_a_lost_connection_everything_counts_as_changed_until_it_is_back(changes: NotifiedChanges):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [changes._listening.info.backend_pid])
    wait_until(lambda: changes._listening is None or not changes.has_any(), what="the end")
    wait_until(changes.has_any, what="the loss")
    assert all(changes.has_any() for _ in range(3))
    changes.prepare()
    settle(changes)
    write_event()
    wait_until(changes.has_any, what="the notification")


def test_where_notifications_do_not_arrive_everything_counts_as_changed(
    live_db: None, monkeypatch: pytest.MonkeyPatch
):
    """As behind a pooler that gives each transaction another session."""
    monkeypatch.setattr(database_changes, "ECHO_SECONDS", 0.01)
    monkeypatch.setattr(database_changes, "EVENTS_CHANNEL", "another")
    monkeypatch.setattr(NotifiedChanges, "_is_echoed", lambda _changes: False)
    changes = NotifiedChanges()
    changes.prepare()
    assert changes.has_any()
    assert changes.has_any()
    monkeypatch.undo()
    changes.prepare()
    # It is tried again only after a while.
    assert changes._listening is None
    changes._retry_at = 0.0
    changes.prepare()
    settle(changes)
    changes.close()


def test_a_missing_notification_of_an_event_that_was_read_ends_the_connection(changes: NotifiedChanges):
    listening = changes._listening
    write_event()
    wait_until(lambda: select([listening], [], [], 0)[0], what="the notification")
    changes.note_missed()
    # It came late.
    assert changes.has_any()
    assert changes._listening is listening
    changes.note_missed()
    assert changes.has_any()
    assert listening.closed
    changes.prepare()
    settle(changes)
    assert changes._listening is not listening
