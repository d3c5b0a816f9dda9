"""Verification of a lake in a folder whose disk cannot read some contents, or does not answer."""

import errno
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from datasets.ingest.engine import sync_tree
from datasets.manifests import Manifest
from datasets.storage.base import Blocked
from datasets.storage.checks import require_answer
from datasets.storage.folder import WHOLE_BYTES, FolderLake
from datasets.storage.folder_sink import sink_of_folder

LARGE = bytes(range(256)) * (WHOLE_BYTES // 256 + 1)


# The lake in a folder only.
FOLDER = pytest.mark.parametrize("kit", ["folder"], indirect=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for name, content in (("a.txt", b"alpha"), ("b.txt", b"beta"), ("large.bin", LARGE)):
        (root / name).write_bytes(content)
    return root


def synced(source: Path, lake: FolderLake) -> Manifest:
    found = sync_tree(source, sink_of_folder(lake.root))
    found.remember()
    assert found.manifest is not None
    return found.manifest


@FOLDER
def test_contents_that_the_disk_cannot_read_are_damaged_and_stored_again(source, lake, monkeypatch):
    manifest = synced(source, lake)
    bad = {sha256(LARGE).digest(), sha256(b"alpha").digest()}
    places = {(lake.path_of(one).stat().st_ino, one.offset) for one in lake.locate(bad)}

    def failing(read: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: int, wanted: Any, offset: int) -> Any:
            if (os.fstat(file).st_ino, offset) in places:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return read(file, wanted, offset)

        return call

    with monkeypatch.context() as broken:
        for name in ("pread", "preadv"):
            broken.setattr(os, name, failing(getattr(os, name)))
        found = lake.verify(manifest.contents())
    assert (set(found.quarantined), found.missing) == (bad, [])
    assert set(lake.verify(manifest.contents()).missing) == bad
    synced(source, lake)
    assert not lake.verify(manifest.contents()).missing


@FOLDER
def test_a_disk_that_does_not_answer_has_no_damaged_contents(source, lake, monkeypatch):
    manifest = synced(source, lake)

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        for name in ("pread", "preadv"):
            broken.setattr(os, name, fail)
        broken.setattr("datasets.storage.folder.require_answer", fail)
        with pytest.raises(Blocked, match="does not answer"):
            lake.verify(manifest.contents())
    found = lake.verify(manifest.contents())
    assert (found.missing, found.quarantined) == ([], [])


def test_an_answer_of_the_disk_is_read_from_it(tmp_path):
    (tmp_path / "a").write_bytes(b"short")
    require_answer(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        require_answer(tmp_path / "none")
