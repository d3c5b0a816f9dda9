"""Opening lakes, and reading from them while they change."""

import fcntl
import shutil
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from datasets.actions.lake_collection import collect_lake
from datasets.ingest.nearby import machine_mark
from datasets.ingest.reader import Content
from datasets.queries import lake as lake_module
from datasets.queries.lake import lake_of
from datasets.storage.base import Blocked, ContentMissing, Lake
from datasets.storage.contents import Located
from datasets.storage.folder import FolderLake
from tests.app.api.test_datasets import BYTES
from tests.cast import Cast
from tests.datasets import make_dataset, make_version, pack_of
from tests.waiting import patience, wait_until


@pytest.mark.django_db
def test_a_lake_that_takes_long_to_open_holds_up_no_other_project(
    cast: Cast, own_lakes: Path, monkeypatch: pytest.MonkeyPatch
):
    go_on, real = threading.Event(), lake_module.open_lake

    def opened(key: str) -> Lake:
        if key == str(cast.project.pk):
            go_on.wait()
        return real(key)

    monkeypatch.setattr(lake_module, "open_lake", opened)
    slow = threading.Thread(target=lake_of, args=[cast.project])
    slow.start()
    try:
        wait_until(lambda: cast.project.pk in lake_module._opening)
        assert lake_of(cast.other) is lake_of(cast.other)
        assert slow.is_alive()
    finally:
        go_on.set()
        slow.join()
    assert lake_of(cast.project) is lake_of(cast.project)


def _pack(lake: FolderLake, *texts: bytes) -> list[Located]:
    written = lake.put_contents([Content(sha256(text).digest(), text) for text in texts])
    lake.flush(written)
    return written


def test_contents_that_a_collection_moves_meanwhile_are_read_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lake = FolderLake(tmp_path / "lake")
    before = _pack(lake, b"one", b"two")
    lake.path_of(before[0]).unlink()
    lake._index.forget_pack(before[0].pack)
    _pack(lake, b"two", b"one", b"three")
    digests, located = [one.digest for one in before], lake.locate
    answers = [before]
    monkeypatch.setattr(lake, "locate", lambda some: answers.pop() if answers else located(some))
    assert sorted(data for _, data in lake.read_many(digests)) == [b"one", b"two"]


def test_contents_that_are_lost_are_missing(tmp_path: Path):
    lake = FolderLake(tmp_path / "lake")
    before = _pack(lake, b"one")
    lake.path_of(before[0]).unlink()
    with pytest.raises(ContentMissing):
        list(lake.read_many([before[0].digest]))


@pytest.mark.django_db
def test_a_lake_that_is_away_refuses_a_download_with_the_reason(
    api, cast: Cast, own_lakes: Path, monkeypatch: pytest.MonkeyPatch
):
    version = make_version(make_dataset(cast.project), {"a.txt": "alpha"})

    def away(*_: object) -> bytes:
        raise Blocked("unreachable", "s3://lake does not answer.")

    monkeypatch.setattr(lake_of(cast.project), "read", away)
    answer = api("vera").get(f"versions/{version.pk}/content?path=a.txt", accept="*/*")
    assert (answer.status, answer.body["code"]) == (503, "unreachable")
    assert "does not answer" in answer.body["detail"]


@pytest.mark.django_db
def test_a_lake_whose_disk_is_not_mounted_is_not_made_anew(
    api: Any, cast: Cast, own_lakes: Path, caplog: pytest.LogCaptureFixture
):
    """A mount point is an empty directory: what is written there is hidden once the disk is back."""
    dataset = make_dataset(cast.project)
    version = make_version(dataset, {"a.txt": "alpha"})
    mounted, elsewhere = settings.LAKE_DIR, settings.LAKE_DIR.with_name("disk")
    mounted.rename(elsewhere)
    mounted.mkdir()
    for answer in (
        api("vera").get(f"versions/{version.pk}/manifest", accept="*/*"),
        api("ben").get(f"datasets/{dataset.pk}/content/nearby?machine={machine_mark()}"),
        api("ben").post(f"versions/{version.pk}/subsets", {"name": "part", "include": ["*"]}),
        api("ben").send("PUT", f"datasets/{dataset.pk}/content/packs", pack_of(b"beta"), content_type=BYTES),
    ):
        assert (answer.status, answer.body["code"]) == (503, "not_mounted")
        assert f"{cast.project.pk} of TRAINYARD_LAKE_DIR is not there" in answer.body["detail"]
        assert str(mounted) not in answer.body["detail"], (
            "members need not know where the operators' disks are"
        )
    assert {one.name for one in caplog.records} <= {"django.request"}, "no fault of ours is logged"
    with pytest.raises(Blocked, match="not there"):
        lake_of(cast.other)
    with pytest.raises(Blocked, match="not there"):
        collect_lake(str(cast.project.pk), lambda: False)
    assert list(mounted.iterdir()) == []
    mounted.rmdir()
    elsewhere.rename(mounted)
    assert api("vera").get(f"versions/{version.pk}/content?path=a.txt", accept="*/*").body == b"alpha"
    assert lake_of(cast.other)


@pytest.mark.django_db
def test_a_lake_that_was_lost_is_filled_again_after_its_directory_was_made(cast: Cast, own_lakes: Path):
    make_version(make_dataset(cast.project), {"a.txt": "alpha"})
    shutil.rmtree(settings.LAKE_DIR)
    (settings.LAKE_DIR / str(cast.project.pk)).mkdir(parents=True)
    lake_of(cast.project).put_pack(memoryview(pack_of(b"alpha")))
    assert lake_of(cast.project).read(sha256(b"alpha").digest()) == b"alpha"


@pytest.mark.django_db
def test_a_request_does_not_wait_long_for_a_lake_that_another_one_opens(
    cast: Cast, own_lakes: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lake_module, "_is_web", threading.Event())
    monkeypatch.setattr(lake_module, "OPENING_SECONDS", 0.05)
    monkeypatch.setitem(lake_module._opening, cast.project.pk, threading.Lock())
    lake_module.limit_waits()
    with lake_module._opening[cast.project.pk], pytest.raises(Blocked, match="try again later"):
        lake_of(cast.project)
    assert lake_of(cast.project)


@pytest.mark.django_db
def test_a_request_does_not_wait_long_for_a_collection(
    api: Any, cast: Cast, own_lakes: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lake_module, "_is_web", threading.Event())
    monkeypatch.setattr(lake_module, "COLLECTING_SECONDS", 0.05)
    lake_module.limit_waits()
    version = make_version(make_dataset(cast.project), {"a": "one"})
    requests = [
        (f"versions/{version.pk}/subsets", {"name": "part", "include": ["*"]}),
        (f"datasets/{version.dataset_id}/versions", {"manifest": version.manifest, "parent": 1}),
    ]
    with open(own_lakes / str(cast.project.pk) / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        collection_ends = threading.Timer(patience(10), fcntl.flock, [lock, fcntl.LOCK_UN])
        collection_ends.start()
        try:
            answers = [api("ben").post(path, body, Idempotency_Key=path) for path, body in requests]
        finally:
            collection_ends.cancel()
            collection_ends.join()
    assert [(one.status, one.code) for one in answers] == [(409, "in_use")] * 2
    assert [one.headers["Retry-After"] for one in answers] == ["30"] * 2
    # A client that waits sends the same key again: the refusal must not be its answer for a day.
    assert [api("ben").post(path, body, Idempotency_Key=path).status for path, body in requests] == [201, 200]


@pytest.mark.django_db
def test_a_damaged_index_is_answered_once_and_made_again(api, cast: Cast, own_lakes: Path):
    """All syncs, lists and verifications of the project failed without a reason until somebody removed the file."""
    dataset = make_dataset(cast.project, "xray")
    make_version(dataset, {str(number): f"content {number}" for number in range(2000)})
    lake = lake_of(cast.project)
    index = lake.root / "index.sqlite"
    lake.close()
    lake_module._lakes.clear()
    with open(index, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (index.stat().st_size - 4096))
    path = f"versions/{dataset.versions.get().pk}/verify"
    refused = api("ana").post(path)
    assert (refused.status, refused.body["code"]) == (503, "index_damaged")
    assert "made again" in refused.body["detail"]
    assert api("ana").post(path).status == 200
