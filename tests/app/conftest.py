"""Fixtures of all tests of the web process. Sign-in attempts and name look-ups of earlier tests do not count."""

import pytest

from controlplane.actions.directory import forget_lookups
from controlplane.actions.sign_in import forget_attempts


@pytest.fixture(autouse=True)
def _unused_limits() -> None:
    forget_attempts()
    forget_lookups()
