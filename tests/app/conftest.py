"""Fixtures of all tests of the web process. Sign-in attempts and name look-ups of earlier tests do not count."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.actions.directory import forget_lookups
from controlplane.actions.sign_in import forget_attempts
from datasets.models import Dataset
from tests.app.cached import ONE, TWO
from tests.cast import Cast, make_cast
from tests.datasets import make_dataset, make_version
from tests.loop.plant import Plant


@pytest.fixture(autouse=True)
def _unused_limits() -> None:
    forget_attempts()
    forget_lookups()


@pytest.fixture
def plant(db: None, own_lakes: Path) -> Iterator[Plant]:
    plant = Plant()
    yield plant
    plant.close()


@pytest.fixture
def people(plant: Plant) -> Cast:
    return make_cast()


@pytest.fixture
def xray(people: Cast) -> Dataset:
    dataset = make_dataset(people.project)
    make_version(dataset, ONE)
    make_version(dataset, TWO)
    return dataset
