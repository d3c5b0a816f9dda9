"""Fixtures: a lake of each kind, and empty caches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from datasets.storage.base import Lake
from datasets.storage.cache import CacheStore
from tests.contract.lake_opening import open_lake
from tests.contract.lakes import FolderKit, S3Kit


@pytest.fixture(params=["folder", "s3"])
def kit(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderKit | S3Kit:
    """Fixture: a lake of each kind, one test each. Open it with `open_lake(kit.spec())`."""
    if request.param == "folder":
        return FolderKit(tmp_path / "lake", monkeypatch)
    return S3Kit(tmp_path / "lake", request.getfixturevalue("s3"), f"tests/{uuid4().hex}")


@pytest.fixture
def lake(kit: FolderKit | S3Kit) -> Iterator[Lake]:
    """Fixture: the opened lake of `kit`."""
    opened = open_lake(kit.spec())
    yield opened
    opened.close()


@pytest.fixture
def store(tmp_path: Path) -> CacheStore:
    """Fixture: the caches of a location, empty."""
    return CacheStore(tmp_path / "caches")
