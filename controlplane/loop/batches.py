"""Writing many rows at once without letting one that the database refuses keep the others."""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from django.db import DataError, IntegrityError, transaction

logger = logging.getLogger(__name__)

T = TypeVar("T")
# what a row can be to blame for; a database that is away is not among it
REFUSED = (DataError, IntegrityError, ValueError, OverflowError)


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
