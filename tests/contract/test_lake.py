"""What every lake does, on a folder and on a bucket of a real S3 server."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from datasets.ingest.engine import sync_tree
from datasets.ingest.packs import CONTENT_MOST_BYTES, PackInvalid
from datasets.manifests import FILE, Entry, Manifest, compare, make_manifest
from datasets.storage import pieces
from datasets.storage.base import (
    Budget,
    Cancelled,
    ContentDamaged,
    ContentMissing,
    DeadlineExceeded,
    Lake,
)
from datasets.storage.cache import CacheStore
from datasets.storage.contents import WHOLE, ContentIndex
from tests.contract.lake_opening import open_lake
from tests.contract.lakes import LakeKit, sink_of
from tests.datasets import pack_of
from tests.servers import CHECKOUT

# Larger than any content of a pack, so that every lake keeps it alone.
LARGE = os.urandom(CONTENT_MOST_BYTES + 1000)
LARGE_DIGEST = sha256(LARGE).digest()
PIECE = 1 << 20


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine pieces for the large content in a bucket."""
    for module in ("pieces", "s3"):
        monkeypatch.setattr(f"datasets.storage.{module}.PIECE_BYTES", PIECE)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree with a small file, a twin, a large one, an executable, a link and a name that is not UTF-8."""
    root = tmp_path / "source"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"alpha")
    (root / "sub" / "twin.txt").write_bytes(b"alpha")
    (root / "sub" / "large.bin").write_bytes(LARGE)
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "sub" / "link").symlink_to("../a.txt")
    (root / os.fsdecode(b"n\xff" + b"m" * 250)).write_bytes(b"")
    return root


def pack(*contents: bytes) -> memoryview:
    return memoryview(pack_of(*contents))


def digest(content: bytes) -> bytes:
    return sha256(content).digest()


def manifest_of(**contents: bytes) -> Manifest:
    return make_manifest(
        Entry(name.encode(), FILE, len(data), digest(data)) for name, data in contents.items()
    )


def synced(source: Path, kit: LakeKit) -> Manifest:
    found = sync_tree(source, sink_of(kit))
    assert found.manifest is not None
    return found.manifest


def put_large(lake: Lake) -> None:
    assert lake.put_part(LARGE_DIGEST, 0, memoryview(LARGE), len(LARGE)) == len(LARGE)


def test_a_tree_comes_back_as_it_was(source: Path, kit: LakeKit, lake: Lake, tmp_path: Path):
    manifest, store = synced(source, kit), CacheStore(tmp_path / "caches")
    store.fill("v", lake, manifest)
    for path in source.rglob("*"):
        copy = store.tree("v") / path.relative_to(source)
        if path.is_symlink():
            assert os.readlink(copy) == os.readlink(path)
        elif path.is_file():
            assert copy.read_bytes() == path.read_bytes()
            assert bool(copy.stat().st_mode & 0o111) == (path.name == "run.sh")
    before = kit.stored_bytes()
    assert synced(source, kit).hash == manifest.hash
    assert kit.stored_bytes() == before


def test_a_pack_may_be_sent_twice_and_a_damaged_one_leaves_nothing(kit: LakeKit, lake: Lake):
    lake.put_pack(pack(b"one", b"two"))
    before = kit.stored_bytes()
    lake.put_pack(pack(b"one", b"two"))
    lake.put_pack(pack(b"two"))
    assert kit.stored_bytes() == before
    lake.put_pack(pack(b"two", b"five"))
    broken = bytearray(pack(b"three", b"four"))
    broken[0] ^= 1
    for bad in (broken, pack(b"three")[:-1], memoryview(b""), memoryview(b"x" * 100)):
        with pytest.raises(PackInvalid):
            lake.put_pack(memoryview(bad))
    wanted = {digest(one): one for one in (b"one", b"two", b"three", b"five")}
    assert lake.lacking(wanted) == {digest(b"three")}
    found = dict(lake.read_many([digest(b"five"), digest(b"one"), digest(b"two")]))
    assert found == {key: content for key, content in wanted.items() if content != b"three"}


def test_ranges_of_contents_are_read(lake: Lake):
    put_large(lake)
    lake.put_pack(pack(b"", b"small"))
    assert lake.read(LARGE_DIGEST, PIECE - 10, 20) == LARGE[PIECE - 10 : PIECE + 10]
    assert lake.read(LARGE_DIGEST, len(LARGE) - 5, 100) == LARGE[-5:]
    assert lake.read(LARGE_DIGEST) == LARGE
    assert lake.read(digest(b"small"), 1, 3) == b"mal"
    assert lake.read(digest(b"small"), 5, 3) == b""
    assert lake.read(digest(b"")) == b""
    with pytest.raises(ContentMissing):
        lake.read(digest(b"unknown"))


def test_a_large_content_arrives_in_parts_and_goes_on_after_a_break(kit: LakeKit, lake: Lake):
    size, half = len(LARGE), 4 * PIECE + 500
    assert lake.put_part(LARGE_DIGEST, 0, memoryview(LARGE)[:half], size) == half
    assert lake.put_part(LARGE_DIGEST, 0, memoryview(LARGE)[:1000], size) == half
    assert lake.put_part(LARGE_DIGEST, half + 9, memoryview(LARGE)[half + 9 : half + 99], size) == half
    again = open_lake(kit.spec())
    assert again.part_bytes(LARGE_DIGEST) == half
    assert again.lacking([LARGE_DIGEST])
    assert again.put_part(LARGE_DIGEST, half - 7, memoryview(LARGE)[half - 7 :], size) == size
    assert again.read(LARGE_DIGEST) == LARGE
    assert again.part_bytes(LARGE_DIGEST) == 0
    assert kit.stored_bytes() == size
    again.close()


def test_parts_that_are_not_the_content_leave_nothing(kit: LakeKit, lake: Lake):
    wrong = digest(b"another")
    with pytest.raises(ContentDamaged):
        lake.put_part(wrong, 0, memoryview(LARGE), len(LARGE))
    assert lake.part_bytes(wrong) == kit.stored_bytes() == 0
    # bytes that were sent for it before must not be taken for its own
    damaged = bytearray(LARGE)
    damaged[2 * PIECE] ^= 1
    lake.put_part(LARGE_DIGEST, 0, memoryview(damaged)[: 5 * PIECE], len(LARGE))
    (kit.root / "parts" / LARGE_DIGEST.hex()).unlink()
    put_large(lake)
    assert lake.read(LARGE_DIGEST) == LARGE


def test_a_lost_index_is_made_again_from_what_is_stored(source: Path, kit: LakeKit):
    manifest = synced(source, kit)
    kit.lose_index()
    again = open_lake(kit.spec())
    assert not again.lacking(manifest.contents())
    assert not again.verify(manifest.contents()).missing
    again.close()


def test_damaged_content_is_moved_away_and_stored_again_by_the_next_sync(
    source: Path, kit: LakeKit, lake: Lake, tmp_path: Path
):
    manifest, store = synced(source, kit), CacheStore(tmp_path / "caches")
    damaged = {LARGE_DIGEST, digest(b"alpha")}
    for one in damaged:
        kit.damage(lake, one)
    with pytest.raises(ContentDamaged):
        store.fill("v", lake, manifest)
    assert not store.tree("v").exists()
    found = lake.verify(manifest.contents())
    assert (set(found.quarantined), found.missing) == (damaged, [])
    assert set(lake.verify(manifest.contents()).missing) == damaged
    synced(source, kit)
    assert not lake.verify(manifest.contents()).missing
    store.fill("v", lake, manifest)
    assert (store.tree("v") / "sub" / "large.bin").read_bytes() == LARGE


@pytest.mark.parametrize("loss", ["lose", "damage"])
def test_what_a_complete_version_loses_is_lacking_from_the_next(kit: LakeKit, lake: Lake, loss: str):
    first, second = manifest_of(a=b"one", b=b"two"), manifest_of(a=b"one", b=b"two", c=b"three")
    for content in (b"one", b"two", b"three"):
        lake.put_pack(pack(content))
    nothing, unsent = Manifest.empty(), manifest_of(a=b"one", b=b"two", c=b"other")
    assert lake.lacking_of(first, nothing, compare(nothing, first)) == set()
    to_second, to_unsent = compare(first, second), compare(first, unsent)
    assert lake.lacking_of(unsent, first, to_unsent) == {digest(b"other")}
    assert lake.lacking_of(second, first, to_second) == lake.keep_of(second, first, to_second) == set()
    getattr(kit, loss)(lake, digest(b"two"))
    # By another process, such as a worker.
    other = open_lake(kit.spec())
    assert digest(b"two") in {*(found := other.verify(first.contents())).missing, *found.quarantined}
    other.close()
    for base in (first, second):
        assert lake.lacking_of(second, base, compare(base, second)) == {digest(b"two")}
    assert lake.keep_of(first, nothing, compare(nothing, first)) == {digest(b"two")}
    lake.put_pack(pack(b"two"))
    assert lake.lacking_of(second, first, to_second) == set()


def test_only_what_is_new_in_a_version_is_looked_up(lake: Lake, monkeypatch: pytest.MonkeyPatch):
    first, second = manifest_of(a=b"one"), manifest_of(a=b"one", b=b"two")
    lake.put_pack(pack(b"one", b"two"))
    nothing, looked_up = Manifest.empty(), []
    files_of = ContentIndex.files_of
    monkeypatch.setattr(
        ContentIndex,
        "files_of",
        lambda index, found: (looked_up.append(set(found)), files_of(index, found))[1],
    )
    lake.lacking_of(first, nothing, compare(nothing, first))
    lake.keep_of(first, nothing, compare(nothing, first))
    lake.lacking_of(second, first, compare(first, second))
    lake.keep_of(second, first, compare(first, second))
    assert looked_up == [{digest(b"one")}, {digest(b"two")}]
    # Nothing is known about another base.
    lake.keep_of(second, nothing, compare(nothing, second))
    assert looked_up[2:] == [{digest(b"one"), digest(b"two")}]


def test_what_a_version_needs_is_young_though_it_is_not_looked_up(kit: LakeKit, lake: Lake):
    manifest, nothing = manifest_of(a=b"one", b=LARGE), Manifest.empty()
    lake.put_pack(pack(b"one"))
    put_large(lake)
    diff = compare(nothing, manifest)
    assert lake.lacking_of(manifest, nothing, diff) == set()
    kit.age(lake)
    assert lake.keep_of(manifest, nothing, diff) == set()
    lake.collect(list, older_than_seconds=3600)
    assert lake.lacking(manifest.contents()) == set()


def test_lost_content_is_named_and_can_be_sent_again(source: Path, kit: LakeKit, lake: Lake, tmp_path: Path):
    manifest = synced(source, kit)
    for one in (LARGE_DIGEST, digest(b"alpha")):
        kit.lose(lake, one)
    with pytest.raises(ContentMissing):
        CacheStore(tmp_path / "caches").fill("v", lake, manifest)
    assert {LARGE_DIGEST, digest(b"alpha")} <= set(lake.verify(manifest.contents()).missing)
    synced(source, kit)
    assert not lake.verify(manifest.contents()).missing


def test_a_damaged_manifest_is_replaced(kit: LakeKit, lake: Lake):
    manifest = manifest_of(a=b"one")
    lake.put_manifest(manifest.hash, manifest.encode())
    kit.damage_manifest(manifest.hash)
    assert lake.manifest(manifest.hash) != manifest.encode()
    lake.put_manifest(manifest.hash, manifest.encode())
    lake.close()
    kit.lose_index()
    again = open_lake(kit.spec())
    assert again.manifest(manifest.hash) == manifest.encode()
    again.close()


def test_manifests_are_kept_and_found_without_their_copies(kit: LakeKit, lake: Lake):
    manifest = manifest_of(a=b"one")
    assert not lake.renew_manifest(manifest.hash)
    with pytest.raises(ContentMissing):
        lake.manifest(manifest.hash)
    for _ in range(2):
        lake.put_manifest(manifest.hash, manifest.encode())
    assert lake.renew_manifest(manifest.hash)
    lake.close()
    kit.lose_index()
    again = open_lake(kit.spec())
    assert again.manifest(manifest.hash) == manifest.encode()
    assert again.renew_manifest(manifest.hash)
    again.close()


def test_collection_keeps_what_is_live_and_removes_the_rest(kit: LakeKit, lake: Lake):
    put_large(lake)
    lake.put_pack(pack(b"live"))
    lake.put_pack(pack(b"dead"))
    old, new = manifest_of(a=LARGE, b=b"dead"), manifest_of(b=b"live")
    for manifest in (old, new):
        lake.put_manifest(manifest.hash, manifest.encode())
    kit.age(lake)
    lake.put_pack(pack(b"arriving"))
    collected = lake.collect(lambda: [new.hash], older_than_seconds=3600)
    assert (collected.packs, collected.objects, collected.manifests) == (1, 1, 1)
    assert collected.size_bytes == len(LARGE) + len(b"dead")
    everything = [LARGE_DIGEST, *map(digest, (b"dead", b"live", b"arriving"))]
    assert lake.lacking(everything) == {LARGE_DIGEST, digest(b"dead")}
    assert lake.read(digest(b"live")) == b"live"
    assert kit.stored_bytes() == len(pack(b"live")) + len(pack(b"arriving"))
    with pytest.raises(ContentMissing):
        lake.manifest(old.hash)
    assert lake.manifest(new.hash) == new.encode()
    put_large(lake)
    assert lake.read(LARGE_DIGEST) == LARGE


def test_what_a_sync_relies_on_is_young_again(kit: LakeKit, lake: Lake):
    manifest = manifest_of(a=LARGE)
    put_large(lake)
    lake.put_pack(pack(b"sent again"))
    lake.put_pack(pack(b"relied on"))
    lake.put_manifest(manifest.hash, manifest.encode())
    kit.age(lake)
    lake.renew([LARGE_DIGEST, digest(b"relied on"), digest(b"unknown")])
    lake.put_pack(pack(b"sent again"))
    assert lake.renew_manifest(manifest.hash)
    collected = lake.collect(list, older_than_seconds=3600)
    assert (collected.packs, collected.objects, collected.manifests) == (0, 0, 0)


def test_parts_that_never_became_a_content_are_removed(kit: LakeKit, lake: Lake):
    lake.put_part(LARGE_DIGEST, 0, memoryview(LARGE)[: 5 * PIECE], len(LARGE))
    kit.age(lake)
    lake.collect(list, older_than_seconds=0)
    assert kit.stored_bytes() == lake.part_bytes(LARGE_DIGEST) == 0


def test_a_pack_that_is_mostly_dead_is_written_again_without_the_dead(kit: LakeKit, lake: Lake):
    lake.put_pack(pack(b"keep", b"x" * 1000))
    live = manifest_of(kept=b"keep")
    lake.put_manifest(live.hash, live.encode())
    kit.age(lake)
    assert lake.collect(lambda: [live.hash], older_than_seconds=3600).packs == 1
    assert lake.read(digest(b"keep")) == b"keep"
    assert lake.lacking([digest(b"x" * 1000)])
    kit.age(lake)
    assert lake.collect(lambda: [live.hash], older_than_seconds=3600).packs == 0


def test_budgets_end_calls(kit: LakeKit, lake: Lake, tmp_path: Path):
    lake.put_pack(pack(b"one"))
    with pytest.raises(DeadlineExceeded):
        CacheStore(tmp_path / "caches").fill("v", lake, manifest_of(a=b"one"), Budget(seconds=-1))
    with pytest.raises(Cancelled):
        lake.verify([digest(b"one")], Budget(is_cancelled=lambda: True))
    with pytest.raises(Cancelled):
        list(lake.read_many([digest(b"one")], Budget(is_cancelled=lambda: True)))


def test_a_destroyed_lake_leaves_nothing(kit: LakeKit, lake: Lake):
    put_large(lake)
    lake.put_pack(pack(b"one"))
    for _ in range(2):
        lake.destroy()
    assert kit.stored_bytes() == 0
    assert not kit.root.exists()


# Sends a tree with a program that is killed after some writes to the lake. Each write is noted in a file.
KILLED = """
import os, signal, sys
from pathlib import Path
from datasets.ingest.reader import Reader
from datasets.storage import folder, pieces, s3
from datasets.storage.bucket import Bucket
from tests.contract.lake_opening import lake_sink
spec, root, log, limit = sys.argv[1], os.fsencode(sys.argv[2]), sys.argv[3], int(sys.argv[4])
pieces.PIECE_BYTES = s3.PIECE_BYTES = 1 << 20
written = 0
def noted(function):
    def write(self, key, *rest):
        global written
        answer = function(self, key, *rest)
        with open(log, "a") as file:
            file.write(f"{key}\\n")
        written += 1
        if written >= limit:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer
    return write
Bucket.put, Bucket.put_slice = noted(Bucket.put), noted(Bucket.put_slice)
FolderLake = folder.FolderLake
part = FolderLake.put_part
FolderLake.put_part = noted(lambda self, digest, offset, *rest: part(self, digest, offset, *rest))
reader = Reader(root, lake_sink(spec))
reader.read([(b"", [(name, 0, 0, 0, 0) for name in sorted(os.listdir(root))])])
reader.flush()
"""


def test_a_sync_that_is_killed_again_and_again_sends_nothing_twice(kit: LakeKit, lake: Lake, tmp_path: Path):
    root, log = tmp_path / "tree", tmp_path / "log"
    root.mkdir()
    (root / "large").write_bytes(LARGE)
    (root / "small").write_bytes(b"small")
    for _ in range(10):
        arguments = [kit.spec(), str(root), str(log), "3"]
        run = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, cwd=CHECKOUT)
        if run.returncode == 0:
            break
        assert run.returncode == -9
    assert run.returncode == 0
    assert not lake.verify([LARGE_DIGEST, digest(b"small")]).missing
    assert lake.read(LARGE_DIGEST) == LARGE
    objects = [key for key in log.read_text().split() if key.startswith("objects/")]
    assert len(objects) == len(set(objects))
    if lake.locate([LARGE_DIGEST])[0].pack == WHOLE and objects:
        assert len(objects) == -(-len(LARGE) // PIECE)
    assert pieces.PIECE_BYTES == PIECE
