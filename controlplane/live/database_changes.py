"""Whether events may have been written, found without a query of the hub's thread.

A read on that thread costs several wake-ups of the process and, on PostgreSQL, a round trip to the server, ten times a
second, on an instance where nothing happens.
"""

import logging
import sqlite3
import time
from pathlib import Path
from typing import Any

from django.db import Error, connection

from controlplane.models.events import EVENTS_CHANNEL

logger = logging.getLogger(__name__)

# How long a notification may take that this process sends to itself.
ECHO_SECONDS = 1.0
# The interval between attempts where notifications do not arrive, as behind PgBouncer in transaction mode.
RETRY_SECONDS = 60.0


class DatabaseChanges:
    """The events of a database of which no change is announced: it always counts as changed. Call all but `prepare` on
    one thread, which they block for some microseconds."""

    def has_any(self) -> bool:
        """Return whether something may have been committed since the last call; True for the first call."""
        return True

    def prepare(self) -> None:
        """Be announced what is committed from now on, if possible. Call it before a read, on the thread that reads,
        while no other method is called. May take ECHO_SECONDS."""

    def note_missed(self) -> None:
        """A read found events although `has_any` had returned False."""

    def forget(self) -> None:
        """Have the next call of `has_any` return True."""

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""


def database_changes() -> DatabaseChanges:
    """Return the changes of this instance's database."""
    if connection.vendor == "sqlite":
        return FileChanges(str(connection.settings_dict["NAME"]))
    return NotifiedChanges() if connection.vendor == "postgresql" else DatabaseChanges()


class FileChanges(DatabaseChanges):
    """The changes of an SQLite database, which counts the commits of other connections."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._counter: sqlite3.Connection | None = None
        self._seen: int | None = None

    def has_any(self) -> bool:
        before, self._seen = self._seen, self._version()
        return self._seen is None or self._seen != before

    def forget(self) -> None:
        self._seen = None

    def close(self) -> None:
        if self._counter is not None:
            self._counter.close()
        self._counter = self._seen = None

    def _version(self) -> int | None:
        """Return a number that differs after each commit of another connection; None if it is unknown."""
        try:
            if self._counter is None:
                # Never waits for a lock: it runs on the event loop.
                uri = f"{Path(self._path).absolute().as_uri()}?mode=ro"
                self._counter = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)
            return int(self._counter.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            self.close()
            return None


class NotifiedChanges(DatabaseChanges):
    """The events of a PostgreSQL database, whose writers notify a connection that listens. Always changed while there
    is no such connection, or notifications do not arrive."""

    def __init__(self) -> None:
        # A connection of psycopg.
        self._listening: Any = None
        self._is_forgotten = self._is_one_owed = False
        self._retry_at = float("-inf")

    def has_any(self) -> bool:
        has_come = self._listening is None or self._has_come()
        if self._is_one_owed and not has_come:
            # The connection may be dead without a sign, as after a firewall forgot it.
            logger.warning("an event was not notified; the live feed listens anew")
            self.close()
        is_forgotten = self._is_forgotten
        self._is_forgotten = self._is_one_owed = False
        return has_come or is_forgotten or self._listening is None

    def prepare(self) -> None:
        if self._listening is not None or time.monotonic() < self._retry_at:
            return
        try:
            with connection.wrap_database_errors:
                self._listening = connection.get_new_connection(connection.get_connection_params())
                self._listening.autocommit = True
                self._listening.execute(f"LISTEN {EVENTS_CHANNEL}")
                if self._is_echoed():
                    return
            logger.warning("PostgreSQL's notifications do not arrive; the live feed asks for events instead")
        except Error as error:
            logger.warning("the live feed cannot listen for events: %s", error)
        self.close()
        self._retry_at = time.monotonic() + RETRY_SECONDS

    def note_missed(self) -> None:
        self._is_one_owed = self._listening is not None

    def forget(self) -> None:
        self._is_forgotten = True

    def close(self) -> None:
        if self._listening is not None:
            self._listening.close()
        self._listening = None

    def _is_echoed(self) -> bool:
        """Return whether a notification of this process arrives. A pooler may give each transaction another session,
        and so accept LISTEN without effect."""
        with connection.cursor() as cursor:
            cursor.execute(f"NOTIFY {EVENTS_CHANNEL}")
        return any(True for _ in self._listening.notifies(timeout=ECHO_SECONDS, stop_after=1))

    def _has_come(self) -> bool:
        """Return whether a notification has arrived since the last call, or the connection is lost. Never waits."""
        has_come = False
        try:
            with connection.wrap_database_errors:
                self._listening.pgconn.consume_input()
                while self._listening.pgconn.notifies() is not None:
                    has_come = True
        except Error:
            self.close()
        return has_come or self._listening is None
