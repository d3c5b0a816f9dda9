"""Writing many rows at once: each under its guard, and so that one which the database refuses keeps no other."""

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db import DataError, IntegrityError, models, transaction

logger = logging.getLogger(__name__)

T = TypeVar("T")
# what a row can be to blame for; a database that is away is not among it
REFUSED = (DataError, IntegrityError, ValueError, OverflowError)


@dataclass(frozen=True, slots=True)
class Change:
    """Columns of one row that get new values if others are as `guard` says."""

    key: Any
    guard: Mapping[str, Any]
    fields: Mapping[str, Any]


def change_rows(rows: type[models.Model], changes: Sequence[Change]) -> frozenset[Any]:
    """Write the changes of rows that are as their guards say; returns the keys of these. Call it in a transaction.

    All rows are locked first, in the order of their keys, as every writer of several rows goes: nobody changes what is
    compared, and changes that are alike need one UPDATE.
    """
    by_key = {change.key: change for change in changes}
    columns = {name for change in changes for name in change.guard}
    locked = rows._default_manager.filter(pk__in=by_key).select_for_update(no_key=True).order_by("pk")
    alike: dict[str, list[Change]] = defaultdict(list)
    for row in locked.values("pk", *columns):
        change = by_key[row["pk"]]
        if all(row[name] == value for name, value in change.guard.items()):
            alike[repr(change.fields)].append(change)
    for group in alike.values():
        same = rows._default_manager.filter(pk__in=[change.key for change in group])
        same.update(**group[0].fields)
    return frozenset(change.key for group in alike.values() for change in group)


def one_by_one(batch: Sequence[T], write: Callable[[Sequence[T]], None]) -> None:
    """Write a batch in one transaction; when the database refuses something of it, each by itself. What is refused
    then is logged, and left as it was."""
    try:
        with transaction.atomic():
            write(batch)
    except REFUSED:
        for one in batch:
            try:
                with transaction.atomic():
                    write([one])
            except REFUSED:
                logger.exception("%s was not written", one)
