"""Skip bad records of a data set up to a limit; print and count them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

NAMED_MOST = 20
LIMIT = "MAX_BAD_RECORDS"
DEFAULT_LIMIT = 100

T = TypeVar("T")


class NoData(Exception):
    """There is nothing to train on. The message says where data was looked for."""


class BadRecord(ValueError):
    """A record cannot be used. The message gives the reason."""


class TooManyBadRecords(RuntimeError):
    """More bad records than the limit."""


class Skipped:
    """Counts bad records and prints the first of them. `limit`: None for the value of MAX_BAD_RECORDS."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = int(os.environ.get(LIMIT, DEFAULT_LIMIT)) if limit is None else limit
        self.count = 0

    def read(self, name: str, read: Callable[[], T]) -> T | None:
        """Return what `read` returns. For a bad record (BadRecord or OSError) print and count `name`, and return
        None. Raises TooManyBadRecords beyond the limit."""
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
        """Print the number of skipped records, if any."""
        if self.count:
            print(f"{self.count} records skipped, of at most {self._limit}", flush=True)
