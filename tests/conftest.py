"""Fixtures that every suite shares. tests/settings.py gives the run its state directory."""

import pytest

from tests.cast import Cast, make_cast


@pytest.fixture
def cast(db: None) -> Cast:
    """ana, ben, vera, chi and root, with team-a and team-b on one memory cluster of sixteen GPUs."""
    return make_cast()
