"""Flushes of a fill: when a tree may be used, and what happens to one whose files did not reach the disk."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from datasets.storage import cache, files, tree_fill, unflushed
from datasets.storage.base import Blocked, Lake
from datasets.storage.cache import CacheStore
from datasets.storage.unflushed import UnflushedMarks
from tests.contract.caches import FILES, inodes, kept, many


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this machine mounts the file system, whatever the tests run on."""
    monkeypatch.setattr(UnflushedMarks, "may_add", lambda _: True)


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make the kernel appear to be another one, as after a power cut."""
    return lambda: monkeypatch.setattr(unflushed, "machine_mark", lambda: "another")


class Killed(BaseException):
    """The end of the process."""


def end() -> None:
    raise Killed


def marks(store: CacheStore) -> list[str]:
    return [path.name.partition(".")[0] for path in (store.root / "unflushed").iterdir()]


def lose(path: Path) -> None:
    """Leave of a file what a power cut leaves of one that was not flushed: its name and size."""
    size = path.stat().st_size
    path.chmod(0o600)
    path.write_bytes(bytes(size))
    path.chmod(0o444)


def used_and_not_flushed(store: CacheStore, lake: Lake) -> None:
    with pytest.raises(Killed):
        store.fill("v", lake, kept(lake, FILES), on_usable=end)
    assert store.tree("v").is_dir()


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


@pytest.mark.usefixtures("alone")
def test_nothing_is_flushed_while_files_are_written_that_are_used_before_the_flush(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    early: list[Path] = []
    monkeypatch.setattr(files, "_EARLY_BYTES", 1)
    monkeypatch.setattr(files, "sync_file_system", early.append)
    store.fill("v", lake, many(lake), on_usable=lambda: None)
    assert early == []


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_tree_is_used_before_its_flush_only_where_no_other_machine_reads_it(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch, is_alone: bool
):
    steps: list[str] = []
    monkeypatch.setattr(UnflushedMarks, "may_add", lambda _: is_alone)
    monkeypatch.setattr(tree_fill, "sync_from", lambda _: steps.append("flushed"))
    monkeypatch.setattr(cache, "sync_from", lambda _: steps.append("flushed"))

    def usable() -> None:
        assert store.tree("v").is_dir()
        assert marks(store) == ["v"] * is_alone
        steps.append("usable")

    store.fill("v", lake, kept(lake, FILES), on_usable=usable)
    assert steps == (["usable", "flushed"] if is_alone else ["flushed", "usable"])
    assert marks(store) == []


def test_the_mark_is_on_disk_before_a_tree_is_used(
    lake: Lake, store: CacheStore, alone: None, monkeypatch: pytest.MonkeyPatch
):
    steps: list[str] = []

    def sync(path: Path) -> None:
        assert marks(store) == ["v"]
        assert not (store.root / "trees" / "v.part").exists()
        steps.append(path.name)

    monkeypatch.setattr(unflushed, "sync_directory", sync)
    store.fill("v", lake, kept(lake, FILES), on_usable=lambda: steps.append("usable"))
    assert steps == ["unflushed", "usable"]


@pytest.mark.usefixtures("alone")
def test_a_tree_that_was_used_unflushed_is_verified_after_a_power_cut(
    lake: Lake, store: CacheStore, restart: Callable[[], None]
):
    used_and_not_flushed(store, lake)
    lose(store.tree("v") / "sub" / "a")
    before = (store.tree("v") / "large").stat().st_ino
    store.distrust_interrupted()
    assert (store.interrupted(), store.tree("v").exists()) == (set(), True), "it is the same kernel"
    restart()
    assert store.interrupted() == {"v"}
    for _ in range(2):
        store.distrust_interrupted()
        assert (store.interrupted(), store.tree("v").exists()) == ({"v"}, False)
    store.fill("v", lake, kept(lake, FILES), on_usable=lambda: None)
    assert (store.tree("v") / "sub" / "a").read_bytes() == b"alpha"
    assert (store.tree("v") / "large").stat().st_ino == before
    assert store.interrupted() == set()
    assert marks(store) == []


@pytest.mark.usefixtures("alone")
def test_no_fill_links_files_of_an_interrupted_tree_unread(
    lake: Lake, store: CacheStore, restart: Callable[[], None]
):
    used_and_not_flushed(store, lake)
    lose(store.tree("v") / "sub" / "a")
    restart()
    store.fill("other", lake, kept(lake, FILES))
    assert (store.tree("other") / "sub" / "a").read_bytes() == b"alpha"
    assert inodes(store, "other") & {(store.root / "trees" / "v.part" / "large").stat().st_ino}


@pytest.mark.usefixtures("alone")
def test_a_tree_whose_fill_runs_is_left_to_it(lake: Lake, store: CacheStore, restart: Callable[[], None]):
    used_and_not_flushed(store, lake)
    restart()
    with store._locked("v"):
        CacheStore(store.root).distrust_interrupted()
        assert store.tree("v").is_dir()


@pytest.mark.usefixtures("alone")
def test_a_fill_that_ended_before_the_flush_is_continued_by_it(lake: Lake, store: CacheStore):
    used_and_not_flushed(store, lake)
    before = inodes(store, "v")
    assert marks(store) == ["v"]
    store.fill("v", lake, kept(lake, FILES))
    assert (inodes(store, "v"), marks(store)) == (before, [])


@pytest.mark.usefixtures("alone")
def test_a_used_tree_that_cannot_be_flushed_is_verified_again(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    def failed(descriptor: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), store.root.stat())
        raise OSError(errno.EIO, "lost")

    with monkeypatch.context() as broken:
        broken.setattr(cache, "sync_from", failed)
        with pytest.raises(Blocked, match="does not answer"):
            store.fill("v", lake, kept(lake, FILES), on_usable=lambda: None)
    assert not store.tree("v").exists()
    lose(store.root / "trees" / "v.part" / "sub" / "a")
    store.fill("v", lake, kept(lake, FILES), on_usable=lambda: None)
    assert (store.tree("v") / "sub" / "a").read_bytes() == b"alpha"


@pytest.mark.usefixtures("alone")
def test_a_removed_tree_leaves_no_mark(lake: Lake, store: CacheStore):
    used_and_not_flushed(store, lake)
    store.remove("v")
    assert marks(store) == []


def test_which_file_systems_only_one_machine_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert not UnflushedMarks(Path("/proc")).may_add()
    monkeypatch.setattr(unflushed, "_OF_ONE_MACHINE", {unflushed._kind_of(tmp_path)})
    assert UnflushedMarks(tmp_path).may_add()
    monkeypatch.setattr(unflushed, "machine_mark", lambda: "")  # a restart would not be noticed
    assert not UnflushedMarks(tmp_path).may_add()
