"""A listing by GNU find is what Python's walk finds, and shows that nothing changed."""

import errno
import os
import shutil
import socket
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from datasets.ingest.engine import Synced, sync_tree
from datasets.ingest.last_listing import LastListing, difference, load_last, save_last
from datasets.ingest.listing import Listing, ListingInvalid, load_seen, walk_of
from datasets.ingest.reading import ALONE_FILES
from datasets.ingest.tree import Directory, SourceMissing, walk
from datasets.manifests import Manifest
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


def test_files_read_from_a_listing_that_turns_out_to_be_invalid_count_once(tree: Path, tmp_path: Path):
    """Worker processes read the first directories before the last one is parsed."""
    for name in ("many", "more", "most"):
        (tree / name).mkdir()
        for number in range(ALONE_FILES):
            (tree / name / f"{number}").write_bytes(b"%d" % number)
    with Listing(os.fsencode(tree)) as listing:
        listing.lines.append(b"f 644 1 -1.5000000000 7 zzz//")
        found = sync_tree(tree, sink_of_folder(tmp_path / "lake"), listing=listing, workers=2)
    scratch = sync_tree(tree, sink_of_folder(tmp_path / "lake"))
    assert found.version == scratch.version
    assert found.files_read == found.files == scratch.files == 11 + 3 * ALONE_FILES


def test_directories_are_noted_while_find_lists_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    gate, program = tmp_path / "gate", tmp_path / "bin" / "find"
    os.mkfifo(gate)
    program.parent.mkdir()
    # It fails if nobody opens the gate.
    program.write_text(
        "#!/bin/sh\n"
        r"printf 'f 644 1 1.0000000000 7 a/x//\0f 644 1 1.0000000000 7 b/x//\0'"
        f"\ntimeout 30 sh -c '< {gate}'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    noted: list[bytes] = []

    with ExitStack() as opened:

        def note(directory: Directory) -> None:
            if not noted:
                opened.callback(os.close, os.open(gate, os.O_RDWR))
            noted.append(directory.path)

        listing = opened.enter_context(Listing(os.fsencode(tmp_path)))
        assert listing.walk(note) is not None
    assert noted == [b"a", b"b"]


def test_a_directory_is_noted_once_all_its_files_are_known(tree: Path):
    (tree / "sub" / "zz").write_bytes(b"")
    noted: list[tuple[bytes, int]] = []
    with Listing(os.fsencode(tree)) as listing:
        found = listing.walk(lambda one: noted.append((one.path, len(one.rows))))
    assert found is not None
    assert sorted(noted) == [(one.path, len(one.rows)) for one in found.directories]


def test_files_of_a_directory_that_was_left_make_a_listing_invalid():
    lines = [b"f 644 1 1.0000000000 7 %s//" % path for path in (b"a/x", b"b/x", b"a/y")]
    with pytest.raises(ListingInvalid):
        walk_of(lines)
    # Between them only those below it.
    found = walk_of([lines[0].replace(b"a/x", b"a/sub/x"), *lines[:1], lines[2]])
    assert [(one.path, [row[0] for row in one.rows]) for one in found.directories] == [
        (b"a", [b"x", b"y"]),
        (b"a/sub", [b"x"]),
    ]


def synced(tree: Path, tmp_path: Path, base: str = "") -> Synced:
    with Listing(os.fsencode(tree)) as listing:
        sink = sink_of_folder(tmp_path / "lake")
        found = sync_tree(tree, sink, index=tmp_path / "one.index", listing=listing, base=base)
        found.remember()
        return found


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


NAMES = [b"a", b"A", b"a b//c", b"a//b", b"\xff", b"\xfe\n", b"-print", b"sub", b"a.b", b"a0"]


def edited(tree: Path, draw: Random) -> None:
    """Add, change, rename or remove a random file or directory, or change its mode or what it is."""
    inside = list(tree.rglob("*"))
    directories = [tree, *(path for path in inside if path.is_dir() and not path.is_symlink())]
    target = draw.choice(directories) / os.fsdecode(draw.choice(NAMES).replace(b"//", b"-"))
    files = [path for path in inside if path.is_file() and not path.is_symlink()]
    kind = draw.choice(["new", "new", "link", "directory", "pipe", "rename", "remove", "chmod", "write"])
    if kind in ("rename", "remove", "chmod", "write") and files:
        source = draw.choice(files)
        {
            "rename": lambda: os.path.lexists(target) or source.rename(target),
            "remove": source.unlink,
            "chmod": lambda: source.chmod(draw.choice([0o644, 0o755])),
            "write": lambda: source.write_bytes(draw.randbytes(3)),
        }[kind]()
    elif target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
        {
            "link": lambda: target.symlink_to(draw.choice(["a", "../a", "/etc//passwd", "x y//z"])),
            "directory": target.mkdir,
            "pipe": lambda: os.mkfifo(target),
        }.get(kind, lambda: target.write_bytes(draw.randbytes(2)))()
    # Most files are older than the clock's doubt, some are not.
    if os.path.lexists(target) and draw.random() < 0.7:
        os.utime(target, ns=(0, OLD_NS + draw.randrange(9)), follow_symlinks=False)


@pytest.mark.parametrize("seed", range(6))
def test_the_version_after_a_few_changes_is_the_one_read_from_scratch(
    tree: Path, tmp_path: Path, first: Synced, monkeypatch: pytest.MonkeyPatch, seed: int
):
    monkeypatch.setattr(Listing, "walk", lambda *_: pytest.fail("the whole listing was parsed"))
    draw = Random(seed)
    for _ in range(12):
        for _ in range(draw.randrange(4)):
            edited(tree, draw)
        again, scratch = synced(tree, tmp_path), sync_tree(tree, sink_of_folder(tmp_path / "lake"))
        assert again.version == scratch.version
        assert again.manifest is not None
        assert scratch.manifest is not None
        assert list(again.manifest.entries()) == list(scratch.manifest.entries())
        assert again.files == scratch.files
        assert sorted(map(repr, again.skipped)) == sorted(map(repr, scratch.skipped))


@pytest.fixture
def last(tmp_path: Path, first: Synced) -> LastListing:
    found = load_last(tmp_path / "one.index")
    assert found is not None
    return found


def test_a_young_file_is_read_again_although_its_line_is_the_same(
    tree: Path, tmp_path: Path, last: LastListing
):
    (tree / "plain").write_bytes(b"young")
    young = synced(tree, tmp_path)
    status = (tree / "plain").stat()
    (tree / "plain").write_bytes(b"YOUNG")
    os.utime(tree / "plain", ns=(status.st_atime_ns, status.st_mtime_ns))
    again = synced(tree, tmp_path)
    assert again.files_read == 1
    assert again.version != young.version
    (tree / "plain").unlink()
    assert synced(tree, tmp_path).files == len(last.manifest) - 1


def test_a_file_that_vanishes_after_the_listing_fails_the_sync(tree: Path, tmp_path: Path, last: LastListing):
    (tree / "plain").write_bytes(b"changed")
    with Listing(os.fsencode(tree)) as listing:
        assert listing.raw is not None
        (tree / "plain").unlink()
        found = sync_tree(
            tree, sink_of_folder(tmp_path / "lake"), index=tmp_path / "one.index", listing=listing
        )
    assert (found.manifest, found.failed) == (None, [(b"plain", "gone")])
    kept = load_last(tmp_path / "one.index")
    assert kept is not None
    assert kept.lines == last.lines
    assert synced(tree, tmp_path).files == len(last.manifest) - 1


@pytest.fixture
def failing_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A find that lists nothing and fails, as it does for a directory that it cannot read."""
    program = tmp_path / "bin" / "find"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_without_a_listing_no_file_counts_as_removed(
    tree: Path, tmp_path: Path, first: Synced, last: LastListing, failing_find: None
):
    (tree / "plain").write_bytes(b"changed")
    found = synced(tree, tmp_path, first.version)
    assert found.version == sync_tree(tree, sink_of_folder(tmp_path / "lake")).version
    tree.rename(tmp_path / "moved")
    with pytest.raises(SourceMissing):
        synced(tree, tmp_path, first.version)


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (errno.EACCES, [(b"sub/below", "unreadable")]),
        (errno.EIO, [(b"sub/below", "unreadable")]),
        (errno.ENAMETOOLONG, [(b"sub/below", "path_too_long")]),
        (errno.ENOENT, []),
    ],
)
def test_a_directory_that_cannot_be_read_fails_the_sync_unless_it_is_gone(
    tree: Path, tmp_path: Path, first: Synced, failing_find: None, monkeypatch, error, failed
):
    def scandir(path: bytes):
        if path.endswith(b"/below"):
            raise OSError(error, os.strerror(error))
        return read(path)

    read = os.scandir
    monkeypatch.setattr("datasets.ingest.tree.os.scandir", scandir)
    found = synced(tree, tmp_path, first.version)
    assert (found.failed, found.manifest is None) == (failed, bool(failed))


@pytest.mark.parametrize("harm", ["cut", "flip", "other"])
def test_a_damaged_listing_counts_for_nothing(
    tree: Path, tmp_path: Path, last: LastListing, first: Synced, harm: str
):
    path = tmp_path / "one.last"
    if harm == "other":
        # Not what any sync stores: the manifest of another tree.
        with Listing(os.fsencode(tree)) as listing:
            save_last(tmp_path / "one.index", listing, Manifest.empty(), [], [])
    else:
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw if harm == "flip" else raw[:-1])
        assert load_last(tmp_path / "one.index") is None
    (tree / "plain").write_bytes(b"changed")
    again = synced(tree, tmp_path, first.version)
    assert again.version == sync_tree(tree, sink_of_folder(tmp_path / "lake")).version


def test_many_changes_are_left_to_the_index(
    tree: Path, tmp_path: Path, last: LastListing, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("datasets.ingest.last_listing._FEW", 2)
    for name in ("1", "2", "3", "4", "5"):
        (tree / name).write_bytes(name.encode())
    with Listing(os.fsencode(tree)) as listing:
        assert difference(last, listing) is None
    assert synced(tree, tmp_path).version == sync_tree(tree, sink_of_folder(tmp_path / "lake")).version


def test_a_listing_in_another_order_is_the_same(tree: Path, tmp_path: Path, last: LastListing):
    with Listing(os.fsencode(tree)) as listing:
        listing.lines.reverse()
        found = difference(last, listing)
    assert found is not None
    assert found.is_empty


@pytest.mark.parametrize("is_first", [True, False])
def test_a_version_is_made_although_the_disk_of_the_index_is_full(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_first: bool
):
    (tmp_path / "own").mkdir()
    index, said = tmp_path / "own" / "one.index", list[str]()

    def sync() -> Synced:
        with Listing(os.fsencode(tree)) as listing:
            found = sync_tree(
                tree, sink_of_folder(tmp_path / "lake"), index=index, listing=listing, say=said.append
            )
            found.remember()
            return found

    def refuse(fresh: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if not is_first:
        sync()
        (tree / "plain").write_bytes(b"changed")
    kept = set(os.listdir(index.parent))
    with monkeypatch.context() as full:
        full.setattr(os, "replace", refuse)
        version = sync().version
    assert version == sync_tree(tree, sink_of_folder(tmp_path / "lake")).version
    assert set(said) == {"the next sync will take longer: No space left on device"}
    assert set(os.listdir(index.parent)) >= kept
    assert not [name for name in os.listdir(index.parent) if name.startswith(".")]
    assert sync().version == version


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
        sync_tree(
            tree, sink_of_folder(tmp_path / "lake"), index=tmp_path / "one.index", listing=listing
        ).remember()
    assert load_seen(tmp_path / "one.index") is None
