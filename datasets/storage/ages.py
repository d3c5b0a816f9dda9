"""An index that also keeps when each object of a bucket was last relied on: a bucket has no time that can be set."""

from collections.abc import Iterable
from pathlib import Path

from datasets.storage.contents import ContentIndex

_SCHEMA = "CREATE TABLE IF NOT EXISTS files (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;"


class AgedIndex(ContentIndex):
    """A ContentIndex with the keys of all objects that were stored or begun. Times are seconds since 1970."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._database.executescript(_SCHEMA)

    def note(self, keys: Iterable[str], at: float) -> None:
        """Write down that objects are relied on, before they are stored: what a killed process leaves is found."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "INSERT OR REPLACE INTO files VALUES (?, ?)", [(key, at) for key in keys]
            )

    def renew(self, keys: Iterable[str], at: float) -> int:
        """Write a later time to objects that are there; return how many are."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            rows = [(at, key) for key in keys]
            return self._database.executemany("UPDATE files SET at = ? WHERE key = ?", rows).rowcount

    def old(self, folder: str, before: float) -> list[str]:
        """Return the keys below a folder that were not relied on since `before`."""
        sql = "SELECT key FROM files WHERE key >= ? AND key < ? AND at <= ?"
        # "0" follows "/"
        return [row[0] for row in self._rows(sql, (f"{folder}/", f"{folder}0", before))]

    def drop(self, keys: Iterable[str]) -> None:
        """Remove objects that are gone."""
        with self._lock, self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany("DELETE FROM files WHERE key = ?", [(key,) for key in keys])
