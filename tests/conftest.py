"""Fixtures that every suite shares. The state directory of a test run is its own and goes with it."""

import os
import tempfile

_state = tempfile.TemporaryDirectory(prefix="trainyard-tests-")
os.environ["TRAINYARD_STATE_DIR"] = _state.name
os.environ.setdefault("TRAINYARD_CLUSTERS", "memory:dgx1-1=8x32768,dgx1-2=8x32768")

import pytest  # noqa: E402  the settings read the environment on import

from tests.cast import Cast, make_cast  # noqa: E402


@pytest.fixture
def cast(db: None) -> Cast:
    """ana, ben, vera, chi and root, with team-a and team-b on one memory cluster of sixteen GPUs."""
    return make_cast()
