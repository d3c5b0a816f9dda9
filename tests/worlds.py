"""Rows that are created once for all tests of a module, which only read them or are rolled back."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction


@contextmanager
def standing(django_db_blocker: Any) -> Iterator[None]:
    """Context manager whose database changes stay for all tests of a module and are rolled back at the end. For a
    module-scoped fixture that requests `django_db_setup`; no test of that module may commit."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def lakes_in(directory: Path) -> Iterator[None]:
    """Context manager in which lakes and caches of datasets are below `directory`, and nothing read from others
    is cached."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.conf.settings.LAKE_DIR", directory / "lakes")
        patch.setattr("django.conf.settings.CACHE_DIR", directory / "caches")
        patch.setattr("datasets.queries.lake._lakes", {})
        patch.setattr("datasets.queries.lake._manifests", OrderedDict())
        yield
