"""One try to copy a log, on streams that a test makes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from controlplane.engines.kubernetes.log_copy import LogCopy, LogSource, WantedLog
from controlplane.engines.kubernetes.log_streams import LogStreams
from controlplane.logstore.reader import tail
from controlplane.logstore.writer import LogWriter


class Streams:
    """Streams of the container's present and previous output; an unfinished one goes on for ever."""

    def __init__(self, previous: bytes, current: bytes, *, is_finished: bool) -> None:
        self.previous, self.current, self.is_finished = previous, current, is_finished

    @contextlib.asynccontextmanager
    async def open(self, _path: str, query: Mapping[str, str]) -> AsyncIterator["Stream"]:
        yield Stream(self.previous if "previous" in query else self.current, is_finished=self.is_finished)


class Stream:
    def __init__(self, output: bytes, *, is_finished: bool) -> None:
        self.output, self.is_finished = output, is_finished

    async def readany(self) -> bytes:
        output, self.output = self.output, b""
        if not output and not self.is_finished:
            await asyncio.Event().wait()
        return output


def line(number: int) -> bytes:
    return f"2026-01-01T12:00:{number:02}.000Z line {number}\n".encode()


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_stream_of_a_previous_container_that_is_left_is_read_on_later(
    tmp_path: Path, restarts: int
) -> None:
    """Also where containers between were missed, so that it is not known to be the one that was read before."""
    log = WantedLog("pod", str(tmp_path / "pod"), restarts=0)
    source = LogSource("/log", "main", True, restarts=restarts)

    async def copy(streams: Streams) -> None:
        with contextlib.closing(LogWriter(log.path)) as writer:
            await LogCopy(log, source, cast(LogStreams, streams), writer, 1 << 20).run()

    async def copy_and_leave() -> None:
        log.leave(0.05)
        await copy(Streams(line(1), b"", is_finished=False))

    with pytest.raises(TimeoutError):
        asyncio.run(copy_and_leave())
    log.leave_at = None
    asyncio.run(copy(Streams(line(1) + line(2), line(3), is_finished=True)))
    page = tail(Path(log.path), 10)
    assert ([found.text for found in page.lines], page.gaps) == (["line 1", "line 2", "line 3"], ())
