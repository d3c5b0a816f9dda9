"""Flushes of a fill: a tree appears only after what was written to it is on disk."""

import errno
import os
from pathlib import Path

import pytest

from datasets.storage import files, tree_fill
from datasets.storage.base import Blocked, Lake
from datasets.storage.cache import CacheStore
from tests.contract.caches import FILES, kept, many


def test_a_tree_whose_files_did_not_reach_the_disk_does_not_appear(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    """Also if another flush met the error first: only files that were open by then get it as well."""
    part = store.root / "trees" / "v.part"

    def failed(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), part.stat())
        raise OSError(errno.EIO, "lost")

    with monkeypatch.context() as broken:
        broken.setattr(tree_fill, "sync_from", failed)
        with pytest.raises(Blocked, match="does not answer"):
            store.fill("v", lake, kept(lake, FILES))
    assert not store.tree("v").exists()
    store.fill("v", lake, kept(lake, FILES))
    assert store.tree("v").is_dir()


def test_flushes_while_files_are_written_report_nothing_and_end_before_the_last_one(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    steps: list[str] = []

    def early(path: Path) -> None:
        steps.append("early")
        raise OSError(errno.EIO, "reported by the last one")

    monkeypatch.setattr(files, "_EARLY_BYTES", 1)
    monkeypatch.setattr(files, "sync_file_system", early)
    monkeypatch.setattr(tree_fill, "sync_from", lambda _: steps.append("last"))
    store.fill("v", lake, many(lake))
    assert steps[0] == "early"
    assert steps.index("last") == len(steps) - 1
