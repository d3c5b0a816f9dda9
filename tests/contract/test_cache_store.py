"""Caches of a location: what trees hold, what a killed or cancelled fill leaves, and what is verified."""

import os
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Event

import pytest

from datasets.manifests import EXECUTABLE, FILE, LINK, Entry, Manifest, make_manifest
from datasets.storage import tree_fill
from datasets.storage.base import Budget, Cancelled, ContentMissing, Lake
from datasets.storage.cache import _FOLDERS, CacheStore
from datasets.storage.contents import Located, Sharing
from datasets.storage.staging import LOCK
from datasets.storage.tree_fill import Progress
from tests.contract.caches import FILES, LARGE, inodes, kept, many
from tests.contract.lakes import LakeKit
from tests.datasets import pack_of
from tests.servers import CHECKOUT
from tests.waiting import patience

TWICE = {"a": b"alpha", "again": b"alpha", "b": b"beta", "c": b"gamma"}
# Fills with a program that is killed once it has brought half of the contents.
KILLED = """
import os, signal, sys
from pathlib import Path
from datasets.manifests import decode
from datasets.storage.cache import CacheStore
from tests.contract.lake_opening import open_lake
def report(progress):
    if progress.files >= 100:
        os.kill(os.getpid(), signal.SIGKILL)
spec, store, manifest = sys.argv[1:]
CacheStore(Path(store)).fill("v", open_lake(spec), decode(Path(manifest).read_bytes()), report=report)
"""
# Is killed when it has renamed the tree that it removes.
KILLED_REMOVAL = """
import os, shutil, signal, sys
from pathlib import Path
from datasets.storage.cache import CacheStore
shutil.rmtree = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
CacheStore(Path(sys.argv[1])).remove("one")
"""


def test_a_tree_has_the_files_of_the_version_read_only(lake: Lake, store: CacheStore):
    reports: list[Progress] = []
    store.fill("v", lake, kept(lake, FILES), report=reports.append)
    tree = store.tree("v")
    assert {str(path.relative_to(tree)) for path in tree.rglob("*") if not path.is_dir()} == set(FILES)
    for name, (kind, content) in FILES.items():
        assert (tree / name).read_bytes() == (b"alpha" if kind == LINK else content)
    assert os.readlink(tree / "link") == "sub/a"
    modes = {name: (tree / name).stat().st_mode & 0o777 for name in ("large", "sub/a", "run.sh")}
    assert modes == {"large": 0o444, "sub/a": 0o444, "run.sh": 0o555}
    assert (tree / "sub/a").stat().st_ino == (tree / "sub/again").stat().st_ino
    # links hold no bytes of their own
    total = sum(len(content) for kind, content in FILES.values() if kind != LINK)
    assert (reports[-1].files, reports[-1].bytes_done) == (5, total)
    # in the tree and in the lake
    is_linked = (tree / "large").stat().st_nlink == 2
    assert (reports[-1].sharing == Sharing.HARD_LINK) == is_linked
    assert reports[-1].sharing is not None


def test_a_large_file_is_in_the_progress_while_it_is_written(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tree_fill, "WATCH_SECONDS", 0.01)
    reports: list[Progress] = []
    is_seen, place, half = Event(), lake.place, len(LARGE) // 2

    def slow(located: Located, target: Path, mode: int, advanced: Callable[[int], None]) -> Sharing:
        advanced(half)
        assert is_seen.wait(patience(10))
        return place(located, target, mode, advanced)

    def report(progress: Progress) -> None:
        reports.append(progress)
        if progress.bytes_moved % len(LARGE) >= half:
            is_seen.set()

    monkeypatch.setattr(lake, "place", slow)
    store.fill("v", lake, kept(lake, {"large": (FILE, LARGE)}), report=report)
    assert (reports[0].files, reports[0].bytes_done, reports[0].bytes_moved) == (0, half, half)
    assert (reports[-1].files, reports[-1].bytes_done, reports[-1].bytes_moved) == (1, len(LARGE), len(LARGE))
    assert [one.bytes_done for one in reports] == sorted(one.bytes_done for one in reports)


def test_a_lake_says_how_much_of_a_large_file_is_done(lake: Lake, tmp_path: Path):
    huge, done = os.urandom(17 << 20), list[int]()
    manifest = kept(lake, {"huge": (FILE, huge)})
    [located] = lake.locate(manifest.contents())
    for number, mode in enumerate((0o444, 0o555)):
        lake.place(located, tmp_path / str(number), mode, done.append)
        assert (tmp_path / str(number)).read_bytes() == huge
        assert done == sorted(done)
        assert done[-1] == len(huge)
        assert len(set(done)) > 1
        done.clear()


def test_a_fill_that_is_cancelled_within_a_large_file_ends_there(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    place, is_cancelled = lake.place, Event()

    def cancelled(located: Located, target: Path, mode: int, advanced: Callable[[int], None]) -> Sharing:
        is_cancelled.set()
        return place(located, target, mode, advanced)

    manifest = kept(lake, {"large": (FILE, LARGE)})
    with monkeypatch.context() as patch:
        patch.setattr(lake, "place", cancelled)
        with pytest.raises(Cancelled):
            store.fill("v", lake, manifest, Budget(is_cancelled=is_cancelled.is_set))
    assert not store.tree("v").exists()
    store.fill("v", lake, manifest)
    assert (store.tree("v") / "large").read_bytes() == LARGE


def test_a_second_version_brings_only_what_is_new(lake: Lake, store: CacheStore):
    store.fill("one", lake, kept(lake, FILES))
    reports: list[Progress] = []
    second = kept(lake, FILES | {"sub/a": (FILE, b"other")})
    assert store.lacking_bytes(second) == len(b"other")
    store.fill("two", lake, second, report=reports.append)
    assert (reports[-1].bytes_moved, reports[-1].sharing) == (len(b"other"), Sharing.COPY)
    store.fill("again", lake, second, report=reports.append)
    assert (reports[-1].bytes_moved, reports[-1].sharing) == (0, None)
    store.remove("again")
    assert store.remove("one") == 0
    assert (store.tree("two") / "sub/again").read_bytes() == b"alpha"
    assert store.remove("two") == sum(
        map(len, {content for kind, content in FILES.values()} | {b"other"})
    ) - len(b"sub/a")
    assert not list((store.root / "trees").iterdir())
    assert store.keys() == set()


def test_removing_a_cache_leaves_the_lake_whole(lake: Lake, store: CacheStore):
    """Large contents are hard links where the file system cannot share extents."""
    manifest = kept(lake, FILES)
    store.fill("v", lake, manifest)
    store.remove("v")
    found = lake.verify(manifest.contents())
    assert (found.missing, found.quarantined) == ([], [])


def test_a_fill_that_was_killed_goes_on_with_what_is_there(
    kit: LakeKit, lake: Lake, store: CacheStore, tmp_path: Path
):
    manifest = many(lake)
    (tmp_path / "manifest").write_bytes(manifest.encode())
    for _ in range(3):
        arguments = [kit.spec(), str(store.root), str(tmp_path / "manifest")]
        # the first 100 of the second and third run are those that are there already
        run = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, cwd=CHECKOUT)
        assert run.returncode == -9
        assert not store.tree("v").exists()
    reports: list[Progress] = []
    store.fill("v", lake, manifest, report=reports.append)
    assert reports[-1].files == 400
    assert reports[-1].bytes_moved < reports[-1].bytes_done
    assert len(list(store.tree("v").iterdir())) == 400


def test_files_that_killed_processes_left_are_removed_and_those_of_living_ones_stay(
    lake: Lake, store: CacheStore
):
    staging, other = store.root / "staging", CacheStore(store.root)
    (staging / "file").write_bytes(b"of a killed process")
    (staging / "tree" / "sub").mkdir(parents=True)
    with other._staging.staged() as held:
        held.write_bytes(b"being written")
        store.fill("v", lake, kept(lake, FILES))
        assert [path for path in staging.rglob("*") if path.is_file() and path.name != LOCK] == [held]
    store.remove("v")
    assert not held.exists()
    folder = held.parent
    del other
    assert not folder.exists()


def test_a_folder_that_is_being_removed_cannot_be_locked_by_another_process(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    left, removed, remove = store.root / "staging" / "left", [], shutil.rmtree
    left.mkdir()
    (left / "file").write_bytes(b"of a killed process")

    def note(path: Path, **options: bool) -> None:
        if (path / "file").exists():
            removed.append(path)
            assert not left.exists()
        remove(path, **options)

    monkeypatch.setattr("datasets.storage.staging.shutil.rmtree", note)
    store.fill("v", lake, kept(lake, FILES))
    assert len(removed) == 1
    assert not removed[0].exists()


def test_content_that_a_killed_fill_left_damaged_is_brought_again(lake: Lake, store: CacheStore):
    manifest = kept(lake, FILES)
    left = store.root / "trees" / "v.part"
    (left / "sub").mkdir(parents=True)
    (left / "sub/a").write_bytes(b"ALPHA")
    (left / "sub/a").chmod(0o444)
    (left / "run.sh").write_bytes(b"#!/bin/sh")  # not executable yet
    store.fill("v", lake, manifest)
    assert (store.tree("v") / "sub/a").read_bytes() == b"alpha"
    assert (store.tree("v") / "run.sh").stat().st_mode & 0o777 == 0o555


def test_files_of_another_tree_that_a_killed_fill_left_do_not_appear(lake: Lake, store: CacheStore):
    left = store.root / "trees" / "v.part"
    (left / "old" / "sub").mkdir(parents=True)
    (left / "old" / "sub" / "a").write_bytes(b"old")
    (left / "sub").mkdir()
    (left / "sub" / "old").write_bytes(b"old")
    (left / "link").symlink_to("old")
    (left / "elsewhere").symlink_to("old/sub")
    store.fill("v", lake, kept(lake, FILES))
    tree = store.tree("v")
    assert {str(path.relative_to(tree)) for path in tree.rglob("*")} == {*FILES, "sub"}
    assert os.readlink(tree / "link") == "sub/a"


def test_what_a_killed_fill_left_serves_other_trees_too(lake: Lake, store: CacheStore):
    manifest, reports, checks = many(lake), list[Progress](), count()
    # Not after a report: all of its packs may have been read by then.
    with pytest.raises(Cancelled):
        store.fill("v", lake, manifest, Budget(is_cancelled=lambda: next(checks) >= 4))
    assert store.lacking_bytes(manifest) < manifest.size_bytes
    store.fill("w", lake, manifest, report=reports.append)
    assert 0 < reports[-1].bytes_moved < reports[-1].bytes_done
    store.fill("v", lake, manifest, report=reports.append)
    assert reports[-1].bytes_moved == 0
    assert inodes(store, "v") == inodes(store, "w")


def test_a_file_that_a_killed_fill_left_incomplete_has_to_be_copied(lake: Lake, store: CacheStore):
    """Otherwise the next fill reserves no room for it."""
    manifest = kept(lake, {"large": (FILE, LARGE), "run.sh": (EXECUTABLE, b"#!/bin/sh")})
    with pytest.raises(Cancelled):
        store.fill("v", lake, manifest, Budget(is_cancelled=lambda: True))
    left = store.root / "trees" / "v.part"
    (left / "large").write_bytes(LARGE[:10])
    (left / "large").chmod(0o444)
    (left / "run.sh").write_bytes(b"#!/bin/sh")  # not executable yet
    assert store.lacking_bytes(manifest) == manifest.size_bytes
    (left / "run.sh").chmod(0o555)
    assert store.lacking_bytes(manifest) == len(LARGE)


def test_a_manifest_that_a_power_cut_left_empty_hinders_no_other_work(lake: Lake, store: CacheStore):
    manifest = many(lake)
    with pytest.raises(Cancelled):
        store.fill("v", lake, manifest, Budget(is_cancelled=lambda: True))
    (store.root / "manifests" / "v").unlink()
    (store.root / "manifests" / "v").touch()
    assert store.lacking_bytes(manifest) == manifest.size_bytes
    store.fill("w", lake, manifest)
    assert store.remove("w") == manifest.size_bytes
    store.fill("v", lake, manifest)
    (store.root / "manifests" / "w").touch()
    store.remove("w")
    assert store.keys() == {"v"}


def test_a_cancelled_fill_ends_between_two_pieces(lake: Lake, store: CacheStore):
    manifest, reports = many(lake), list[Progress]()
    budget = Budget(is_cancelled=lambda: bool(reports))
    with pytest.raises(Cancelled):
        store.fill("v", lake, manifest, budget, reports.append)
    assert not store.tree("v").exists()
    assert store.keys() == {"v"}
    store.remove("v")
    assert store.keys() == set()


def test_a_fill_may_be_cancelled_before_each_content_that_it_verifies(lake: Lake, store: CacheStore):
    manifest, checks = many(lake, 50), count()
    store.fill("v", lake, manifest)
    store.tree("v").rename(store.root / "trees" / "v.part")
    store.fill("v", lake, manifest, Budget(is_cancelled=lambda: next(checks) < 0))
    assert next(checks) >= len(manifest)


def test_two_names_that_are_one_to_the_file_system_make_no_tree(lake: Lake, store: CacheStore):
    """As "A" and "a" where it ignores case: the one would have the other's content."""
    kept(lake, FILES | {"other": (FILE, b"other")})
    for second in (b"alpha", b"other"):
        contents = (b"alpha", second, b"other")
        digests = b"".join(sha256(content).digest() for content in contents)
        manifest = Manifest([b"a", b"a", b"b"], bytes([FILE] * 3), array("Q", map(len, contents)), digests)
        with pytest.raises(FileExistsError):
            store.fill("v", lake, manifest)
        assert not store.tree("v").exists()


def test_content_whose_tree_is_removed_under_a_fill_is_stored_again(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    store.fill("one", lake, kept(lake, FILES))
    second, makedirs = kept(lake, FILES | {"sub/b": (FILE, b"new")}), os.makedirs

    def remove_first(*arguments: object, **options: object) -> None:
        store.remove("one")
        makedirs(*arguments, **options)

    monkeypatch.setattr("os.makedirs", remove_first)
    store.fill("two", lake, second)
    assert (store.tree("two") / "sub/a").read_bytes() == b"alpha"


def test_content_of_two_trees_stays_one_file_if_one_of_them_is_removed_under_a_fill(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    small, makedirs = {"a": (FILE, b"alpha"), "sub/b": (FILE, b"beta")}, os.makedirs
    for key in ("one", "two"):
        store.fill(key, lake, kept(lake, small))

    def remove_first(*arguments: object, **options: object) -> None:
        (store.tree("one") / "a").unlink(missing_ok=True)
        (store.tree("two") / "sub/b").unlink(missing_ok=True)
        makedirs(*arguments, **options)

    monkeypatch.setattr("os.makedirs", remove_first)
    store.fill("three", lake, kept(lake, small))
    assert (store.tree("three") / "a").samefile(store.tree("two") / "a")
    assert (store.tree("three") / "sub/b").samefile(store.tree("one") / "sub/b")


def test_a_content_that_two_fills_bring_at_the_same_time_becomes_one_file(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    manifest, contents = kept(lake, FILES), lake.contents

    def fill_first(located: Sequence[Located]) -> Iterator[tuple[bytes, bytes]]:
        monkeypatch.setattr(lake, "contents", contents)
        CacheStore(store.root).fill("one", lake, manifest)
        return contents(located)

    monkeypatch.setattr(lake, "contents", fill_first)
    store.fill("two", lake, manifest)
    assert inodes(store, "one") == inodes(store, "two")
    assert not [path for path in (store.root / "trees").iterdir() if path.name not in {"one", "two"}]


def test_the_second_names_of_an_earlier_layout_are_removed(lake: Lake, store: CacheStore):
    """Contents had a name of their own, and what was removed a manifest until it was gone."""
    store.fill("one", lake, kept(lake, FILES))
    shelf = store.root / "contents" / "ab"
    shelf.mkdir(parents=True)
    (shelf / "cd").hardlink_to(store.tree("one") / "sub/a")
    (store.root / "removed").mkdir()
    (store.root / "removed" / "gone").write_bytes(b"a manifest")
    store.fill("two", lake, kept(lake, FILES))
    assert {path.name for path in store.root.iterdir()} == set(_FOLDERS)
    assert inodes(store, "one") == inodes(store, "two")


def test_content_that_a_collection_moves_during_a_fill_is_found_again(
    kit: LakeKit, lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    lake.put_pack(memoryview(pack_of(b"alpha", *(b"dead %d" % number for number in range(20)))))
    manifest = make_manifest([Entry(b"a", FILE, 5, sha256(b"alpha").digest())])
    lake.put_manifest(manifest.hash, manifest.encode())
    kit.age(lake)
    contents = lake.contents

    def collect_first(located: Sequence[Located]) -> Iterator[tuple[bytes, bytes]]:
        monkeypatch.setattr(lake, "contents", contents)
        assert lake.collect(lambda: [manifest.hash], older_than_seconds=3600).packs == 1
        return contents(located)

    monkeypatch.setattr(lake, "contents", collect_first)
    store.fill("v", lake, manifest)
    assert (store.tree("v") / "a").read_bytes() == b"alpha"


class Elsewhere(list[Located]):
    """Locations that differ from all others."""

    def __eq__(self, _: object) -> bool:
        return False

    __hash__ = None


def test_a_collection_in_the_middle_of_a_pack_repeats_what_was_written_of_it(
    lake: Lake, store: CacheStore, monkeypatch: pytest.MonkeyPatch
):
    manifest = kept(lake, {name: (FILE, content) for name, content in TWICE.items()})
    contents, locate, moves = lake.contents, lake.locate, iter([True])

    def lost_in_the_middle(located: Sequence[Located]) -> Iterator[tuple[bytes, bytes]]:
        for place, found in enumerate(contents(located)):
            if place == 1 and next(moves, False):
                raise ContentMissing("Its pack was removed.")
            yield found

    monkeypatch.setattr(lake, "contents", lost_in_the_middle)
    monkeypatch.setattr(lake, "locate", lambda digests: Elsewhere(locate(digests)))
    store.fill("v", lake, manifest)
    assert {path.name: path.read_bytes() for path in store.tree("v").iterdir()} == TWICE


@pytest.mark.parametrize("again", ["one", "two"], ids=["the same", "another"])
def test_what_a_killed_removal_left_goes_with_the_next_work_on_the_location(
    lake: Lake, store: CacheStore, again: str
):
    store.fill("one", lake, kept(lake, FILES))
    store.fill("two", lake, kept(lake, {"a": (FILE, b"alpha")}))
    arguments = [sys.executable, "-c", KILLED_REMOVAL, str(store.root)]
    assert subprocess.run(arguments, check=False, cwd=CHECKOUT).returncode == -9
    assert store.keys() == {"two"}
    store.remove(again)
    left = {path.read_bytes() for path in store.root.rglob("*") if path.is_file() and path.stat().st_size}
    manifests = {path.read_bytes() for path in (store.root / "manifests").iterdir()}
    assert left - manifests == ({b"alpha"} if again == "one" else set())


def test_what_a_killed_removal_of_an_incomplete_tree_left_is_removed_by_the_next_work(
    lake: Lake, store: CacheStore
):
    manifest, reports = many(lake), list[Progress]()
    with pytest.raises(Cancelled):
        store.fill("one", lake, manifest, Budget(is_cancelled=lambda: bool(reports)), reports.append)
    arguments = [sys.executable, "-c", KILLED_REMOVAL, str(store.root)]
    assert subprocess.run(arguments, check=False, cwd=CHECKOUT).returncode == -9
    assert store.keys() == set()
    store.remove("two")
    assert not list((store.root / "trees").iterdir())
    assert [path.name for path in (store.root / "staging").rglob("*") if path.is_file()] in ([], [LOCK])


def test_files_are_read_only_whatever_the_umask(lake: Lake, store: CacheStore):
    before = os.umask(0o077)
    try:
        files = {"one": (FILE, b"first"), "two": (FILE, b"second"), "run": (EXECUTABLE, b"#!")}
        store.fill("v", lake, kept(lake, files))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in store.tree("v").iterdir()}
    assert modes == {"one": 0o444, "two": 0o444, "run": 0o555}
