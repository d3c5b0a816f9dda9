"""The log store: exact bytes, pages from offsets, tails, searches, gaps."""

from __future__ import annotations

import os
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.logstore import reader
from controlplane.logstore.reader import LogPage, read_page, tail
from controlplane.logstore.writer import MAX_TEXT_BYTES, STDERR, STDOUT, LogWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "job" / "1-0.log"


def write(path: Path, *chunks: bytes, ended: bool = True) -> None:
    writer = LogWriter(str(path))
    for chunk in chunks:
        writer.feed(STDOUT, chunk)
    if ended:
        writer.end("completed 0")
    writer.close()


def texts(page: LogPage) -> list[str]:
    return [line.text for line in page.lines]


def joined(page: LogPage, stream: str = "stdout") -> str:
    mine = [line for line in page.lines if line.stream == stream]
    return "".join(line.text + ("" if line.is_partial else "\n") for line in mine)


def test_lines_are_numbered_from_one_and_complete_at_the_end(path: Path):
    write(path, b"a\nb\n", b"c\n")
    page = read_page(path)
    assert [(line.n, line.stream, line.text) for line in page.lines] == [
        (1, "stdout", "a"),
        (2, "stdout", "b"),
        (3, "stdout", "c"),
    ]
    assert page.complete
    assert page.gaps == ()
    assert page.next_offset == path.stat().st_size


@given(
    st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=300)), max_size=12),
    st.booleans(),
)
def test_every_stream_comes_out_as_it_went_in(chunks: list[tuple[bytes, bytes]], flushes: bool):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        writer = LogWriter(f"{folder}/log")
        for kind, data in chunks:
            writer.feed(kind, data)
            if flushes:
                writer.flush()
        writer.end("completed 0")
        writer.close()
        page = read_page(f"{folder}/log", 0, 100_000)
        raw = Path(f"{folder}/log").read_bytes().splitlines(keepends=True) if not chunks else None
    assert raw is None or len(raw) == 1
    assert [line.n for line in page.lines] == list(range(1, len(page.lines) + 1))
    for kind, stream in reader.STREAMS.items():
        given_bytes = b"".join(data for chunk_kind, data in chunks if chunk_kind == kind)
        if not flushes:  # a flush may cut a character in two, which decoding cannot mend
            assert joined(page, stream) == given_bytes.decode("utf-8", "replace")
        assert joined(page, stream).count("\n") == given_bytes.count(b"\n")


@pytest.mark.parametrize("size", [MAX_TEXT_BYTES - 1, MAX_TEXT_BYTES, MAX_TEXT_BYTES + 1, 5 * MAX_TEXT_BYTES])
@pytest.mark.parametrize("chunk", [1 << 12, 1 << 20])
def test_a_long_line_is_split_and_joins_again(path: Path, size: int, chunk: int):
    data = b"y" * size + b"\nnext\n"
    write(path, *(data[at : at + chunk] for at in range(0, len(data), chunk)))
    page = read_page(path)
    assert joined(page) == data.decode()
    assert max(len(line.text) for line in page.lines) <= MAX_TEXT_BYTES


def test_output_cannot_forge_records(path: Path):
    write(path, b"7 0 x end\n0 0 g a gap\n", b"9 9 x completed 0\n", ended=False)
    page = read_page(path)
    assert texts(page) == ["7 0 x end", "0 0 g a gap", "9 9 x completed 0"]
    assert not page.complete
    assert page.gaps == ()


def test_a_reader_follows_from_offset_to_offset(path: Path):
    write(path, b"a\nb\n", ended=False)
    first = read_page(path, 0, 1)
    second = read_page(path, first.next_offset, 1)
    nothing = read_page(path, second.next_offset, 1)
    assert (texts(first), texts(second), texts(nothing)) == (["a"], ["b"], [])
    assert nothing.next_offset == second.next_offset
    assert not nothing.complete
    write(path, b"c\n")
    page = read_page(path, nothing.next_offset, 5)
    assert [(line.n, line.text) for line in page.lines] == [(3, "c")]
    assert page.complete


def test_a_page_that_is_full_right_before_the_end_is_followed_by_an_empty_complete_one(path: Path):
    write(path, b"a\n")
    first = read_page(path, 0, 1)
    last = read_page(path, first.next_offset, 1)
    assert (texts(first), texts(last), last.complete) == (["a"], [], True)


def test_an_offset_inside_a_record_goes_on_with_the_next(path: Path):
    write(path, b"first\nsecond\nthird\n")
    boundary = read_page(path, 0, 1).next_offset
    assert texts(read_page(path, 1)) == ["second", "third"]
    assert texts(read_page(path, boundary - 1)) == ["second", "third"]
    assert texts(read_page(path, boundary)) == ["second", "third"]
    assert texts(read_page(path, boundary + 1)) == ["third"]


def test_an_offset_beyond_the_end_is_an_empty_page(path: Path):
    write(path, b"a\n")
    page = read_page(path, 10**9)
    assert page.lines == ()
    assert page.next_offset == path.stat().st_size


def test_a_log_that_is_not_there_yet_is_empty(path: Path):
    assert read_page(path, 5) == LogPage(next_offset=5)
    assert tail(path, 3) == LogPage()


@pytest.mark.parametrize(("offset", "limit"), [(-1, 10), (0, 0), (0, -5)])
def test_an_impossible_page_is_refused(path: Path, offset: int, limit: int):
    with pytest.raises(ValueError, match="offset"):
        read_page(path, offset, limit)


def test_a_record_that_is_being_written_is_left_for_later(path: Path):
    write(path, b"a\n", ended=False)
    whole = path.read_bytes()
    with open(path, "ab") as file:
        file.write(b"2 170000 o half")
    page = read_page(path)
    assert texts(page) == ["a"]
    assert page.next_offset == len(whole)
    assert texts(tail(path, 5)) == ["a"]


def test_a_writer_goes_on_after_a_crash_in_the_middle_of_a_record(path: Path):
    write(path, b"a\nb\n", ended=False)
    with open(path, "ab") as file:
        file.write(b"3 170000 o half")
    write(path, b"c\n")
    page = read_page(path)
    assert [(line.n, line.text) for line in page.lines] == [(1, "a"), (2, "b"), (3, "half"), (4, "c")]


def test_a_damaged_record_is_a_gap(path: Path):
    write(path, b"a\n", ended=False)
    with open(path, "ab") as file:
        file.write(b"\0\0\0\0\n")
    write(path, b"b\n")
    page = read_page(path)
    assert texts(page) == ["a", "b"]
    assert [gap.after_n for gap in page.gaps] == [1]


@pytest.mark.parametrize("digits", [16, 21, 5000])
def test_a_number_that_no_writer_gives_is_a_damaged_record(path: Path, digits: int):
    write(path, b"a\n", ended=False)
    with open(path, "ab") as file:
        file.write(b"9" * digits + b" 1700000000000 O forged\n")
    write(path, b"b\n")
    for page in (read_page(path), tail(path, 10)):
        assert texts(page)[0] == "a"
        assert "forged" not in texts(page)
        assert [gap.message for gap in page.gaps] == ["a damaged record"]
    assert read_page(path).lines[-1].text == "b"  # the writer goes on after it too


def test_a_time_beyond_the_last_one_is_held_to_it_and_an_endless_one_is_damage(path: Path):
    path.parent.mkdir()
    path.write_bytes(b"1 99999999999999999999 O hi\n2 " + b"9" * 5000 + b" O endless\n3 7 o fine\n")
    page = read_page(path)
    assert [(line.text, line.time_ms) for line in page.lines] == [("hi", reader.LATEST_MS), ("fine", 7)]
    assert datetime.fromtimestamp(reader.LATEST_MS / 1000, UTC).year == 9999
    assert len(page.gaps) == 1


def test_a_record_without_end_is_damage_and_not_read_into_memory(path: Path):
    write(path, b"a\n", ended=False)
    with open(path, "ab") as file:
        file.write(b"2 1700000000000 o ")
        file.truncate(path.stat().st_size + 40_000_000)  # a hole: costs nothing on the disk
        file.seek(0, 2)
        file.write(b"\n")
    write(path, b"b\n")
    tracemalloc.start()
    page, pages = read_page(path), 1
    found, gaps = texts(page), len(page.gaps)
    while not page.complete:
        page, pages = read_page(path, page.next_offset), pages + 1
        found, gaps = found + texts(page), gaps + len(page.gaps)
    inside = read_page(path, 1000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == ["a", "b"]
    assert 1 <= gaps <= pages
    assert inside.next_offset > 1000
    assert most < 20_000_000


def test_what_is_no_file_is_refused_at_once(path: Path):
    path.parent.mkdir()
    os.mkfifo(path)
    for read in (read_page, lambda place: tail(place, 5)):
        with pytest.raises(OSError, match="not a regular file"):
            read(path)


def test_much_damage_in_a_row_is_one_gap(path: Path):
    write(path, b"a\n", ended=False)
    with open(path, "ab") as file:
        file.write(b"\n" * 10_000)
    write(path, b"b\n")
    page = read_page(path)
    assert texts(page) == ["a", "b"]
    assert [gap.after_n for gap in page.gaps] == [1]


def test_a_gap_is_told_where_it_is(path: Path):
    writer = LogWriter(str(path))
    writer.feed(STDOUT, b"a\n")
    writer.gap("3 lines\nlost")
    writer.feed(STDOUT, b"b\n")
    writer.close()
    page = read_page(path)
    assert texts(page) == ["a", "b"]
    assert [(gap.after_n, gap.message) for gap in page.gaps] == [(1, "3 lines lost")]


@pytest.mark.parametrize("n", [1, 2, 10, 999, 1000, 5000])
def test_the_tail_is_the_last_lines(path: Path, n: int):
    write(path, b"".join(b"line %d %s\n" % (i, b"." * (i % 200)) for i in range(1000)))
    everything = read_page(path, 0, 2000)
    page = tail(path, n)
    assert page.lines == everything.lines[-n:]
    assert page.next_offset == everything.next_offset
    assert page.complete


def test_the_tail_reads_little_of_a_long_log(path: Path, monkeypatch):
    write(path, b"x" * 99 + b"\n", ended=False)
    with open(path, "ab") as file:
        file.write(path.read_bytes() * 100_000)
    starts = []
    original = reader._seek_record
    monkeypatch.setattr(reader, "_seek_record", lambda file, at: starts.append(at) or original(file, at))
    assert len(tail(path, 10).lines) == 10
    assert starts[0] > path.stat().st_size - 200_000


def test_a_search_finds_lines_in_any_case_and_goes_on_where_it_stopped(path: Path, monkeypatch):
    write(path, b"Loss 1\nother\nloss 2\n<b>LOSS</b>\n")
    assert texts(read_page(path, search="loss")) == ["Loss 1", "loss 2", "<b>LOSS</b>"]
    first = read_page(path, 0, 2, search="loss")
    assert texts(read_page(path, first.next_offset, 2, search="loss")) == ["<b>LOSS</b>"]
    monkeypatch.setattr(reader, "SCAN_BYTES", 10)
    page, found = read_page(path, search="nothing like it"), 0
    while not page.complete:
        found += 1
        page = read_page(path, page.next_offset, search="nothing like it")
    assert found == 4


def test_reading_knows_no_markup(path: Path):
    write(path, b"<script>alert(1)</script>\n")
    assert texts(read_page(path)) == ["<script>alert(1)</script>"]
