"""Damaged contents of caches: how they are found, and repaired in all trees that use them."""

import errno
import os
from hashlib import sha256

import pytest

from datasets.ingest.reader import hash_file
from datasets.manifests import EXECUTABLE, FILE, LINK, Manifest, decode
from datasets.storage.base import Blocked, ContentDamaged, Lake
from datasets.storage.cache import CacheStore
from tests.contract.caches import FILES, LARGE, inodes, kept
from tests.contract.lakes import LakeKit


def test_a_damaged_content_has_to_be_copied(lake: Lake, store: CacheStore):
    manifest = damaged_tree(lake, store)
    assert store.lacking_bytes(manifest) == len(LARGE)
    store.fill("v", lake, manifest)
    assert store.lacking_bytes(manifest) == 0


def test_damaged_content_of_the_lake_is_not_served(kit: LakeKit, lake: Lake, store: CacheStore):
    manifest = kept(lake, FILES)
    kit.damage(lake, sha256(LARGE).digest())
    with pytest.raises(ContentDamaged):
        store.fill("v", lake, manifest)
    assert not store.tree("v").exists()


def test_files_of_other_programs_beside_the_marks_are_ignored(lake: Lake, store: CacheStore):
    (store.root / "damaged" / ".nfs0001").touch()
    store.fill("v", lake, kept(lake, FILES))
    assert store.tree("v").is_dir()
    assert store.find_damaged([sha256(LARGE).digest()]) == set()


def test_trees_with_damaged_content_are_named_and_repaired_in_place(lake: Lake, store: CacheStore):
    trees = {"v": kept(lake, FILES), "w": kept(lake, {"other": (FILE, LARGE), "sub/b": (FILE, b"beta")})}
    for key, manifest in trees.items():
        store.fill(key, lake, manifest)
    digest = sha256(LARGE).digest()
    assert store.find_damaged([digest]) == set()
    path = store.tree("v") / "large"
    path.chmod(0o644)
    # The lake's file too, where the content is a hard link of it.
    with path.open("r+b") as file:
        file.write(b"damaged")
    assert store.find_damaged([digest, sha256(b"beta").digest()]) == {"v", "w"}
    # A verification that was killed before it told of them is repeated.
    assert store.find_damaged([digest]) == {"v", "w"}
    lake.verify([digest])
    lake.put_part(digest, 0, memoryview(LARGE), len(LARGE))
    is_open = os.open(store.tree("v"), os.O_PATH)
    store.fill("v", lake, trees["v"])
    assert os.stat("large", dir_fd=is_open).st_size == len(LARGE)
    assert (store.tree("v") / "large").read_bytes() == (store.tree("w") / "other").read_bytes() == LARGE
    assert store.find_damaged([digest]) == set()
    assert sorted(path.name for path in store.tree("v").parent.iterdir()) == ["v", "w"]


def test_a_file_that_the_disk_cannot_read_is_damaged(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    manifest = kept(lake, FILES)
    store.fill("v", lake, manifest)
    bad = os.stat(store.tree("v") / "large").st_ino

    def read(file: int, size: int) -> bytes:
        if os.fstat(file).st_ino == bad:
            raise OSError(errno.EIO, "Input/output error")
        return hash_file(file, size)

    monkeypatch.setattr("datasets.storage.checks.hash_file", read)
    assert store.find_damaged({entry.digest for entry in manifest.entries()}) == {"v"}
    assert store.lacking_bytes(manifest) == len(LARGE)
    store.fill("v", lake, manifest)
    assert (store.tree("v") / "large").read_bytes() == LARGE


def test_a_tree_is_repaired_after_another_one_brought_its_content(lake: Lake, store: CacheStore):
    manifest = damaged_tree(lake, store)
    store.fill("new", lake, kept(lake, {"same": (FILE, LARGE)}))
    store.fill("v", lake, manifest)
    assert (store.tree("v") / "large").read_bytes() == LARGE


def test_a_repair_that_was_killed_is_continued(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    manifest = damaged_tree(lake, store)
    with monkeypatch.context() as broken:
        broken.setattr(CacheStore, "_replace", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            store.fill("v", lake, manifest)
    # What it brought may not have reached the disk.
    content = store.root / "trees" / "v.part" / "large"
    content.unlink()
    content.write_bytes(b"half")
    store.fill("v", lake, manifest)
    assert (store.tree("v") / "large").read_bytes() == LARGE
    assert sorted(path.name for path in store.tree("v").parent.iterdir()) == ["v"]


def test_a_tree_that_is_completed_during_a_verification_is_named(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    """It may have linked the damaged file before this had a mark."""
    store.fill("v", lake, kept(lake, FILES))
    path, digest = store.tree("v") / "large", sha256(LARGE).digest()
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    path.chmod(0o444)
    again = kept(lake, {"same": (FILE, LARGE)})

    def fill_first(file: int, size: int) -> bytes:
        monkeypatch.undo()
        CacheStore(store.root).fill("new", lake, again)
        return hash_file(file, size)

    monkeypatch.setattr("datasets.storage.checks.hash_file", fill_first)
    assert store.find_damaged([digest]) == {"v", "new"}


def damaged_tree(lake: Lake, store: CacheStore) -> Manifest:
    """Fill the tree v, damage its file `large`, and restore it in the lake."""
    manifest = kept(lake, FILES)
    store.fill("v", lake, manifest)
    damage(lake, store)
    return manifest


def damage(lake: Lake, store: CacheStore) -> None:
    """Damage the file `large` of the tree v, find it, and restore it in the lake."""
    path, digest = store.tree("v") / "large", sha256(LARGE).digest()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"damaged")
    assert store.find_damaged([digest]) == {"v"}
    lake.verify([digest])
    lake.put_part(digest, 0, memoryview(LARGE), len(LARGE))


def test_a_tree_that_links_a_damaged_content_before_it_is_found_is_repaired(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    manifest, read, work = kept(lake, FILES), lake.read, iter([True])
    store.fill("v", lake, manifest)

    def repair_first(digest: bytes) -> bytes:
        # The new tree has the content and not yet its links.
        if next(work, False):
            damage(lake, store)
            store.fill("v", lake, manifest)
        return read(digest)

    monkeypatch.setattr(lake, "read", repair_first)
    store.fill("new", lake, kept(lake, {"same": (FILE, LARGE), "link": (LINK, b"same")}))
    assert (store.tree("new") / "same").read_bytes() == LARGE
    assert inodes(store, "new") <= inodes(store, "v")
    assert not list((store.root / "damaged").iterdir())


def test_a_content_that_is_found_damaged_in_a_tree_whose_fill_runs_is_repaired(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    """No complete tree has it, as after the removal of the one that it was linked from."""
    read, digest, found = lake.read, sha256(LARGE).digest(), []

    def damage_first(link: bytes) -> bytes:
        # The tree has the content and not yet its links.
        path = store.root / "trees" / "new.part" / "same"
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.write(b"damaged")
        path.chmod(0o444)
        found.append(store.find_damaged([digest]))
        lake.verify([digest])
        lake.put_part(digest, 0, memoryview(LARGE), len(LARGE))
        return read(link)

    manifest = kept(lake, {"same": (FILE, LARGE), "link": (LINK, b"same")})
    monkeypatch.setattr(lake, "read", damage_first)
    store.fill("new", lake, manifest)
    assert found == [set()]
    assert (store.tree("new") / "same").read_bytes() == LARGE
    assert not list((store.root / "damaged").iterdir())


def test_a_file_that_is_still_being_written_is_not_damaged(lake: Lake, store: CacheStore):
    store.fill("v", lake, kept(lake, FILES))
    part, digest = store.root / "trees" / "new.part", sha256(LARGE).digest()
    (store.root / "manifests" / "new").write_bytes(kept(lake, {"same": (FILE, LARGE)}).encode())
    part.mkdir()
    (part / "same").write_bytes(LARGE[:-1])
    (part / "same").chmod(0o444)
    assert store.find_damaged([digest]) == set()
    assert not list((store.root / "damaged").iterdir())


def test_damage_that_was_found_in_the_earlier_layout_is_repaired(lake: Lake, store: CacheStore):
    """There, damaged contents were removed from `contents` until their trees were repaired."""
    manifest = kept(lake, {"a": (FILE, b"alpha"), "run.sh": (EXECUTABLE, b"#!/bin/sh")})
    store.fill("one", lake, manifest)
    executable = sha256(b"#!/bin/sh").hexdigest() + "x"
    shelf = store.root / "contents" / executable[:2]
    shelf.mkdir(parents=True)
    (shelf / executable[2:]).hardlink_to(store.tree("one") / "run.sh")
    kept_inode = (store.tree("one") / "run.sh").stat().st_ino
    damaged = store.tree("one") / "a"
    damaged.chmod(0o644)
    damaged.write_bytes(b"ALPHA")
    damaged.chmod(0o444)
    store.fill("one", lake, manifest)
    assert damaged.read_bytes() == b"alpha"
    assert (store.tree("one") / "run.sh").stat().st_ino == kept_inode
    assert not list((store.root / "damaged").iterdir())


@pytest.mark.parametrize("target", [b"/etc/passwd", b"../../other"])
def test_a_link_out_of_the_version_is_named_and_not_called_damaged(
    lake: Lake, store: CacheStore, target: bytes
):
    manifest = kept(lake, FILES | {"sub/out": (LINK, target)})
    with pytest.raises(Blocked, match="sub/out is a link that leads out of the version") as refused:
        store.fill("v", lake, manifest)
    assert (refused.value.code, refused.value.is_passing) == ("link_leaves_tree", False)
    assert not store.tree("v").exists()


def test_each_manifest_is_decoded_once_by_a_look_at_all_files(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    decoded: list[int] = []

    def counted(data: bytes) -> Manifest:
        decoded.append(len(data))
        return decode(data)

    for key in ("v", "w"):
        store.fill(key, lake, kept(lake, FILES | {key: (FILE, b"own")}))
    monkeypatch.setattr("datasets.storage.cache.decode", counted)
    assert store.find_damaged([sha256(LARGE).digest(), sha256(b"own").digest()]) == set()
    assert len(decoded) == 2
