"""What a sync does and survives, and what only the lake in a folder does."""

import errno
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from datasets.ingest.engine import sync_tree
from datasets.ingest.packs import pack_index
from datasets.ingest.reader import Content, Reader
from datasets.ingest.reading import Cancelled
from datasets.ingest.tree import SourceMissing
from datasets.manifests import FILE, LINK, Manifest
from datasets.storage.base import Blocked
from datasets.storage.contents import WHOLE, Sharing
from datasets.storage.folder import WHOLE_BYTES, FolderLake
from datasets.storage.folder_sink import FolderSink, sink_of_folder
from tests.waiting import wait_until

# Not "!" at its start, which a test writes there to damage it.
LARGE = b"\0" + os.urandom(WHOLE_BYTES)


@pytest.fixture
def lake(tmp_path: Path):
    with_folder = FolderLake(tmp_path / "lake")
    yield with_folder
    with_folder.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with a small file, a twin, a large one, an executable, a link and a name that is not UTF-8."""
    root = tmp_path / "source"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"alpha")
    (root / "sub" / "twin.txt").write_bytes(b"alpha")
    (root / "sub" / "large.bin").write_bytes(LARGE)
    # A private one is not linked, and a test before may have set the control plane's umask.
    (root / "sub" / "large.bin").chmod(0o644)
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub" / "link").symlink_to("../a.txt")
    (root / "sub" / "deep" / "loop").symlink_to("loop")
    (root / os.fsdecode(b"n\xff" + b"m" * 250)).write_bytes(b"")
    return root


def synced(source: Path, lake: FolderLake, **options) -> Manifest:
    found = sync_tree(source, sink_of_folder(lake.root), **options)
    found.remember()
    assert found.manifest is not None
    assert not found.failed
    return found.manifest


def pack(*contents: bytes) -> memoryview:
    index = pack_index((sha256(content).digest(), len(content)) for content in contents)
    return memoryview(b"".join((*contents, index)))


def test_a_second_sync_reads_nothing_and_a_changed_file_alone_is_read(source, lake, tmp_path):
    index = tmp_path / "index"
    for path in (
        source / "a.txt",
        source / "sub" / "twin.txt",
        source / "sub" / "large.bin",
        source / "run.sh",
    ):
        os.utime(path, (1, 1))
    for link in (source / "sub" / "link", source / "sub" / "deep" / "loop"):
        os.utime(link, (1, 1), follow_symlinks=False)
    os.utime(os.fsencode(source) + b"/n\xff" + b"m" * 250, (1, 1))
    first = synced(source, lake, index=index)
    again = sync_tree(source, sink_of_folder(lake.root), index=index, base=first.hash)
    assert (again.manifest, again.version, again.files_read) == (None, first.hash, 0)
    (source / "a.txt").write_bytes(b"other")
    changed = sync_tree(source, sink_of_folder(lake.root), index=index, base=first.hash)
    assert changed.files_read == 1
    assert changed.manifest is not None
    assert changed.manifest.find(b"a.txt").digest == sha256(b"other").digest()


def test_a_file_written_just_before_the_walk_is_read_again(source, lake, tmp_path):
    """Two writes within one tick of the file system's clock leave one mtime and one size."""
    first = synced(source, lake, index=tmp_path / "index")
    status = (source / "a.txt").stat()
    (source / "a.txt").write_bytes(b"ALPHA")
    os.utime(source / "a.txt", ns=(status.st_atime_ns, status.st_mtime_ns))
    again = sync_tree(source, sink_of_folder(lake.root), index=tmp_path / "index", base=first.hash)
    assert again.manifest is not None
    assert again.manifest.find(b"a.txt").digest == sha256(b"ALPHA").digest()


def test_a_broken_index_counts_for_nothing(source, lake, tmp_path):
    first = synced(source, lake, index=tmp_path / "index")
    assert synced(source, lake, index=tmp_path / "index", base="0" * 64).hash == first.hash
    (tmp_path / "index").write_bytes(b"\0" * 40)
    assert synced(source, lake, index=tmp_path / "index", base=first.hash).hash == first.hash


def test_what_is_no_file_and_links_out_of_the_tree_are_skipped_and_named(source, lake):
    (source / "out").symlink_to("/etc/passwd")
    (source / "up").symlink_to("sub/../../up")
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(source, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        found = sync_tree(source, sink_of_folder(lake.root))
    assert {(skipped.path, skipped.reason) for skipped in found.skipped} == {
        (b"out", "link_leaves_tree"),
        (b"up", "link_leaves_tree"),
        (b"pipe", "not_a_file"),
        (b"socket", "not_a_file"),
    }
    assert found.manifest is not None
    assert found.manifest.find(b"sub/link").kind == LINK


def test_names_are_bytes_and_links_are_resolved_in_their_directory(source, lake):
    """A walk that lists names as text would have to turn them back."""
    below = os.fsencode(source / "sub") + b"/\xff\xfe"
    os.mkdir(below)
    with open(below + b"/\xe9.bin", "wb") as file:
        file.write(b"latin")
    os.symlink(b"\xe9.bin", below + b"/link")
    os.symlink(b"../../../out", below + b"/leaves")
    found = sync_tree(source, sink_of_folder(lake.root))
    assert [skipped.path for skipped in found.skipped] == [b"sub/\xff\xfe/leaves"]
    assert found.manifest is not None
    assert found.manifest.find(b"sub/\xff\xfe/\xe9.bin").digest == sha256(b"latin").digest()
    assert found.manifest.find(b"sub/\xff\xfe/link").digest == sha256(b"\xe9.bin").digest()


def test_a_source_that_is_not_there_is_named(tmp_path, lake):
    with pytest.raises(SourceMissing, match="nowhere"):
        sync_tree(tmp_path / "nowhere", sink_of_folder(lake.root))


def test_a_file_that_changes_under_every_read_is_named_and_makes_no_version(source, lake, monkeypatch):
    status, ticks = os.fstat, count()

    def restless(descriptor: int) -> SimpleNamespace:
        real = status(descriptor)
        return SimpleNamespace(st_size=real.st_size, st_mtime_ns=next(ticks))

    monkeypatch.setattr("datasets.ingest.reader.os.fstat", restless)
    found = sync_tree(source, sink_of_folder(lake.root))
    assert found.manifest is None
    assert (b"a.txt", "changing") in found.failed


def test_a_file_that_vanishes_after_the_walk_is_named(source, lake, monkeypatch):
    opened = os.open

    def gone(path, *rest, **more):
        if isinstance(path, bytes) and path.endswith(b"a.txt"):
            raise FileNotFoundError(path)
        return opened(path, *rest, **more)

    monkeypatch.setattr("datasets.ingest.reader.os.open", gone)
    found = sync_tree(source, sink_of_folder(lake.root))
    assert (found.manifest, found.failed) == (None, [(b"a.txt", "gone")])


def test_a_cancelled_sync_stops_and_goes_on_where_it_was(source, lake):
    with pytest.raises(Cancelled):
        sync_tree(source, sink_of_folder(lake.root), report=lambda _: False)
    assert len(synced(source, lake)) == 7


def test_contents_are_stored_once(source, lake):
    synced(source, lake)
    packs = {path: path.stat().st_size for path in (lake.root / "packs").rglob("*") if path.is_file()}
    (source / "again").mkdir()
    (source / "again" / "copy.bin").write_bytes(LARGE)
    (source / "again" / "a.txt").write_bytes(b"alpha")
    synced(source, lake)
    assert packs == {path: path.stat().st_size for path in (lake.root / "packs").rglob("*") if path.is_file()}
    assert len([path for path in (lake.root / "objects").rglob("*") if path.is_file()]) == 1


def test_a_flush_makes_nothing_known_that_was_written_meanwhile(lake, monkeypatch):
    """Uploads run in several threads of one process."""
    late = Content(sha256(b"late").digest(), b"late")

    def flush_while_another_thread_writes(_: Path) -> None:
        monkeypatch.undo()
        lake.put_contents([late])

    monkeypatch.setattr("datasets.storage.folder.sync_file_system", flush_while_another_thread_writes)
    lake.put_pack(pack(b"early"))
    assert not lake.lacking([sha256(b"early").digest()])
    assert lake.lacking([late.digest])


def test_young_content_of_no_version_is_kept(lake):
    lake.put_pack(pack(b"arriving"))
    lake.collect(list, older_than_seconds=3600)
    assert not lake.lacking([sha256(b"arriving").digest()])


def test_content_that_a_sync_relies_on_counts_as_young(lake, monkeypatch):
    """It was there, so it is not sent; and a user's own file that holds it keeps its times."""
    monkeypatch.setattr("datasets.storage.files.RENEWED_SECONDS", 0.0)
    lake.put_pack(pack(b"relied on"))
    [located] = lake.locate([sha256(b"relied on").digest()])
    before = lake.path_of(located).stat()
    wait_until(
        lambda: (lake.renew([located.digest]), lake.path_of(located).stat().st_ctime_ns > before.st_ctime_ns)[
            1
        ]
    )
    assert lake.path_of(located).stat().st_mtime_ns == before.st_mtime_ns
    lake.collect(list, older_than_seconds=3600)
    assert not lake.lacking([located.digest])


def test_content_that_was_just_stored_is_not_written_again(lake):
    """A version has ten thousands of large files."""
    lake.put_pack(pack(b"just stored"))
    [located] = lake.locate([sha256(b"just stored").digest()])
    before = lake.path_of(located).stat().st_ctime_ns
    for _ in range(100):
        lake.renew([located.digest])
    assert lake.path_of(located).stat().st_ctime_ns == before


def test_an_adopted_file_is_as_young_as_its_adoption(source, lake):
    os.utime(source / "sub" / "large.bin", (1, 1))
    sync_tree(source, sink_of_folder(lake.root, Sharing.HARD_LINK))
    lake.collect(list, older_than_seconds=3600)
    assert not lake.lacking([sha256(LARGE).digest()])


@pytest.mark.parametrize("content", [b"small", LARGE])
def test_a_file_that_is_removed_before_its_flush_is_not_known(lake, content):
    """A collection may remove an old file while the same content is stored again."""
    written = lake.put_contents([Content(sha256(content).digest(), content)])
    for path in [*(lake.root / "packs").rglob("*"), *(lake.root / "objects").rglob("*")]:
        if path.is_file():
            path.unlink()
    with pytest.raises(Blocked):
        lake.flush(written)
    assert lake.lacking([sha256(content).digest()])
    lake.put_pack(pack(b"next"))


def test_adopted_files_are_read_only_and_share_their_bytes(source, lake):
    found = sync_tree(source, sink_of_folder(lake.root, Sharing.HARD_LINK))
    assert found.manifest is not None
    [located] = lake.locate([sha256(LARGE).digest()])
    assert located.pack == WHOLE
    stored, original = lake.path_of(located).stat(), (source / "sub" / "large.bin").stat()
    assert stored.st_ino == original.st_ino or stored.st_nlink == 1  # linked, or reflinked where the disk can
    assert stored.st_mode & 0o222 == 0


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_link_takes_nothing_but_the_right_to_write(source, lake, mode):
    """A private file would become readable by every user of the machine; an executable would lose its mode."""
    file = source / "sub" / "large.bin"
    file.chmod(mode)
    sync_tree(source, sink_of_folder(lake.root, Sharing.HARD_LINK))
    assert (file.stat().st_nlink, file.stat().st_mode & 0o777) == (1, mode)


def test_a_file_of_another_user_is_copied(source, lake, monkeypatch):
    file = source / "sub" / "large.bin"
    monkeypatch.setattr("datasets.storage.folder.os.geteuid", lambda: file.stat().st_uid + 1)
    sync_tree(source, sink_of_folder(lake.root, Sharing.HARD_LINK))
    assert not lake.lacking([sha256(LARGE).digest()])
    assert file.stat().st_nlink == 1


@pytest.mark.parametrize("adopt", Sharing)
def test_a_file_that_is_renamed_after_it_was_read_is_stored_as_it_was_read(source, lake, adopt):
    file = source / "sub" / "large.bin"
    content = Content(sha256(LARGE).digest(), LARGE, os.fsencode(file), file.stat().st_mtime_ns)
    file.rename(source / "final.bin")
    lake.flush(lake.put_contents([content], adopt))
    assert lake.read(content.digest) == LARGE


def test_a_full_disk_is_no_unreadable_file(source, lake, monkeypatch):
    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("datasets.storage.folder.hash_file", full)
    with pytest.raises(Blocked, match="disk of this storage is full"):
        lake.put_file(
            sha256(LARGE).digest(), os.fsencode(source / "sub" / "large.bin"), len(LARGE), 0, Sharing.COPY
        )


def test_a_lake_whose_disk_is_unmounted_forgets_nothing(source, lake, tmp_path):
    contents = synced(source, lake).contents()
    lake.root.rename(tmp_path / "away")
    with pytest.raises(Blocked) as blocked:
        lake.verify(contents)
    assert blocked.value.code == "not_mounted"
    (tmp_path / "away").rename(lake.root)
    assert not lake.verify(contents).missing


@pytest.mark.parametrize("sent_whole", [True, False])
def test_a_file_that_changes_after_its_read_and_keeps_its_mtime_is_not_shared(
    source, lake, monkeypatch, sent_whole
):
    """Two writes within one tick of the file system's clock: the content was stored under the digest of the first."""
    sink, file = FolderSink(lake, Sharing.HARD_LINK), source / "sub" / "large.bin"
    sink.most_in_memory_bytes = 0 if sent_whole else len(LARGE)
    asked, status, writes = sink.lacking, file.stat(), iter([LARGE[::-1]])

    def lacking(digests):
        for content in writes:
            file.write_bytes(content)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        return asked(digests)

    monkeypatch.setattr(sink, "lacking", lacking)
    reader = Reader(os.fsencode(source), sink)
    [digest] = reader.read([(b"sub", [(b"large.bin", FILE, status.st_size, status.st_mtime_ns, 1)])])
    reader.flush()
    assert digest == sha256(lake.read(digest)).digest()
    assert not lake.verify([digest, sha256(LARGE).digest()]).quarantined


@pytest.mark.parametrize("is_same_device", [True, False])
def test_what_becomes_a_link_is_not_kept_in_memory(source, lake, monkeypatch, is_same_device):
    """From another file system it is copied, and then read once instead of twice."""
    sink, kept = FolderSink(lake, Sharing.HARD_LINK), []
    store = sink.put_contents
    monkeypatch.setattr(sink, "put_contents", lambda contents: (kept.extend(contents), store(contents)))
    if not is_same_device:
        sink._device = -1
    files = [source / "sub" / f"{number}.bin" for number in range(3)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * (300 << 10))
        file.chmod(0o644)
        os.utime(file, (1, 1))
    reader = Reader(os.fsencode(source), sink)
    found = [
        reader.read([(b"sub", [(b"%d.bin" % number, FILE, 300 << 10, 10**9, 1)])])[0] for number in range(3)
    ]
    reader.flush()
    assert [content.path for content in kept] == ([] if is_same_device else [*map(os.fsencode, files[1:])])
    assert found == [sha256(lake.read(digest)).digest() for digest in found]
    assert [file.stat().st_nlink for file in files] == [2, 2, 2]


def test_a_file_that_is_linked_again_leaves_no_second_link(source, lake):
    """After a kill the lake has it, and does not know it."""
    file = source / "sub" / "large.bin"
    os.utime(file, (1, 1))
    for _ in range(2):
        lake.put_file(sha256(LARGE).digest(), os.fsencode(file), len(LARGE), 10**9, Sharing.HARD_LINK)
    assert not staged_in(lake)


def staged_in(lake: FolderLake) -> list[Path]:
    return [path for path in (lake.root / "staging").rglob("*") if path.is_file()]


def test_what_killed_processes_staged_is_removed(lake, tmp_path):
    """Also by one with the layout of before, which had no folders there."""
    left = [lake.root / "staging" / name for name in ("of-before", "5e/killed")]
    left[1].parent.mkdir(exist_ok=True)
    for path in left:
        path.write_bytes(b"half a content")
    lake.collect(list, older_than_seconds=3600)
    assert sorted(staged_in(lake)) == sorted(left)
    lake.collect(list, older_than_seconds=0)
    assert staged_in(lake) == []
    lake.put_pack(pack(b"later"))
    assert lake.read(sha256(b"later").digest()) == b"later"


def test_two_processes_create_files_in_folders_of_their_own(lake, monkeypatch):
    """ext4 then puts them apart: with one of 256 names they have the same by chance."""
    shelves, rename = set(), os.rename

    def noted(source, target):
        shelves.add(Path(source).parent)
        rename(source, target)

    monkeypatch.setattr("os.rename", noted)
    for number in range(8):
        other = FolderLake(lake.root)
        other.put_pack(pack(b"%d" % number))
        other.close()
    assert {shelf.parent for shelf in shelves} == {lake.root / "staging"}
    assert len(shelves) > 1


def contents_of(*data: bytes) -> list[Content]:
    return [Content(sha256(one).digest(), one) for one in data]


def test_a_full_disk_is_named_while_the_index_is_written(lake):
    """SQLite has an error of its own for it."""
    contents = contents_of(*(b"%d" % number for number in range(500)))
    written = lake.put_contents(contents)
    pages = lake._index._database.execute("PRAGMA page_count").fetchone()[0]
    lake._index._database.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(Blocked, match="disk of this storage is full") as refused:
        lake.flush(written)
    assert refused.value.code == "disk_full"
    lake._index._database.execute("PRAGMA max_page_count=1000000")
    lake.flush(written)
    assert not lake.lacking([content.digest for content in contents])


SYNC = """
import sys
from pathlib import Path
from datasets.ingest.engine import sync_tree
from datasets.storage.folder_sink import FolderSink, sink_of_folder
sync_tree(Path(sys.argv[1]), sink_of_folder(Path(sys.argv[2])), workers=2)
"""


def kill_after(seconds: float, command: list[str]) -> None:
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as child:
        with suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        child.send_signal(signal.SIGKILL)


def test_a_killed_sync_loses_nothing_and_leaves_nothing(tmp_path, lake):
    source = tmp_path / "many"
    source.mkdir()
    for number in range(1500):
        (source / str(number)).write_bytes(os.urandom(2000))
    for killed in range(4):
        kill_after(0.05 * killed, [sys.executable, "-c", SYNC, str(source), str(lake.root)])
    manifest = synced(source, lake)
    lake.put_manifest(manifest.hash, manifest.encode())
    lake.collect(lambda: [manifest.hash], older_than_seconds=0)
    assert not staged_in(lake)
    assert not lake.verify(manifest.contents()).quarantined
    assert (
        sum(path.stat().st_size for path in (lake.root / "packs").rglob("*") if path.is_file())
        < 3 * 1500 * 2100
    )


def test_a_manifest_waits_for_no_other_file(lake, monkeypatch):
    """A flush of the file system takes as long as all that other programs wrote."""
    flushed = []
    monkeypatch.setattr("datasets.storage.folder.sync_file_system", flushed.append)
    lake.put_manifest("ab" * 32, b"manifest")
    assert lake.manifest("ab" * 32) == b"manifest"
    assert flushed == []
    lake.put_pack(pack(b"content"))
    assert flushed == [lake.root]


def test_a_file_that_changed_since_the_walk_is_read_as_it_is(tmp_path, lake):
    """Also one that was as long before, or that has the same time."""
    names = (b"as it was", b"longer", b"later")
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    found = [os.stat(os.path.join(os.fsencode(tmp_path), name)) for name in names]
    (tmp_path / "longer").write_bytes(b"longer than before")
    os.utime(tmp_path / "longer", ns=(0, found[1].st_mtime_ns))
    (tmp_path / "later").write_bytes(b"LATER")
    os.utime(tmp_path / "later", ns=(0, found[2].st_mtime_ns + 1))
    reader = Reader(os.fsencode(tmp_path), FolderSink(lake, Sharing.COPY))
    rows = [(name, FILE, one.st_size, one.st_mtime_ns, 1) for name, one in zip(names, found, strict=True)]
    unchanged, *read = reader.read([(b"", rows)])
    reader.flush()
    assert lake.read(unchanged) == b"as it was"
    assert [lake.read(digest) for digest, _, _ in read] == [b"longer than before", b"LATER"]
    assert read[1][2] == found[2].st_mtime_ns + 1
