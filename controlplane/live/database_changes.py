"""Whether a database in a file was written to, found without a query of the hub's thread.

A read on that thread costs several wake-ups of the process, ten times a second, on an instance where nothing happens.
"""

import sqlite3
from pathlib import Path

from django.db import connection


class DatabaseChanges:
    """The writes to this instance's database. Call it on one thread, which it blocks for some microseconds.

    SQLite counts the commits of other connections; a database of another kind always counts as changed."""

    def __init__(self) -> None:
        self._path = str(connection.settings_dict["NAME"]) if connection.vendor == "sqlite" else ""
        self._counter: sqlite3.Connection | None = None
        self._seen: int | None = None

    def has_any(self) -> bool:
        """Return whether something may have been committed since the last call; True for the first call."""
        before, self._seen = self._seen, self._version()
        return self._seen is None or self._seen != before

    def forget(self) -> None:
        """Have the next call return True."""
        self._seen = None

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        if self._counter is not None:
            self._counter.close()
        self._counter = self._seen = None

    def _version(self) -> int | None:
        """Return a number that differs after each commit of another connection; None if it is unknown."""
        try:
            if self._counter is None:
                if not self._path:
                    return None
                # Never waits for a lock: it runs on the event loop.
                uri = f"{Path(self._path).absolute().as_uri()}?mode=ro"
                self._counter = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)
            return int(self._counter.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            self.close()
            return None
