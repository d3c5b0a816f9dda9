"""What the sink into a folder lake does at once, and what it says of what failed meanwhile."""

import os
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from datasets.ingest.reader import Content
from datasets.storage.base import Blocked
from datasets.storage.contents import Sharing
from datasets.storage.folder import WHOLE_BYTES, FolderLake
from datasets.storage.folder_sink import WRITERS, FolderSink

FULL = "The disk of this storage is full."


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[FolderLake]:
    with_folder = FolderLake(tmp_path / "lake")
    yield with_folder
    with_folder.close()


def contents_of(*data: bytes) -> list[Content]:
    return [Content(sha256(one).digest(), one) for one in data]


def large_contents() -> list[Content]:
    return contents_of(*(os.urandom(WHOLE_BYTES + 1) for _ in range(WRITERS)))


def full(*_: object) -> None:
    raise Blocked("disk_full", FULL)


def test_files_are_read_while_earlier_ones_are_written(lake, monkeypatch):
    sink, read, store = FolderSink(lake, Sharing.COPY), threading.Event(), lake.put_contents
    in_time = []

    def put_contents(contents, adopt):
        in_time.append(read.wait(10))
        return store(contents, adopt)

    monkeypatch.setattr(lake, "put_contents", put_contents)
    sink.put_contents(contents_of(b"one"))
    read.set()
    sink.put_contents(contents_of(b"two"))
    sink.flush()
    assert in_time == [True, True]
    assert not lake.lacking([sha256(b"one").digest(), sha256(b"two").digest()])


@pytest.mark.parametrize("follows", ["put_contents", "flush"])
def test_an_error_of_a_write_is_raised_by_what_follows_it(lake, monkeypatch, follows):
    sink = FolderSink(lake, Sharing.COPY)

    def full(contents, adopt):
        raise Blocked("disk_full", "The disk of this storage is full.")

    monkeypatch.setattr(lake, "put_contents", full)
    sink.put_contents(contents_of(b"one"))
    with pytest.raises(Blocked, match="disk of this storage is full"):
        sink.flush() if follows == "flush" else sink.put_contents(contents_of(b"two"))


def test_large_contents_of_one_call_are_written_at_once(lake, monkeypatch):
    """The disk would wait between two of them."""
    sink, all_write, store = FolderSink(lake, Sharing.COPY), threading.Barrier(WRITERS), lake.put_contents

    def put_contents(contents, adopt):
        all_write.wait(10)
        return store(contents, adopt)

    monkeypatch.setattr(lake, "put_contents", put_contents)
    contents = large_contents()
    sink.put_contents(contents)
    sink.flush()
    assert not lake.lacking([content.digest for content in contents])


def test_small_contents_of_one_call_are_one_pack(lake):
    sink = FolderSink(lake, Sharing.COPY)
    small = contents_of(*(b"%d" % number for number in range(3 * WRITERS)))
    sink.put_contents([*small, *large_contents()])
    sink.flush()
    assert len({located.pack for located in lake.locate([content.digest for content in small])}) == 1


def test_an_error_is_raised_after_all_writes_have_ended(lake, monkeypatch):
    """They read memory that the caller fills again."""
    sink, failed, ended, store = FolderSink(lake, Sharing.COPY), threading.Event(), [], lake.put_contents
    first, *others = large_contents()

    def put_contents(contents, adopt):
        if contents == [first]:
            failed.set()
            full()
        assert failed.wait(10)
        ended.extend(contents)
        return store(contents, adopt)

    monkeypatch.setattr(lake, "put_contents", put_contents)
    sink.put_contents([first, *others])
    with pytest.raises(Blocked, match=FULL):
        sink.flush()
    assert {one.digest for one in ended} == {one.digest for one in others}


def test_contents_are_written_while_earlier_ones_are_flushed(lake, monkeypatch):
    monkeypatch.setattr("datasets.storage.folder_sink.FLUSH_BYTES", 1)
    sink, second, flush = FolderSink(lake, Sharing.COPY), threading.Event(), lake.flush
    in_time = []

    def slow_flush(written):
        in_time.append(second.wait(10))
        flush(written)

    monkeypatch.setattr(lake, "flush", slow_flush)
    one, two = contents_of(b"one", b"two")
    sink.put_contents([one])
    # Ends the first write, and begins its flush.
    sink.put_contents([two])
    second.set()
    sink.flush()
    assert in_time[0]
    assert not lake.lacking([one.digest, two.digest])


def test_an_error_of_a_flush_is_raised_by_the_last_one(lake, monkeypatch):
    """What it should have made known is not known; the next sync writes it again."""
    monkeypatch.setattr("datasets.storage.folder_sink.FLUSH_BYTES", 1)
    sink = FolderSink(lake, Sharing.COPY)
    [one] = contents_of(b"one")
    sink.put_contents([one])
    monkeypatch.setattr(lake, "flush", full)
    with pytest.raises(Blocked, match=FULL):
        sink.flush()
    assert lake.lacking([one.digest])
