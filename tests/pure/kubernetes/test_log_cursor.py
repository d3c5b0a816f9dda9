"""Streams of the Kubernetes API cut into records, and going on after a break: nothing twice, nothing lost."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controlplane.engines.kubernetes.log_cursor import Cursor, Lines, Piece, stamp_ms
from controlplane.engines.kubernetes.log_gaps import GapRule
from controlplane.logstore.reader import read_page, tail
from controlplane.logstore.writer import MAX_TEXT_BYTES, LogWriter

NOON = 1_795_262_400_000  # 2026-11-21T12:00:00Z


def stamped(ms: int, text: bytes) -> bytes:
    time = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{time}.{ms % 1000:03d}456789Z ".encode() + text + b"\n"


def pieces_of(*chunks: bytes) -> list[Piece]:
    lines = Lines()
    return [piece for chunk in chunks for piece in lines.feed(chunk)] + lines.rest()


@pytest.mark.parametrize(
    "stamp", [b"2026-11-21T12:00:00.5Z", b"2026-11-21T14:00:00.500999999+02:00", b"2026-11-21T12:00:00.500Z"]
)
def test_times_of_any_precision_and_zone(stamp: bytes):
    assert stamp_ms(stamp) == NOON + 500


@pytest.mark.parametrize("stamp", [b"", b"unable", b"2026-11-21T12:00:00", b"\xff", b"2026-11-21"])
def test_what_is_no_time_is_said_to_be_none(stamp: bytes):
    with pytest.raises(ValueError, match=r"."):
        stamp_ms(stamp)


def test_lines_are_the_same_however_the_stream_is_cut():
    text = b"".join(
        stamped(NOON + i, bytes([0, 255, 13]) + b"x" * size)
        for i, size in enumerate([0, 1, 20_000, MAX_TEXT_BYTES - 3, MAX_TEXT_BYTES, 3 * MAX_TEXT_BYTES, 7])
    ) + stamped(NOON + 9, b"no newline").removesuffix(b"\n")
    whole = pieces_of(text)
    chance = random.Random(7)
    for _ in range(20):
        cuts = sorted(chance.sample(range(len(text)), 40))
        assert pieces_of(*(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))) == whole
    assert whole[-1] == (NOON + 9, b"O", b"no newline")
    assert max(len(piece[2]) for piece in whole) == MAX_TEXT_BYTES


def test_a_line_without_a_time_is_no_output():
    lines = Lines()
    assert lines.feed(b"unable to retrieve container logs for containerd://1\n" + stamped(NOON, b"a")) == [
        (NOON, b"o", b"a")
    ]
    assert lines.remark.startswith("unable to retrieve")
    assert Lines().feed(b"x" * 200_000 + b"\n" + stamped(NOON, b"a")) == [(NOON, b"o", b"a")]


def resumed(cursor: Cursor, pieces: list[Piece]) -> tuple[list[Piece], bool]:
    cursor.begin()
    return cursor.take(pieces)


def test_a_repeated_stream_gives_only_what_is_new():
    log = [(NOON + i // 3, b"o", b"same" if i % 2 else b"%d" % i) for i in range(30)]
    for known in range(1, 30):
        cursor = Cursor()
        cursor.take(log[:known])
        assert resumed(cursor, log) == (log[known:], False)
        assert not cursor.is_seeking


@pytest.mark.parametrize("times", [[0, 5, 4, 6, -1500, -1490, 7, 6], [0, -3_600_000, -3_599_999, 5, -1, 5]])
def test_clocks_that_step_back_lose_and_repeat_nothing(times: list[int]):
    log = [(NOON + ms, b"o", b"%d" % i) for i, ms in enumerate(times)]
    for known in range(1, len(log)):
        cursor = Cursor()
        cursor.take(log[:known])
        since = cursor.since()
        assert since is not None
        asked = [piece for piece in log if piece[0] >= since.timestamp() * 1000 or min(times) < -2000]
        assert resumed(cursor, asked) == (log[known:], False)


def test_a_last_line_that_is_not_there_any_more_is_a_gap():
    cursor = Cursor()
    cursor.take([(NOON, b"o", b"rotated away")])
    new = [(NOON + 5, b"o", b"later")]
    assert resumed(cursor, []) == ([], False)
    assert cursor.is_seeking
    assert resumed(cursor, new) == (new, True)
    assert not cursor.is_seeking


def test_another_process_goes_on_where_the_store_ends(tmp_path: Path):
    path = tmp_path / "log"
    log = pieces_of(
        stamped(NOON, b"\xff\xfe binary"),
        stamped(NOON, b"y" * 200_000),
        stamped(NOON, b""),
        stamped(NOON, b"z"),
    )
    for known in range(1, len(log)):
        path.unlink(missing_ok=True)
        writer = LogWriter(str(path))
        writer.add(log[:known])
        writer.close()
        cursor = Cursor()
        cursor.take_store(tail(path, 100).lines)
        assert resumed(cursor, log) == (log[known:], False)


def test_records_keep_their_own_times_and_go_on_with_their_numbers(tmp_path: Path):
    path = str(tmp_path / "log")
    for piece in [(NOON, b"o", b"a"), (NOON - 7, b"O", b"b")]:
        writer = LogWriter(path)
        writer.add([piece])
        writer.close()
    lines = read_page(path).lines
    assert [(line.n, line.time_ms, line.text, line.is_partial) for line in lines] == [
        (1, NOON, "a", False),
        (2, NOON - 7, "b", True),
    ]


def test_a_writer_sees_that_another_one_wrote(tmp_path: Path):
    one, two = LogWriter(str(tmp_path / "log")), LogWriter(str(tmp_path / "log"))
    one.add([(NOON, b"o", b"a")])
    assert (one.has_grown(), two.has_grown()) == (False, True)
    one.close()
    two.close()


@pytest.mark.parametrize(
    ("started_ms", "first_ms", "last_ms", "size", "may_be_gone"),
    [
        (None, 90_000, 90_100, 1 << 20, False),  # the container's start is not known
        (9_000, 9_999, 10_000, 1 << 24, False),  # a start is told in whole seconds
        (9_000, 11_000, 12_000, 1 << 20, True),  # a MiB a second, and a second unseen
        (9_000, 11_000, 13_000, 1 << 20, False),
        (9_000, 11_000, 11_000, 1 << 20, True),
        (12_000, 11_000, 11_000, 1 << 20, False),  # a clock that was put back
        (9_000, 11_000, 11_000, 1 << 19, None),  # too little to say
        (9_000, 14_998, 15_000, 1, None),
        (9_000, 14_999, 15_000, 1, True),  # whatever the pace, there was time
    ],
)
def test_a_beginning_may_be_gone_where_time_or_pace_says_so(started_ms, first_ms, last_ms, size, may_be_gone):
    beginning = GapRule()
    beginning.listen(80_000, started_ms)
    gaps = beginning.take([(first_ms, b"o", b"x" * (size - 1)), (last_ms, b"o", b"x")])
    assert bool(gaps) is bool(may_be_gone)
    assert beginning.may_be_gone() is may_be_gone


@pytest.mark.parametrize(("first_ms", "may_be_gone"), [(105_000, None), (110_000, True)])
def test_on_a_node_whose_clock_is_ahead_its_own_times_count(first_ms, may_be_gone):
    beginning = GapRule()
    beginning.listen(9_000, 100_000)
    beginning.take([(first_ms, b"o", b"x")])
    assert beginning.may_be_gone() is may_be_gone


@pytest.mark.parametrize(("size", "may_be_gone"), [(1000, False), (1 << 19, True)])
def test_at_its_end_a_short_log_is_judged_by_its_pace(size, may_be_gone):
    beginning = GapRule()
    beginning.listen(80_000, 9_000)
    beginning.take([(12_000, b"o", b"x" * size)])
    assert beginning.may_be_gone(is_end=True) is may_be_gone


@pytest.mark.parametrize(
    ("asked", "may_be_gone"),
    [
        ([(10_000, 60_000)], False),  # listened to from its start
        ([(15_000, 60_000)], True),  # a file may have been put away before the stream began, and found empty
        ([(12_000, 30_000), (32_000, 60_000)], False),
        ([(12_000, 30_000), (33_000, 60_000)], True),  # five seconds in all
    ],
)
def test_only_time_in_which_nobody_listened_counts(asked, may_be_gone):
    beginning = GapRule()
    for begin_ms, end_ms in asked:
        beginning.listen(begin_ms, 9_000)
        beginning.leave(end_ms)
    beginning.listen(60_000, 9_000)
    beginning.take([(61_000, b"o", b"x")])
    assert bool(beginning.may_be_gone()) is may_be_gone
    assert beginning.seen_ms == 60_000


def test_a_file_that_began_after_the_one_that_was_read_is_a_gap_once():
    rule = GapRule(NOON, is_judged=True)
    assert rule.take_file(NOON) == rule.take_file(NOON - 1) == []
    (gap,) = rule.take_file(NOON + 5)
    assert gap.startswith("output may be missing before 2026-11-21T12:00:00.005Z: ")
    assert rule.take_file(NOON + 5) == []
    assert len(rule.take([(NOON + 9, b"o", b"x")], is_torn=True)) == 1
    assert rule.take([(NOON + 10, b"o", b"x")]) == rule.judge(is_end=True) == []
