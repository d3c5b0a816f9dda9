"""A content index that also stores when each object of a bucket was last needed: S3 objects have no time that
can be set."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets.storage.contents import ContentIndex

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS removals (key TEXT PRIMARY KEY) WITHOUT ROWID;
"""


class AgedIndex(ContentIndex):
    """A ContentIndex with the keys of all objects that were stored or whose storing has begun. Times are in
    seconds since 1970."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with self._errors():
            self._database.executescript(_SCHEMA)

    def note(self, keys: Iterable[str], at: float) -> None:
        """Record that the objects with these keys are needed at the time `at` (Unix time). Call it before they
        are stored: if the process is killed, they are known."""
        with self._lock, self._errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            rows = [(key, at) for key in keys]
            self._database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", rows)
            self._database.executemany("DELETE FROM removals WHERE key = ?", [(key,) for key, _ in rows])

    def renew(self, keys: Iterable[str], at: float) -> int:
        """Set the time of the known objects among these keys that are not being removed to `at` (Unix time);
        return their number."""
        with self._lock, self._errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            rows = [(at, key) for key in keys]
            sql = "UPDATE files SET at = ? WHERE key = ? AND key NOT IN (SELECT key FROM removals)"
            return self._database.executemany(sql, rows).rowcount

    def begin_removal(self, keys: Iterable[str], before: float) -> list[str]:
        """Mark those of these objects as being removed that were last needed at `before` (Unix time) or earlier;
        return their keys. `drop` and `note` end the mark."""
        with self._lock, self._errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            sql = "INSERT OR REPLACE INTO removals SELECT key FROM files WHERE key = ? AND at <= ?"
            return [key for key in keys if self._database.execute(sql, (key, before)).rowcount]

    def in_removal(self, keys: Iterable[str]) -> set[str]:
        """Return those of these keys that are marked as being removed."""
        sql = "SELECT key FROM removals WHERE key = ?"
        return {key for key in keys if self._rows(sql, (key,))}

    def old(self, folder: str, before: float) -> list[str]:
        """Return the keys below `folder` of objects last needed at `before` (Unix time) or earlier."""
        sql = "SELECT key FROM files WHERE key >= ? AND key < ? AND at <= ?"
        # "0" is the character after "/".
        return [row[0] for row in self._rows(sql, (f"{folder}/", f"{folder}0", before))]

    def drop(self, keys: Sequence[str]) -> None:
        """Delete the entries of these keys, whose objects were removed from the bucket."""
        with self._lock, self._errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for table in ("files", "removals"):
                sql = f"DELETE FROM {table} WHERE key = ?"  # noqa: S608  # of the line above
                self._database.executemany(sql, [(key,) for key in keys])
