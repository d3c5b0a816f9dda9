"""Index of which pack holds which content: an SQLite file beside the packs. It can be rebuilt, since every
pack ends with its own index.

One row per content, not per file of a version: for 627,615 files that mostly share contents with the previous
version only new contents are added. A dict of them would take 150 MB in every process.
"""

import errno
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from datasets.manifests import split_digests

V = TypeVar("V")
# Pack name of a content with its own file.
WHOLE = ""
# SQLite's errors, primary or extended, as those of the file system. On a full disk the memory that processes share
# cannot grow either.
_FILE_ERRORS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR_SHMSIZE: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
}
# SQLite's errors for a file that is no database, or whose pages contradict each other.
_DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
# Code of the Blocked that is raised then.
INDEX_DAMAGED = "index_damaged"
# Limit on the parameters of one SQL statement.
_AT_ONCE = 500
# Reading the row of a content by its digest takes three times as long as passing over it in a scan. Only for many
# contents, since counting the rows takes time too.
_SCANNED_PER_FOUND, _MANY = 3, 2000
# Rows of one statement: a row then takes two thirds of the time.
_INSERTED_AT_ONCE = 50
_SCHEMA = """
CREATE TABLE IF NOT EXISTS packs (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS contents (
  digest BLOB PRIMARY KEY, pack INTEGER NOT NULL, offset INTEGER NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
"""


class Sharing(StrEnum):
    """How bytes were duplicated, the cheapest way first: reflink, hard link or copy."""

    REFLINK = "reflink"
    HARD_LINK = "hard_link"
    COPY = "copy"


class Located(NamedTuple):
    """Location of a content: at `offset` in a pack, or in its own file (`pack` is WHOLE). A tuple, because a version
    has hundreds of thousands: they are made and sorted in C."""

    pack: str
    offset: int
    size_bytes: int
    digest: bytes


def located_in(pack: str, entries: Iterable[tuple[bytes, int, int]]) -> list[Located]:
    """Return the locations of the contents of a pack with this name, from its index: digest, offset and size in bytes
    of each."""
    # `Located(...)` would call a Python function for each.
    new = tuple.__new__
    return [new(Located, (pack, offset, size, digest)) for digest, offset, size in entries]


class Files(NamedTuple):
    """Which contents are known, the packs that hold some of them, and the digests of those with a file of their
    own."""

    known: set[bytes]
    packs: set[str]
    alone: list[bytes]


class ContentIndex:
    """The content index of a lake. Safe for several threads and processes. Every call raises Blocked if the file system
    refuses, and INDEX_DAMAGED if the file is no index or is damaged: it has another name then, and the lake makes a
    new one when it is opened again."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._path, self._inode = path, inode_of(path)
        self._database = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
        with self._errors():
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.executescript(_SCHEMA)
        self._inode = inode_of(path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with file_errors():
                yield
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                raise
            self._set_aside()
            # Imported here: it imports this module for its types.
            from datasets.storage.base import Blocked

            words = "The index of this storage was damaged, and is made again from what is stored; try again."
            raise Blocked(INDEX_DAMAGED, words) from error

    def _set_aside(self) -> None:
        # Another process may have done this, and made a new one.
        if self._inode == inode_of(self._path):
            with suppress(FileNotFoundError):
                self._path.replace(self._path.with_name(f"{self._path.name}.damaged"))

    def close(self) -> None:
        """Close the SQLite file."""
        self._database.close()

    def known(self, digests: Iterable[bytes]) -> set[bytes]:
        """Return those of these digests that are in the index."""
        wanted = set(digests)
        if not self._is_scan(wanted):
            return {row[0] for row in self._found("digest", wanted)}
        with self._lock, self._errors():
            # Row by row: so many tuples at once would start Python's garbage collector.
            rows = self._database.execute("SELECT digest FROM contents")
            return wanted.intersection(map(itemgetter(0), rows))

    def locate(self, digests: Iterable[bytes]) -> list[Located]:
        """Return the locations of the contents with these digests, grouped by pack and in the order of the pack;
        omits unknown contents."""
        rows = self._found("digest, pack, offset, size", set(digests))
        names = self._names({row[1] for row in rows})
        # Sorting by one number after the other takes a third of the time of comparing tuples.
        rows.sort(key=itemgetter(2))
        rows.sort(key=itemgetter(1))
        # `Located(...)` would call a Python function for each.
        new = tuple.__new__
        return [new(Located, (names[pack], offset, size, digest)) for digest, pack, offset, size in rows]

    def files_of(self, digests: Iterable[bytes]) -> Files:
        """Return which of these digests are known, and the files that hold their contents."""
        found = self._by_pack(set(digests))
        names = self._names(set(found))
        known = set().union(*found.values())
        alone = [digest for number, some in found.items() if names[number] == WHOLE for digest in some]
        return Files(known, set(names.values()) - {WHOLE}, alone)

    def add(self, located: Sequence[Located]) -> None:
        """Add contents at their locations; known ones keep theirs."""
        self._write("IGNORE", located)

    def move(self, located: Sequence[Located]) -> None:
        """Add contents at their locations; known ones get the new one."""
        self._write("REPLACE", located)

    def _write(self, conflict: str, located: Sequence[Located]) -> None:
        with self._lock, self._errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            numbers = {name: self._number(name) for name in {one.pack for one in located}}
            rows = sorted((one.digest, numbers[one.pack], one.offset, one.size_bytes) for one in located)
            whole = len(rows) - len(rows) % _INSERTED_AT_ONCE
            several = (
                tuple(chain.from_iterable(rows[start : start + _INSERTED_AT_ONCE]))
                for start in range(0, whole, _INSERTED_AT_ONCE)
            )
            sql = f"INSERT OR {conflict} INTO contents VALUES "  # noqa: S608  # one of two words
            self._database.executemany(sql + ",".join(["(?, ?, ?, ?)"] * _INSERTED_AT_ONCE), several)
            self._database.executemany(sql + "(?, ?, ?, ?)", rows[whole:])

    def removals(self) -> int:
        """Return a number that differs after contents were removed from the index, by any process."""
        return int(self._rows("PRAGMA user_version", ())[0][0])

    def forget(self, digests: Iterable[bytes]) -> None:
        """Remove the contents with these digests from the index."""
        with self._lock, self._errors(), self._database:
            self._begin_removal()
            self._database.executemany(
                "DELETE FROM contents WHERE digest = ?", [(digest,) for digest in digests]
            )

    def forget_pack(self, name: str) -> None:
        """Remove a pack and its contents from the index."""
        with self._lock, self._errors(), self._database:
            self._begin_removal()
            self._database.execute(
                "DELETE FROM contents WHERE pack = (SELECT id FROM packs WHERE name = ?)", (name,)
            )
            self._database.execute("DELETE FROM packs WHERE name = ?", (name,))

    def packs(self) -> set[str]:
        """Return the names of all packs in the index."""
        return {row[0] for row in self._rows("SELECT name FROM packs WHERE name != ?", (WHOLE,))}

    def of_pack(self, name: str) -> list[Located]:
        """Return the locations of the contents in one pack; for WHOLE of all contents with their own file."""
        sql = (
            "SELECT ?, offset, size, digest FROM contents WHERE pack = (SELECT id FROM packs WHERE name = ?)"
        )
        return [Located(*row) for row in self._rows(sql, (name, name))]

    def _begin_removal(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        [number] = self._database.execute("PRAGMA user_version").fetchone()
        # In the file's header, and rolled back with the transaction as a row is.
        self._database.execute(f"PRAGMA user_version = {(number + 1) & 0x7FFFFFFF}")

    def _number(self, name: str) -> int:
        self._database.execute("INSERT OR IGNORE INTO packs (name) VALUES (?)", (name,))
        return int(self._database.execute("SELECT id FROM packs WHERE name = ?", (name,)).fetchone()[0])

    def _found(self, columns: str, digests: set[bytes]) -> list[tuple[Any, ...]]:
        """Return these columns of the rows of contents; `digest` is the first column."""
        if self._is_scan(digests):
            rows = self._rows(f"SELECT {columns} FROM contents", ())  # noqa: S608  # names of columns
            return [row for row in rows if row[0] in digests]
        found: list[tuple[Any, ...]] = []
        # Sorted, as the index is: neighbours are on the same page.
        for some in chunks(sorted(digests), _AT_ONCE):
            marks = ",".join("?" * len(some))
            found += self._rows(f"SELECT {columns} FROM contents WHERE digest IN ({marks})", some)  # noqa: S608  # marks
        return found

    def _by_pack(self, digests: set[bytes]) -> dict[int, set[bytes]]:
        """Return which of these contents each pack has, by its id; no pack without any."""
        found: dict[int, set[bytes]] = {}
        if not self._is_scan(digests):
            for digest, pack in self._found("digest, pack", digests):
                found.setdefault(pack, set()).add(digest)
            return found
        # One value for each pack takes half the time of one row for each content.
        rows = self._rows(
            "SELECT pack, CAST(group_concat(digest, '') AS BLOB) FROM contents GROUP BY pack", ()
        )
        for pack, joined in rows:
            if some := digests.intersection(split_digests(joined)):
                found[pack] = some
        return found

    def _is_scan(self, digests: set[bytes]) -> bool:
        """Return whether to find these contents by a scan of all rows."""
        if len(digests) < _MANY:
            return False
        return bool(
            len(digests) * _SCANNED_PER_FOUND >= self._rows("SELECT count(*) FROM contents", ())[0][0]
        )

    def _names(self, numbers: set[int]) -> dict[int, str]:
        """Return the names of packs by their ids."""
        found: dict[int, str] = {}
        for some in chunks(numbers, _AT_ONCE):
            marks = ",".join("?" * len(some))
            found.update(self._rows(f"SELECT id, name FROM packs WHERE id IN ({marks})", some))  # noqa: S608  # marks
        return found

    def _rows(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self._lock, self._errors():
            return self._database.execute(sql, values).fetchall()


def chunks(values: Iterable[V], size: int) -> Iterator[list[V]]:
    """Yield the values in lists of `size`; the last one may be shorter."""
    source = iter(values)
    while some := list(islice(source, size)):
        yield some


def inode_of(path: Path) -> int | None:
    """Return a file's inode, None if it does not exist."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


@contextmanager
def file_errors() -> Iterator[None]:
    """Context manager that raises Blocked for an error of the file system that SQLite reports, such as a full
    disk; others are raised unchanged."""
    try:
        yield
    except sqlite3.OperationalError as error:
        code = error.sqlite_errorcode
        number = _FILE_ERRORS.get(code, _FILE_ERRORS.get(code & 0xFF))
        if number is None:
            raise
        # Imported here: it imports this module for its types.
        from datasets.storage.files import blocked

        raise blocked(OSError(number, str(error))) from error
