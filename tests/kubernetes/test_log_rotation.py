"""A node that begins a new file while its log is followed gives no sign of it in the stream."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from controlplane.engines.kubernetes.kubeconfig import Access
from controlplane.engines.kubernetes.logs import LogCopier, LogSource
from controlplane.logs import read_page, tail
from tests.waiting import wait_until

LINES = 30_000  # of 100 bytes and more: three files' worth of looks


class Node(BaseHTTPRequestHandler):
    """Streams one log, and says when the file that it has now began."""

    file_began = ""

    def do_GET(self) -> None:
        self.send_response(200)
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
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Node)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.mark.parametrize(("began", "gaps"), [("12:00:00.000", 0), ("12:00:07.000", 1)])
def test_a_new_file_is_told_once(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began: str, gaps: int
) -> None:
    monkeypatch.setattr(Node, "file_began", f"2026-01-01T{began}Z")
    end_word: list[str] = []
    path = tmp_path / "pod.log"
    copier = LogCopier(
        Access(server, None),
        lambda _name: LogSource("/log", "main", has_started=True, end_word="".join(end_word)),
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
    assert [gap.message for gap in page.gaps] == gaps * [
        f"output may be missing before 2026-01-01T{began}Z: the node began a new file then"
    ]
