"""A node that begins a new file while its log is followed gives no sign of it in the stream."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from controlplane.engines.kubernetes import log_copy, log_streams
from controlplane.engines.kubernetes.log_copier import LogCopier
from controlplane.engines.kubernetes.log_copy import FILE_CHECK_SECONDS, LogSource
from controlplane.engines.kubernetes.log_cursor import stamp_ms
from controlplane.engines.kubernetes.log_gaps import MAY_BE_GONE
from controlplane.logstore.reader import LogPage, read_page, tail
from tests.kubernetes.clock_client import ClockClient
from tests.serving import serving
from tests.waiting import wait_until

HANGS = 1
LINES = 30_000  # of 100 bytes and more: three files' worth of looks


class Node(BaseHTTPRequestHandler):
    """Streams one log, and says when the file that it has now began."""

    file_began = ""
    refusal = 0  # the status with which it refuses to say that; HANGS: it says nothing at all
    asked = 0  # how often it was asked for that
    followed = 0

    def do_GET(self) -> None:
        if "limitBytes" in self.path:
            Node.asked += 1
            if self.refusal == HANGS:
                self.rfile.read(1)  # until it is hung up on us
                return
        Node.followed += "follow" in self.path and "sinceTime" not in self.path
        self.send_response(self.refusal if self.refusal and "limitBytes" in self.path else 200)
        self.end_headers()
        if "limitBytes" in self.path:
            self.wfile.write(f"{self.file_began} line".encode())
        elif "sinceTime" not in self.path:
            self.wfile.writelines(stamped(number) for number in range(LINES))
        else:  # what it still has of the last seconds
            self.wfile.writelines(stamped(number) for number in range(LINES - 5000, LINES))

    def log_message(self, *_words: object) -> None:
        return


def stamped(number: int) -> bytes:
    second, ms = divmod(number, 1000)
    return f"2026-01-01T12:00:{second:02}.{ms:03}Z {number} {'x' * 80}\n".encode()


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Node) as httpd, serving(httpd):
        yield f"http://127.0.0.1:{httpd.server_port}"


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Node, "asked", 0)
    monkeypatch.setattr(Node, "followed", 0)
    monkeypatch.setattr(Node, "file_began", "2026-01-01T12:00:00.000Z")


def copy(server: str, path: Path, started: str = "12:00:00") -> LogPage:
    """The log as it is kept, of a pod that began at `started` and ends when all was read of it."""
    started_ms = stamp_ms(f"2026-01-01T{started}Z".encode())
    end_word: list[str] = []
    client = ClockClient(server, lambda: started_ms + 60_000)
    copier = LogCopier(
        client, lambda _name: LogSource("/log", True, "".join(end_word), started_ms=started_ms)
    )
    copier.want({"pod": str(path)})
    try:
        wait_until(lambda: any(str(LINES - 1) in line.text for line in tail(path, 1).lines), what="the lines")
        end_word.append("exit 0")
        copier.notice(["pod"])
        wait_until(lambda: tail(path, 1).complete, what="the end")
    finally:
        copier.close()
    page = read_page(path, limit=2 * LINES)
    assert len(page.lines) == LINES
    return page


@pytest.mark.parametrize(("began", "gaps"), [("12:00:00.000", 0), ("12:00:07.000", 1)])
def test_a_new_file_is_told_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str, gaps: int
) -> None:
    monkeypatch.setattr(Node, "file_began", f"2026-01-01T{began}Z")
    page = copy(server, tmp_path / "pod.log")
    assert [gap.message for gap in page.gaps] == gaps * [
        f"output may be missing before 2026-01-01T{began}Z: the node began a new file then"
    ]


def test_a_new_file_whose_lines_are_not_read_yet_is_a_gap_before_them(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "file_began", "2026-01-01T12:00:29.990Z")
    (gap,) = copy(server, tmp_path / "pod.log").gaps
    assert 0 < gap.after_n <= LINES - 10
    assert gap.message.startswith("output may be missing before 2026-01-01T12:00:29.990Z: ")


@pytest.mark.parametrize(("started", "gaps"), [("11:59:40", 1), ("11:59:58", 0)])
def test_a_beginning_that_may_be_gone_is_told(server: str, tmp_path: Path, started: str, gaps: int) -> None:
    """It is followed a minute after its start; its first MiB takes some ten seconds."""
    page = copy(server, tmp_path / "pod.log", started)
    assert [gap.message for gap in page.gaps] == gaps * [
        f"output may be missing before 2026-01-01T12:00:00.000Z: {MAY_BE_GONE}"
    ]


@pytest.mark.parametrize(("seconds", "least", "most"), [(FILE_CHECK_SECONDS, 2, 3), (0.0, 1, 1)])
def test_the_node_is_asked_for_its_file_now_and_then_and_at_the_end(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, least: int, most: int
) -> None:
    """Once per file's worth of output, if FILE_CHECK_SECONDS have passed: here `seconds` from one look to the next."""
    clock = count(100.0, seconds)
    monkeypatch.setattr(log_copy, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    copy(server, tmp_path / "pod.log")
    # The last one is at the end.
    assert least <= Node.asked - 1 <= most


@pytest.mark.parametrize("refusal", [404, 429, HANGS])
def test_a_node_that_does_not_say_when_its_file_began_costs_the_log_nothing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    monkeypatch.setattr(Node, "refusal", refusal)
    monkeypatch.setattr(log_streams, "FILE_SECONDS", 0.2)
    page = copy(server, tmp_path / "pod.log")
    assert Node.asked
    assert (page.gaps, Node.followed) == ((), 1)
