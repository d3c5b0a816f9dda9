"""A listing by GNU find is what Python's walk finds, and shows that nothing changed."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from datasets.ingest.engine import Synced, sync_tree
from datasets.ingest.listing import Listing, load_seen
from datasets.ingest.tree import walk
from datasets.storage.folder_sink import sink_of_folder

OLD_NS = 1_700_000_000_123_456_789
pytestmark = pytest.mark.skipif(
    shutil.which("find") is None or not hasattr(os, "memfd_create"), reason="there is no GNU find"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub" / "below").mkdir(parents=True)
    (root / "empty").mkdir()
    for name in (
        b"plain",
        b"a b  c",
        b"new\nline",
        b"\xff\xfe",
        b"-delete",
        b"sub/x",
        b"sub/below/%s",
        b"sub-x",
    ):
        (root / os.fsdecode(name)).write_bytes(name)
    (root / "run").write_bytes(b"#!")
    modes = {"run": 0o755, "plain": 0o4711, "sub/x": 0o011, "sub-x": 0o670}
    for name, mode in modes.items():
        (root / name).chmod(mode)
    for name, target in {"link": "sub/x", "sub/up": "../run", "out": "/etc/passwd", "loop": "../.."}.items():
        (root / name).symlink_to(target)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    for place, path in enumerate(root.rglob("*")):
        os.utime(path, ns=(OLD_NS, OLD_NS + place), follow_symlinks=False)
    return root


def found_in(tree: Path):
    with Listing(os.fsencode(tree)) as listing:
        return listing.walk()


def by_path(found):
    assert found is not None
    return found.directories, sorted(found.skipped, key=lambda one: one.path)


def test_a_listing_is_what_a_walk_finds(tree: Path):
    walked = walk(os.fsencode(tree))
    assert by_path(found_in(tree)) == by_path(walked)
    assert (walked.files, len(walked.skipped)) == (11, 4)


def test_an_empty_directory_has_a_listing(tmp_path: Path):
    assert by_path(found_in(tmp_path)) == ([], [])


def test_there_is_none_of_what_find_cannot_read(tmp_path: Path):
    assert found_in(tmp_path / "nowhere") is None


def test_there_is_none_without_find(tree: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert found_in(tree) is None


def test_times_before_1970_are_left_to_python(tree: Path):
    os.utime(tree / "run", ns=(0, -1_500_000_000))
    assert found_in(tree) is None


def synced(tree: Path, tmp_path: Path, base: str = "") -> Synced:
    with Listing(os.fsencode(tree)) as listing:
        sink = sink_of_folder(tmp_path / "lake")
        return sync_tree(tree, sink, index=tmp_path / "one.index", listing=listing, base=base)


@pytest.fixture
def first(tree: Path, tmp_path: Path) -> Synced:
    found = synced(tree, tmp_path)
    assert found.manifest is not None
    return found


def test_an_equal_listing_needs_no_index(tree: Path, tmp_path: Path, first: Synced):
    (tmp_path / "one.index").unlink()
    again = synced(tree, tmp_path, first.version)
    assert (again.manifest, again.version, again.files, again.files_read) == (None, first.version, 11, 0)
    assert again.skipped == first.skipped
    assert again.skipped


@pytest.mark.parametrize(
    ("change", "files_read"),
    [
        (lambda tree: (tree / "plain").write_bytes(b"PLAIN"), 1),
        (lambda tree: os.utime(tree / "plain", ns=(0, OLD_NS - 1)), 1),
        (lambda tree: (tree / "plain").chmod(0o4611), 1),
        (lambda tree: (tree / "sub" / "x").rename(tree / "sub" / "y"), 1),
        (lambda tree: (tree / "sub" / "x").unlink(), 0),
        (lambda tree: (tree / "empty" / "new").write_bytes(b""), 1),
    ],
)
def test_every_change_is_found(tree: Path, tmp_path: Path, first: Synced, change, files_read):
    change(tree)
    again = synced(tree, tmp_path, first.version)
    assert again.manifest is not None
    assert again.version == sync_tree(tree, sink_of_folder(tmp_path / "lake")).version
    assert again.files_read == files_read


def test_another_base_is_compared(tree: Path, tmp_path: Path, first: Synced):
    assert synced(tree, tmp_path, "another").manifest is not None


def test_a_listing_of_young_files_is_not_trusted(tree: Path, tmp_path: Path, first: Synced):
    """A change within the same tick of the file system's clock would leave it as it is."""
    seen = load_seen(tmp_path / "one.index")
    (tree / "plain").write_bytes(b"young")
    second = synced(tree, tmp_path, first.version)
    assert load_seen(tmp_path / "one.index") == seen
    assert seen is not None
    assert seen.version != second.version


def test_a_listing_of_a_file_that_changed_afterwards_is_not_trusted(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It would come back if the file did."""
    with Listing(os.fsencode(tree)) as listing:
        assert listing.raw is not None
        (tree / "plain").write_bytes(b"between")
        os.utime(tree / "plain", ns=(OLD_NS, OLD_NS - 1))
        sync_tree(tree, sink_of_folder(tmp_path / "lake"), index=tmp_path / "one.index", listing=listing)
    assert load_seen(tmp_path / "one.index") is None
