"""The plant of the loop's tests."""

from collections.abc import Iterator

import pytest

from tests.loop.plant import Plant


@pytest.fixture
def plant(db: None) -> Iterator[Plant]:
    """Two nodes of eight GPUs on a memory engine."""
    plant = Plant()
    yield plant
    plant.close()
