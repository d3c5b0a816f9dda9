"""A node that put away a log's first lines before we read one, or is just renaming its file, says nothing of it."""

import asyncio
import contextlib
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from controlplane.engines.kubernetes import log_copier, log_copy, log_streams
from controlplane.engines.kubernetes.log_copier import LogCopier
from controlplane.engines.kubernetes.log_copy import LogCopy, LogSource
from controlplane.engines.kubernetes.log_cursor import Piece, stamp_ms
from controlplane.engines.kubernetes.log_gaps import MAY_BE_GONE
from controlplane.engines.kubernetes.log_streams import LogStreams
from controlplane.logstore.reader import read_page, tail
from controlplane.logstore.writer import LogWriter
from tests.kubernetes.clock_client import ClockClient
from tests.serving import serving
from tests.waiting import patience, wait_until

LOG = "/api/v1/namespaces/n/pods/pod/log"
NO_FILE = b"failed to try resolving symlinks in path: no such file or directory\n"
REMOVED = b"unable to retrieve container logs for containerd://9078"
FIRST = b"2026-01-01T12:00:20.000Z one\n"
ALL = FIRST + b"2026-01-01T12:00:21.000Z two\n"


def ms(time_of_day: str) -> int:
    return stamp_ms(f"2026-01-01T{time_of_day}Z".encode())


@dataclass
class Pod:
    """One pod, its log copied to `path` from a node that gives `answers` one after the other, the last for ever.

    An answer's pieces that are queues are waited for.
    """

    url: str
    path: Path
    answers: list[list[bytes | queue.Queue[bytes]]]
    asked: int = 0
    now_ms: int = ms("12:00:00")
    # The cluster's time for tests in which it does not stand still.
    clock: Callable[[], int] | None = None
    end_word: str = ""
    # The pod ends with the first stream that its node ends.
    ends_with_stream: bool = False
    refusal: tuple[int, str] | None = None  # its status and its Retry-After
    copier: LogCopier = field(init=False)

    def __post_init__(self) -> None:
        client = ClockClient(self.url, self.cluster_ms)
        self.copier = LogCopier(client, self.source)

    def cluster_ms(self) -> int:
        return self.clock() if self.clock else self.now_ms

    @property
    def copy(self) -> LogCopy | None:
        """The copy, None before the copier has begun it."""
        return found.copy if (found := self.copier._logs.get("pod")) else None

    def source(self, _name: str) -> LogSource:
        has_ended = self.ends_with_stream and self.copy is not None and self.copy.is_followed
        return LogSource(LOG, True, "exit 0" if has_ended else self.end_word, started_ms=ms("12:00:00"))

    def end(self) -> tuple[list[str], list[str]]:
        """Lines and gaps as they are kept, once the pod has ended."""
        self.end_word = "exit 0"
        self.copier.want({"pod": str(self.path)})
        self.copier.notice(["pod"])
        wait_until(lambda: tail(self.path, 1).complete, what="the end")
        page = read_page(self.path)
        return [line.text for line in page.lines], [gap.message for gap in page.gaps]


Start = Callable[..., Pod]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    pods: list[Pod] = []

    class Node(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (pod,) = pods
            answer = pod.answers[min(pod.asked, len(pod.answers) - 1)]
            pod.asked += 1
            status, retry_after = pod.refusal or (200, "")
            self.send_response(status)
            if pod.refusal:
                self.send_header("Retry-After", retry_after)
            self.end_headers()
            for piece in () if pod.refusal else answer:
                self.wfile.write(piece.get(timeout=patience(20)) if isinstance(piece, queue.Queue) else piece)

        def log_message(self, *_words: object) -> None:
            return

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Node)

    def pod(*answers: list[bytes | queue.Queue[bytes]]) -> Pod:
        pods.append(Pod(f"http://127.0.0.1:{httpd.server_address[1]}", tmp_path / "pod.log", list(answers)))
        return pods[0]

    with httpd, serving(httpd):
        yield pod
        for made in pods:
            made.copier.close()


def may_lack(before: str) -> list[str]:
    return [f"output may be missing before 2026-01-01T{before}Z: {MAY_BE_GONE}"]


def test_a_short_log_that_was_read_late_may_lack_its_beginning(start: Start) -> None:
    pod = start([ALL])
    pod.now_ms = ms("12:05:00")
    assert pod.end() == (["one", "two"], may_lack("12:00:20.000"))
    assert [gap.after_n for gap in read_page(pod.path).gaps] == [0]  # before the lines that were read


def test_a_log_that_was_read_late_and_is_empty_may_lack_all(start: Start) -> None:
    pod = start([])
    pod.now_ms = ms("12:05:00")
    lines, (gap,) = pod.end()
    assert lines == []
    assert gap == f"output may be missing before 2026-01-01T12:05:00.000Z: {MAY_BE_GONE}"


def test_a_program_that_is_silent_at_first_lacks_nothing_where_we_listened(start: Start) -> None:
    late: queue.Queue[bytes] = queue.Queue()
    pod = start([late], [ALL])
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: pod.asked, what="the stream")
    late.put(FIRST)
    wait_until(lambda: tail(pod.path, 1).lines, what="the first line")
    pod.now_ms = ms("12:05:00")
    assert pod.end() == (["one", "two"], [])


def test_a_stream_that_ended_without_a_line_was_listened_to(start: Start) -> None:
    """The next one begins late, but only a moment after the last one's end."""
    ends: queue.Queue[bytes] = queue.Queue()
    pod = start([ends], [FIRST])
    pod.clock = lambda: ms("12:00:30") if pod.asked > 1 else pod.now_ms
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: pod.copy and pod.copy.gaps.seen_ms, what="the stream")
    pod.now_ms = ms("12:00:19")
    ends.put(b"")
    wait_until(lambda: tail(pod.path, 1).lines, what="the first line")
    assert pod.end() == (["one"], [])


def test_a_stream_that_was_silent_for_long_was_listened_to(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We end it then, since it may have died without a word."""
    monkeypatch.setattr(log_streams, "IDLE_SECONDS", 0.5)
    pod = start([silent := queue.Queue[bytes]()], [FIRST])

    def clock() -> int:
        """Return 12 s past once the stream is open, so that it was silent for 12 s however fast this machine is."""
        return ms("12:00:12" if pod.copy and pod.copy.gaps.seen_ms else "12:00:00")

    pod.clock = clock
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: tail(pod.path, 1).lines, what="the first line")
    silent.put(b"")
    assert pod.end() == (["one"], [])


def test_a_stream_that_gave_much_and_fell_silent_is_doubted_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that began new files quickly gives nothing more on it until the container ends."""
    for name, value in {
        "SILENT_SECONDS": 0.2,
        "FILE_CHECK_SECONDS": float("inf"),
        "FILE_BYTES": 1,
    }.items():
        monkeypatch.setattr(log_copy, name, value)
    stuck: queue.Queue[bytes] = queue.Queue()
    pod = start([FIRST, stuck], [ALL, stuck], [ALL])
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: pod.path.exists() and len(read_page(pod.path).lines) == 2, 10, "the second line")
    stuck.put(b"")
    stuck.put(b"")
    assert pod.end() == (["one", "two"], [])


def test_a_silent_stream_leaves_what_is_known_of_the_node_s_file(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the file that the node began meanwhile would be taken for the one that was read."""
    monkeypatch.setattr(log_copy, "SILENT_SECONDS", 0.2)
    monkeypatch.setattr(log_copy, "FILE_CHECK_SECONDS", float("inf"))
    monkeypatch.setattr(log_copy, "FILE_BYTES", 1)
    stuck: queue.Queue[bytes] = queue.Queue()
    pod = start([ALL, stuck], [])
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: pod.asked > 1, what="the next stream")
    assert pod.copy
    assert pod.copy.gaps.file_began_ms == ms("12:00:20")
    stuck.put(b"")


def test_a_stream_that_never_opened_was_not_listened_to(tmp_path: Path) -> None:
    class Streams:
        refuses = True
        time_of_day = ""

        def now_ms(self) -> int:
            return ms(self.time_of_day)

        @contextlib.asynccontextmanager
        async def open(self, *_asked: object) -> AsyncIterator[object]:
            if self.refuses:
                raise TimeoutError
            yield SimpleNamespace(readany=self.read)

        async def read(self) -> bytes:
            return b""

    log, streams = LogCopy(str(tmp_path / "pod.log")), Streams()

    def copy(now: str) -> None:
        streams.time_of_day = now
        source = LogSource(LOG, True, started_ms=ms("12:00:00"))
        asyncio.run(log.read(source, cast(LogStreams, streams)))

    for now in ("12:00:01", "12:00:30"):  # asked for, and given up unanswered
        with pytest.raises(TimeoutError):
            copy(now)
    streams.refuses = False
    copy("12:00:31")
    log.gaps.take([(ms("12:00:31"), b"o", b"x")])
    assert log.gaps.may_be_gone()


def test_what_a_full_disk_did_not_take_is_asked_for_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, failures = LogWriter.add, [OSError(28, "No space left on device")]

    def full(writer: LogWriter, records: list[Piece]) -> None:
        if records[-1][2] == b"two" and failures:
            raise failures.pop()
        add(writer, records)

    monkeypatch.setattr(LogWriter, "add", full)
    more = b"2026-01-01T12:00:22.000Z three\n"
    pod = start([FIRST], [ALL], [ALL + more])
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: pod.path.exists() and len(read_page(pod.path).lines) == 3, what="all lines")
    assert not failures
    assert pod.end() == (["one", "two", "three"], [])


def test_a_healthy_stream_waits_for_no_turn(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is asked when its file began while the stream goes on, unless the server wants quiet."""
    monkeypatch.setattr(log_copy, "FILE_BYTES", 1)
    monkeypatch.setattr(log_copy, "FILE_CHECK_SECONDS", 0.0)
    later: queue.Queue[bytes] = queue.Queue()
    pod = start([FIRST, later, later], [ALL])
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: tail(pod.path, 1).lines, what="the first line")
    # Time stands still, so that a stream which waits for the server's pause waits for ever.
    bucket, now = pod.copier._client.bucket, time.monotonic()
    monkeypatch.setattr(bucket, "_clock", lambda: now)
    bucket.pause(20)
    for number, line in enumerate((b"21.000Z two\n", b"22.000Z three\n"), 2):
        later.put(b"2026-01-01T12:00:" + line)
        wait_until(lambda number=number: len(read_page(pod.path).lines) == number, what="the next line")


def test_a_server_that_puts_off_a_stream_is_left_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = start([ALL])
    pod.refusal = 429, "7"
    client, now = pod.copier._client, time.monotonic()
    # Time stands still, so that the pause does not end before it is seen.
    monkeypatch.setattr(client.bucket, "_clock", lambda: now)
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: client.bucket._allowance._quiet_until == now + 7, what="the pause")
    assert client.calls[("get", "pods/log")] == pod.asked == 1


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixture: no log is given up because this machine is slow."""
    monkeypatch.setattr(log_copier, "AWAY_SECONDS", 600.0)


@pytest.mark.usefixtures("patient")
def test_a_file_that_is_away_for_a_moment_is_asked_for_again(start: Start) -> None:
    pod = start([NO_FILE], [NO_FILE], [ALL])
    assert pod.end() == (["one", "two"], [])


def test_a_file_that_stays_away_is_a_gap_in_the_nodes_words(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copier, "AWAY_SECONDS", 1.0)
    words = NO_FILE.decode().strip()
    assert start([NO_FILE]).end() == ([], [f"the end of the output could not be read: {words}"])


@pytest.mark.parametrize("output", [b"", FIRST])
def test_a_log_that_was_followed_to_its_end_lacks_nothing_when_its_container_is_removed(
    start: Start, output: bytes
) -> None:
    """As that of a deleted pod is, once it has ended."""
    pod = start([output], [REMOVED])
    pod.ends_with_stream = True
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: tail(pod.path, 1).complete, what="the end")
    assert pod.end() == (["one"] if output else [], [])


def test_a_container_that_was_removed_before_its_log_was_read_to_its_end_is_a_gap(start: Start) -> None:
    assert start([REMOVED]).end() == ([], [f"the end of the output could not be read: {REMOVED.decode()}"])


@pytest.mark.usefixtures("patient")
def test_the_rest_of_a_log_whose_file_is_away_for_a_moment_is_asked_for_again(start: Start) -> None:
    pod = start([FIRST], [NO_FILE], [ALL])
    pod.copier.want({"pod": str(pod.path)})
    wait_until(lambda: tail(pod.path, 1).lines, what="the first line")
    assert pod.end() == (["one", "two"], [])
