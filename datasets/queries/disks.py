"""Recognise a disk that is not mounted by what the rows say that it holds."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.db.models import QuerySet

from datasets.storage.base import NOT_MOUNTED, Blocked
from datasets.storage.files import has_entries

Rows = Iterable[QuerySet[Any]]


def require_directory(directory: Path, inside: Rows, beside: Rows, words: str) -> None:
    """Raise Blocked(NOT_MOUNTED) if a directory is not there though rows of `inside` are stored in it or, where its
    parent is missing or empty, rows of `beside` in it or its neighbours. `words`: of what it is a directory, and what
    operators do."""
    if directory.is_dir():
        return
    # A new directory would fill the disk below the mount point, and be hidden once the disk is mounted.
    rows = inside if has_entries(directory.parent) else (*inside, *beside)
    if any(each.exists() for each in rows):
        # Members read this, and the path of the disk is the operators' own.
        raise Blocked(NOT_MOUNTED, f"The directory {directory.name} of {words}")
