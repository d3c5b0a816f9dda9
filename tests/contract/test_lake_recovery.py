"""What a lake survives: requests and processes that end in the middle, files that are lost, two at once."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import pytest

from datasets.storage.base import Blocked
from datasets.storage.contents import INDEX_DAMAGED, Located
from datasets.storage.folder import WHOLE_BYTES, FolderLake
from tests.datasets import pack_of
from tests.waiting import patience

LARGE = os.urandom(WHOLE_BYTES + 1)
LARGE_DIGEST, SMALL_DIGEST = sha256(LARGE).digest(), sha256(b"small").digest()
CONTENTS = {LARGE_DIGEST, SMALL_DIGEST}


@pytest.fixture
def lake(tmp_path: Path):
    opened = FolderLake(tmp_path / "lake")
    yield opened
    opened.close()


@pytest.fixture
def filled(lake: FolderLake) -> FolderLake:
    """A lake with a large and a small content."""
    fill(lake)
    return lake


def fill(lake: FolderLake) -> None:
    lake.put_pack(memoryview(pack_of(b"small")))
    lake.put_part(LARGE_DIGEST, 0, memoryview(LARGE), len(LARGE))


def lose_index(lake: FolderLake) -> None:
    lake.close()
    for path in lake.root.glob("index.sqlite*"):
        path.unlink()


class _Killed(Exception):
    pass


def _kill(*_: object) -> None:
    raise _Killed


def test_a_large_content_whose_last_request_broke_off_is_finished_by_the_next(lake, monkeypatch):
    size, whole = len(LARGE), memoryview(LARGE)
    for broken in ("_finish_parts", "flush"):
        with monkeypatch.context() as patch:
            patch.setattr(FolderLake, broken, _kill)
            with pytest.raises(_Killed):
                lake.put_part(LARGE_DIGEST, 0, whole, size)
        assert lake.lacking([LARGE_DIGEST])
    assert lake.put_part(LARGE_DIGEST, 0, whole[:1000], size) == size
    assert lake.read(LARGE_DIGEST) == LARGE
    assert lake.part_bytes(LARGE_DIGEST) == 0


def test_parts_that_are_longer_than_their_content_begin_again(lake):
    size, whole = len(LARGE), memoryview(LARGE)
    lake.put_part(LARGE_DIGEST, 0, whole, size + 2)
    lake.put_part(LARGE_DIGEST, size, memoryview(b"!"), size + 2)
    assert lake.put_part(LARGE_DIGEST, 0, whole[:1000], size) == 1000
    assert lake.put_part(LARGE_DIGEST, 1000, whole[1000:], size) == size
    assert lake.read(LARGE_DIGEST) == LARGE


def test_of_two_last_parts_at_once_both_are_answered(lake, monkeypatch):
    size, whole = len(LARGE), memoryview(LARGE)
    entered, finish = Barrier(2), FolderLake._finish_parts

    def slow(*arguments: Any) -> None:
        with suppress(BrokenBarrierError):
            entered.wait(0.2)  # both get here at once, unless one waits for the other
        finish(*arguments)

    monkeypatch.setattr(FolderLake, "_finish_parts", slow)
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(lake.put_part, LARGE_DIGEST, 0, whole, size) for _ in range(2)]
        assert [answer.result() for answer in answers] == [size, size]
    assert lake.read(LARGE_DIGEST) == LARGE


def test_a_process_killed_while_it_makes_the_index_again_leaves_none(filled, monkeypatch):
    lose_index(filled)
    with monkeypatch.context() as patch:
        patch.setattr(FolderLake, "_adopt_object", _kill)
        with pytest.raises(_Killed):
            FolderLake(filled.root)
    again = FolderLake(filled.root)
    assert not again.lacking(CONTENTS)
    again.close()


def test_a_file_that_is_no_index_is_made_again(filled):
    filled.close()
    index = filled.root / "index.sqlite"
    for path in filled.root.glob("index.sqlite-*"):
        path.unlink()
    index.write_bytes(b"no database" * 1000)
    again = FolderLake(filled.root)
    assert not again.lacking(CONTENTS)
    again.close()
    assert (filled.root / "index.sqlite.damaged").read_bytes() == b"no database" * 1000


def test_an_index_that_is_damaged_while_it_is_used_is_made_again_by_the_next_that_opens_the_lake(lake):
    contents = [b"%d" % number for number in range(2000)]
    lake.put_pack(memoryview(pack_of(*contents)))
    lake.close()
    used, other = FolderLake(lake.root), FolderLake(lake.root)
    digests = [sha256(content).digest() for content in contents]
    index = lake.root / "index.sqlite"
    with open(index, "r+b") as file:
        # All but the page with the schema, which both have read.
        file.seek(4096)
        file.write(b"\xff" * (index.stat().st_size - 4096))
    made: set[int] = set()
    for one in (used, other):
        with pytest.raises(Blocked) as damaged:
            one.lacking(digests)
        assert damaged.value.code == INDEX_DAMAGED
        # The second meets the damage after the index was made again, which it leaves as it is.
        again = FolderLake(lake.root)
        assert not again.lacking(digests)
        again.close()
        made.add(index.stat().st_ino)
    assert len(made) == 1
    used.close()
    other.close()


def test_a_lake_that_is_opened_while_its_index_is_made_again_waits(filled, monkeypatch):
    lose_index(filled)
    entered, opened, adopt = Event(), Event(), FolderLake._adopt_object

    def slow(*arguments: Any) -> Any:
        entered.set()
        opened.wait(0.3)  # long enough for the other to open it, if it does not wait for this one
        return adopt(*arguments)

    monkeypatch.setattr(FolderLake, "_adopt_object", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(FolderLake, filled.root)
        assert entered.wait(patience(60))
        second = FolderLake(filled.root)
        opened.set()
        assert not second.lacking(CONTENTS)
        second.close()
        first.result().close()


def test_content_whose_file_is_lost_is_missing_and_can_be_sent_again(filled):
    for located in filled.locate([LARGE_DIGEST, SMALL_DIGEST]):
        filled.path_of(located).unlink()
    found = filled.verify(CONTENTS)
    assert set(found.missing) == CONTENTS
    assert found.contents == found.size_bytes == 0
    assert filled.lacking(CONTENTS) == CONTENTS
    fill(filled)
    assert not filled.verify(CONTENTS).missing


def test_two_verifications_find_the_same_damage(lake, monkeypatch):
    lake.put_part(LARGE_DIGEST, 0, memoryview(LARGE), len(LARGE))
    monkeypatch.setattr("datasets.storage.folder.damaged_in", lambda _, located: list(located))
    quarantine = FolderLake._quarantine

    def twice(lake: FolderLake, located: Located) -> None:
        quarantine(lake, located)
        quarantine(lake, located)

    monkeypatch.setattr(FolderLake, "_quarantine", twice)
    assert lake.verify([LARGE_DIGEST]).quarantined == [LARGE_DIGEST]
