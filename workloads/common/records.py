"""Bad records of a data set: named, counted, and skipped up to a limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

NAMED_MOST = 20
LIMIT = "MAX_BAD_RECORDS"
DEFAULT_LIMIT = 100

T = TypeVar("T")


class BadRecord(ValueError):
    """One record cannot be used. The text says why."""


class TooManyBadRecords(RuntimeError):
    """More records than the limit cannot be used."""


class Skipped:
    """Counts records that cannot be used and prints the first of them. `limit` None: that of MAX_BAD_RECORDS."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = int(os.environ.get(LIMIT, DEFAULT_LIMIT)) if limit is None else limit
        self.count = 0

    def read(self, name: str, read: Callable[[], T]) -> T | None:
        """Return what `read` returns, or None for a bad record, which is counted. Raises TooManyBadRecords."""
        try:
            return read()
        except (BadRecord, OSError) as error:
            self._skip(name, error)
            return None

    def _skip(self, name: str, error: Exception) -> None:
        self.count += 1
        if self.count <= NAMED_MOST:
            print(f"skipped {name}: {error}", flush=True)
        if self.count > self._limit:
            raise TooManyBadRecords(
                f"More than {self._limit} records cannot be used, the last of them {name}: {error}. Mend the data,"
                f" or set {LIMIT}."
            ) from error

    def report(self) -> None:
        """Print how many were skipped, if any."""
        if self.count:
            print(f"{self.count} records skipped, of at most {self._limit}", flush=True)
