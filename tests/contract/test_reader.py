"""What a reader gives to a sink: memory that is used again only after the sink has written it, and the paths of large
files, which may change until they are stored."""

import os
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from datasets.ingest.arena import ARENA_FROM_BYTES, Arena
from datasets.ingest.packs import CONTENT_MOST_BYTES, PACK_BYTES
from datasets.ingest.reader import Content, Failed, FileChanged, Read, Reader, Wanted
from datasets.manifests import FILE


class LateSink:
    """Looks at the contents of a call when the next one ends, as late as a thread may write them."""

    most_in_memory_bytes = CONTENT_MOST_BYTES

    def __init__(self, known: Sequence[bytes] = ()) -> None:
        self._known, self._late = set(known), list[Content]()
        self.stored: dict[bytes, int] = {}

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        return set(digests) - self._known

    def put_contents(self, contents: Sequence[Content]) -> None:
        self.flush()
        self._late = list(contents)

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        for content in self._late:
            assert sha256(content.data).digest() == content.digest
            self.stored[content.digest] = len(content.data)


def make_files(root: Path, sizes: Sequence[int]) -> list[Wanted]:
    """Create sparse files that differ in their first bytes; return them as a walk does."""
    for number, size in enumerate(sizes):
        (root / str(number)).write_bytes(b"%08d" % number)
        os.truncate(root / str(number), size)
        os.utime(root / str(number), (1, 1))
    return [(b"", [(b"%d" % number, FILE, size, 10**9, 1) for number, size in enumerate(sizes)])]


def digest_of(read: Read | Failed) -> bytes:
    assert not isinstance(read, str)
    return read if isinstance(read, bytes) else read[0]


@pytest.mark.parametrize("size", [4000, ARENA_FROM_BYTES, 400_000, CONTENT_MOST_BYTES])
def test_memory_is_used_again_only_after_it_was_written(tmp_path: Path, size: int):
    files = make_files(tmp_path, [size] * (4 * PACK_BYTES // size if size > 4000 else 9))
    sink = LateSink()
    reader = Reader(os.fsencode(tmp_path), sink)
    digests = list(map(digest_of, reader.read(files)))
    reader.flush()
    assert sink.stored == dict.fromkeys(digests, size)
    assert len(sink.stored) == len(files[0][1])


def test_contents_that_the_lake_has_do_not_free_what_is_being_written(tmp_path: Path):
    """They are not handed to the sink, which still writes those before them."""
    files = make_files(tmp_path, [CONTENT_MOST_BYTES] * 8)
    plain = Reader(os.fsencode(tmp_path), LateSink())
    digests = list(map(digest_of, plain.read(files)))
    sink = LateSink(digests[2:6])
    reader = Reader(os.fsencode(tmp_path), sink)
    reader.read(files)
    reader.flush()
    assert set(sink.stored) == {*digests[:2], *digests[6:]}


def test_room_for_the_largest_content_is_left_until_a_pack_is_full(tmp_path: Path):
    smallest = ARENA_FROM_BYTES + 1
    count = PACK_BYTES // smallest
    sink = LateSink()
    reader = Reader(os.fsencode(tmp_path), sink)
    reader.read(make_files(tmp_path, [smallest] * count + [CONTENT_MOST_BYTES] * 3))
    reader.flush()
    assert len(sink.stored) == count + 3


def test_contents_of_an_arena_begin_at_blocks_and_do_not_overlap():
    arena = Arena()
    first = arena.room(5000)
    arena.keep(4097)
    second = arena.room(10)
    first[:4097], second[:] = b"a" * 4097, b"b" * 10
    assert bytes(first[8192 - 4096 - 1 : 4097]) == b"a" * 2
    arena.clear()
    assert bytes(arena.room(8202)[8192:]) == b"b" * 10


class PathSink(LateSink):
    """Takes files from 1000 bytes on by their path. `errors`: raised by its first calls, after it changed the file."""

    most_in_memory_bytes = 999

    def __init__(self, errors: Sequence[Exception] = ()) -> None:
        super().__init__()
        self._errors = list(errors)

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        if self._errors:
            Path(os.fsdecode(path)).write_bytes(os.urandom(size_bytes))
            raise self._errors.pop()
        assert digest not in self.stored
        self.stored[digest] = size_bytes


@pytest.mark.parametrize("changes", [0, 1, 2, 3])
def test_a_large_file_that_changes_before_it_is_stored_is_read_again(tmp_path: Path, changes: int):
    sink = PathSink([FileChanged()] * changes)
    [small, large] = Reader(os.fsencode(tmp_path), sink).read(make_files(tmp_path, [999, 1000]))
    assert digest_of(small) == sha256((tmp_path / "0").read_bytes()).digest()
    if changes == 3:
        assert (large, sink.stored) == ("changing", {})
    else:
        digest = sha256((tmp_path / "1").read_bytes()).digest()
        assert (digest_of(large), sink.stored) == (digest, {digest: 1000})


@pytest.mark.parametrize(("error", "why"), [(FileNotFoundError(), "gone"), (PermissionError(), "unreadable")])
def test_a_large_file_that_cannot_be_read_again_is_named(tmp_path: Path, error: OSError, why: str):
    files = make_files(tmp_path, [1000, 1001])
    sink = PathSink([error])
    [first, second] = Reader(os.fsencode(tmp_path), sink).read(files)
    assert first == why
    assert sink.stored == {digest_of(second): 1001}


def test_equal_large_files_are_stored_once(tmp_path: Path):
    files = make_files(tmp_path, [1000, 1000])
    (tmp_path / "1").write_bytes((tmp_path / "0").read_bytes())
    sink = PathSink()
    [first, second] = Reader(os.fsencode(tmp_path), sink).read(files)
    assert digest_of(first) == digest_of(second)
    assert sink.stored == {digest_of(first): 1000}
