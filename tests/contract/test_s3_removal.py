"""What can be stored in a bucket while a collection removes objects from it, and after one was killed."""

import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import pytest

from datasets.manifests import FILE, Entry, Manifest, make_manifest
from datasets.storage.base import Blocked
from datasets.storage.s3 import S3Lake
from tests.contract.lake_opening import open_lake
from tests.contract.lakes import S3Kit
from tests.datasets import pack_of
from tests.s3_server import S3Server
from tests.waiting import patience

DEAD, DIGEST = b"dead", sha256(b"dead").digest()


@pytest.fixture
def kit(s3: S3Server, tmp_path: Path) -> S3Kit:
    return S3Kit(tmp_path / "lake", s3, f"tests/{uuid4().hex}")


@pytest.fixture
def lake(kit: S3Kit) -> Iterator[S3Lake]:
    """A lake with a pack and a manifest that no version names and that are old."""
    opened = open_lake(kit.spec())
    assert isinstance(opened, S3Lake)
    opened.put_pack(memoryview(pack_of(DEAD)))
    opened.put_manifest(of_dead().hash, of_dead().encode())
    kit.age(opened)
    yield opened
    opened.close()


def of_dead() -> Manifest:
    return make_manifest([Entry(b"a", FILE, len(DEAD), DIGEST)])


def collect(lake: S3Lake) -> None:
    lake.collect(list, older_than_seconds=3600)


def test_a_removal_that_takes_long_holds_up_only_what_is_the_same(
    kit: S3Kit, lake: S3Lake, monkeypatch: pytest.MonkeyPatch
):
    reached, go_on, delete = threading.Event(), threading.Event(), lake._bucket.delete

    def slow(keys: list[str]) -> None:
        reached.set()
        assert go_on.wait(patience(60))
        delete(keys)

    monkeypatch.setattr(lake._bucket, "delete", slow)
    collection = threading.Thread(target=collect, args=[lake])
    collection.start()
    other = open_lake(kit.spec())
    try:
        assert reached.wait(patience(60))
        other.put_pack(memoryview(pack_of(b"other")))
        assert other.lacking([DIGEST, sha256(b"other").digest()]) == {DIGEST}
        with pytest.raises(Blocked, match="try again"):
            other.put_pack(memoryview(pack_of(DEAD)))
    finally:
        go_on.set()
        collection.join()
    other.put_pack(memoryview(pack_of(DEAD)))
    assert other.read(DIGEST) == DEAD
    other.put_manifest(of_dead().hash, of_dead().encode())
    assert other.renew_manifest(of_dead().hash)
    other.close()


def test_what_a_killed_removal_left_is_stored_again_and_removed_by_the_next(
    kit: S3Kit, lake: S3Lake, monkeypatch: pytest.MonkeyPatch
):
    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lake._bucket, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            collect(lake)
    assert lake.lacking([DIGEST])
    lake.put_pack(memoryview(pack_of(DEAD)))
    collect(lake)
    assert lake.read(DIGEST) == DEAD
    kit.age(lake)
    collect(lake)
    assert kit.stored_bytes() == 0
