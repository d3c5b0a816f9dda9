"""One try to copy a log, on streams that a test makes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from controlplane.engines.kubernetes.log_copy import LogCopy, LogSource
from controlplane.engines.kubernetes.log_cursor import stamp_ms
from controlplane.engines.kubernetes.log_gaps import MAY_BE_GONE
from controlplane.engines.kubernetes.log_streams import LogStreams
from controlplane.logstore.reader import read_page


class Streams:
    """Streams of a node's present file; an unfinished one falls silent."""

    def __init__(self, output: bytes, clock: "Clock", *, is_finished: bool) -> None:
        self.output, self.clock, self.is_finished = output, clock, is_finished

    def now_ms(self) -> int:
        return self.clock.now_ms

    @contextlib.asynccontextmanager
    async def open(self, *_asked: object) -> AsyncIterator["Stream"]:
        # The wait for a turn.
        self.clock.now_ms += self.clock.wait_ms
        yield Stream(self.output, is_finished=self.is_finished)


class Clock:
    """The cluster's time, and how long a stream is waited for."""

    now_ms = wait_ms = 0


class Stream:
    def __init__(self, output: bytes, *, is_finished: bool) -> None:
        self.output, self.is_finished = output, is_finished

    async def readany(self) -> bytes:
        output, self.output = self.output, b""
        if not output and not self.is_finished:
            raise TimeoutError
        return output


def line(number: int) -> bytes:
    return f"2026-01-01T12:00:{number:02}.000Z line {number}\n".encode()


class Log:
    """One log, copied from streams of the node's present file."""

    def __init__(self, path: Path) -> None:
        self.copy, self.clock = LogCopy(str(path)), Clock()

    def read(self, output: bytes, *, is_finished: bool = True, **source: Any) -> tuple[list[str], list[str]]:
        """Read one stream; return the lines and gaps that are stored."""
        streams = cast(LogStreams, Streams(output, self.clock, is_finished=is_finished))
        with contextlib.suppress(TimeoutError):
            asyncio.run(self.copy.read(LogSource("/log", True, **source), streams))
        page = read_page(self.copy.path)
        return [found.text for found in page.lines], [gap.message for gap in page.gaps]


def test_a_stream_that_is_left_is_read_on_later(tmp_path: Path) -> None:
    log = Log(tmp_path / "pod")
    assert log.read(line(1), is_finished=False) == (["line 1"], [])
    assert log.read(line(1) + line(2)) == (["line 1", "line 2"], [])


def test_output_of_a_container_that_its_node_made_anew_follows_a_gap(tmp_path: Path) -> None:
    """The node no longer has what the first one printed last. The pods are never restarted by their own policy."""
    log = Log(tmp_path / "pod")
    log.read(line(1), is_finished=False)
    lines, gaps = log.read(line(7) + line(8), end_word="exit 0")
    assert lines == ["line 1", "line 7", "line 8"]
    assert gaps == ["output may be missing before 2026-01-01T12:00:07.000Z: the node began a new file then"]


def test_time_that_a_log_waited_for_a_stream_is_not_taken_for_listening(tmp_path: Path) -> None:
    log, began_ms = Log(tmp_path / "pod"), stamp_ms(b"2026-01-01T12:00:00Z")
    log.clock.now_ms, log.clock.wait_ms = began_ms, 60_000
    _, (gap,) = log.read(line(50), end_word="exit 0", started_ms=began_ms)
    assert gap == f"output may be missing before 2026-01-01T12:00:50.000Z: {MAY_BE_GONE}"
