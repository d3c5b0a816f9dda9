"""The fixtures of the access matrix: one world of rows per test module, rolled back at its end. Each test is
rolled back by itself."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from controlplane.actions.directory import forget_lookups
from controlplane.actions.sign_in import forget_attempts
from tests.access.world import World, build


@pytest.fixture(scope="module")
def world(django_db_setup: None, django_db_blocker: Any) -> Iterator[World]:
    with django_db_blocker.unblock(), transaction.atomic():
        with build() as built:
            yield built
        transaction.set_rollback(True)


@pytest.fixture(autouse=True)
def _no_earlier_attempts() -> None:
    forget_attempts()
    forget_lookups()
