"""Rows that are made once for all tests of a module which only read them, or whose changes are rolled back."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction


@contextmanager
def standing(django_db_blocker: Any) -> Iterator[None]:
    """What is written in it stays for the tests of a module, each of which is rolled back by itself, and goes at its
    end. For a fixture of the scope of the module that asks for `django_db_setup`; no test of that module commits."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


@contextmanager
def lakes_in(directory: Path) -> Iterator[None]:
    """Lakes and caches of datasets are in this directory, and nothing that was read of others is remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django.conf.settings.LAKE_DIR", directory / "lakes")
        patch.setattr("django.conf.settings.CACHE_DIR", directory / "caches")
        patch.setattr("datasets.queries.lake._lakes", {})
        patch.setattr("datasets.queries.lake._manifests", OrderedDict())
        yield
