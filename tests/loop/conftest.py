"""Fixtures of the loop's tests."""

from collections.abc import Iterator

import pytest

from tests.loop.plant import Plant


@pytest.fixture
def plant(db: None) -> Iterator[Plant]:
    """Fixture: two nodes of eight GPUs on a memory engine, and the loop, run by the test."""
    plant = Plant()
    yield plant
    plant.close()
