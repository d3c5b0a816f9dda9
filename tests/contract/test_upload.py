"""What a client sends of a large file, against the answers of a server, and what it says while it has to wait."""

import os
import signal
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from datasets.ingest import nearby, upload
from datasets.ingest.engine import sync_tree
from datasets.ingest.nearby import folder_mark, sink_nearby
from datasets.ingest.reader import Content
from datasets.ingest.reading import ALONE_FILES
from datasets.ingest.upload import HttpSink, UploadRefused, sink_of_server
from datasets.ingest.worker import Worker, WorkerFailed
from datasets.manifests import FILE
from datasets.storage.contents import Sharing
from datasets.storage.folder import FolderLake
from datasets.storage.folder_sink import sink_of_folder
from tests.serving import serving


class Server:
    """Holds parts, and finishes a content only in the answer to a part."""

    def __init__(self, held: int) -> None:
        self.held, self.is_finished = held, False

    def ask(self, method: str, address: str, body: bytes) -> Any:
        if method == "PUT":
            offset, size = (int(part.partition("=")[2]) for part in address.partition("?")[2].split("&"))
            self.held = 0 if self.held > size else self.held
            self.held = max(self.held, offset + len(body))
            self.is_finished = self.held == size
        return {"size_bytes": self.held}


@pytest.mark.parametrize("held", [0, 4, 9, 12])
def test_a_file_is_sent_until_the_server_finished_it(tmp_path, monkeypatch, held):
    content = b"123456789"
    (tmp_path / "file").write_bytes(content)
    server, sink = Server(held), HttpSink("http://127.0.0.1:1", {}, "xray")
    monkeypatch.setattr(sink, "_ask", server.ask)
    sink.put_file(sha256(content).digest(), bytes(tmp_path / "file"), len(content), 0)
    assert server.is_finished


def answers_of(
    monkeypatch: pytest.MonkeyPatch,
    *answers: tuple[int, str | None, bytes],
    lines: list[str] | None = None,
) -> HttpSink:
    """A sink whose server gives these answers, and which waits for nothing; what it says is added to `lines`."""
    say = [].append if lines is None else lines.append
    sink, said = HttpSink("http://127.0.0.1:1", {}, "xray", say), iter(answers)
    monkeypatch.setattr(sink, "_exchange", lambda *_: next(said))
    monkeypatch.setattr(upload.time, "sleep", lambda seconds: None)
    return sink


def test_a_lake_that_is_busy_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    busy = (409, "30", b'{"code": "in_use", "detail": "Old content is being removed."}')
    sink = answers_of(monkeypatch, busy, busy, (200, None, b'{"manifest": "m", "lacking": 0}'))
    assert sink.put_manifest(b"") == ("m", 0)


def test_another_conflict_is_final(monkeypatch: pytest.MonkeyPatch):
    sink = answers_of(monkeypatch, (409, None, b'{"code": "wrong_offset", "detail": "Not here."}'))
    with pytest.raises(UploadRefused, match="Not here"):
        sink.put_manifest(b"")


AWAY = "s3://lake at http://10.0.0.9:9000 cannot be used: the connection is refused; try again later."
GONE = (503, "30", b'{"code": "unreachable", "detail": "%s"}' % AWAY.encode())


def test_what_an_upload_waits_for_is_said_before_each_long_pause(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    done = (200, None, b'{"manifest": "m", "lacking": 0}')
    sink = answers_of(monkeypatch, GONE, (503, "0", GONE[2]), GONE, done, lines=said)
    assert sink.put_manifest(b"") == ("m", 0)
    assert said == [
        f"{AWAY} Next attempt in 30 s (2 of 6).",
        f"{AWAY} Next attempt in 0 s (3 of 6).",
        f"{AWAY} Next attempt in 30 s (4 of 6).",
    ]


@pytest.mark.parametrize("code", ["not_trusted", "no_bucket", "not_writable", "not_mounted"])
def test_what_only_an_operator_can_mend_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, code: str):
    said: list[str] = []
    refused = (503, "30", b'{"code": "%s", "detail": "Correct TRAINYARD_LAKE."}' % code.encode())
    sink = answers_of(monkeypatch, refused, lines=said)
    with pytest.raises(UploadRefused, match="Correct TRAINYARD_LAKE"):
        sink.put_manifest(b"")
    assert said == []


def test_a_name_that_is_denied_while_its_service_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    denied = (503, "30", b'{"code": "no_such_host", "detail": "The name does not resolve."}')
    sink = answers_of(
        monkeypatch, denied, denied, (200, None, b'{"manifest": "m", "lacking": 0}'), lines=said
    )
    assert sink.put_manifest(b"") == ("m", 0)
    assert said == [
        f"The name does not resolve. Next attempt in 30 s ({attempt} of 6)." for attempt in (2, 3)
    ]


class Yard(ThreadingHTTPServer):
    """A server that lacks everything. `is_silent`: it answers nothing until `released` is set; else packs are refused
    `refusals` times, and with `is_closing` their connections are closed after that."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.is_silent, self.is_closing, self.refusals, self.packs, self.longest = False, False, 0, 0, 0
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Yard

    def do_POST(self) -> None:
        body = self._body()
        self._send(200, b'{"lacking": [%s]}' % b",".join(b"%d" % at for at in range(len(body) // 32)))

    def do_PUT(self) -> None:
        self._body()
        if self.server.is_silent:
            self.server.released.wait(60)
        self.server.refusals -= 1
        if self.server.refusals >= 0:
            self._send(503, GONE[2])
            self.close_connection = self.server.is_closing
            return
        self.server.packs += 1
        self._send(200, b'{"size_bytes": 1}')

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.longest = max(self.server.longest, len(body))
        return body

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Yard]:
    with Yard() as server, serving(server):
        yield server
        server.released.set()


def test_what_worker_processes_wait_for_reaches_the_user_and_loses_no_result(server: Yard, tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    for number in range(ALONE_FILES + 1):
        (source / f"{number:03}").write_text(str(number))
    server.refusals = 4
    said: list[str] = []
    sink = sink_of_server(server.url, {}, "xray")
    found = sync_tree(source, sink, workers=1, say=said.append)
    assert found.manifest is not None
    assert len(found.manifest) == ALONE_FILES + 1
    # The first pause is short and not announced.
    assert said == [f"{AWAY} Next attempt in 0 s ({attempt} of 6)." for attempt in (3, 4, 5)]
    assert server.packs == 1


def test_a_request_without_an_answer_is_announced_while_it_waits(
    server: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(upload, "SAID_SECONDS", 0.05)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        server.released.set()

    server.is_silent = True
    sink = HttpSink(server.url, {}, "xray", say)
    sink.put_contents([Content(sha256(b"a").digest(), b"a")])
    sink.close()
    assert [f"{server.server_port} has not answered for" in line for line in said] == [True]


def test_a_connection_that_the_server_closed_during_a_long_pause_costs_no_attempt(
    server: Yard, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(upload, "SAID_SECONDS", 0.0)
    server.is_closing, server.refusals = True, upload.TRIES - 1
    said: list[str] = []
    sink = HttpSink(server.url, {}, "xray", said.append)
    sink.put_contents([Content(sha256(b"a").digest(), b"a")])
    sink.close()
    assert server.packs == 1
    assert not [line for line in said if "cannot be reached" in line]


def test_the_code_of_a_refusal_passes_from_the_worker(tmp_path: Path):
    (tmp_path / "a").write_text("alpha")
    worker = Worker(os.fsencode(tmp_path), ("tests.contract.away_sink:away_sink", ()))
    worker.start([(b"", [(b"a", FILE, 0, 0, 0)])])
    worker.results()
    with pytest.raises(WorkerFailed) as failed:
        worker.finish()
    worker.kill()
    assert (failed.value.code, str(failed.value)) == ("unreachable", "The lake is away.\tTry again later.")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_request_that_is_still_being_sent_is_not_one_without_an_answer(monkeypatch: pytest.MonkeyPatch):
    """A part of 16 MiB takes longer than SAID_SECONDS on most lines."""
    clock, said = Clock(), list[str]()
    monkeypatch.setattr(upload, "time", clock)
    sink = HttpSink("http://10.0.0.9:1", {}, "xray", said.append)
    body = b"x" * (3 * upload.PIECE_BYTES + 1)
    pieces = sink._pieces(body)

    class Waited(threading.Event):
        sent = b""

        def wait(self, timeout: float | None = None) -> bool:
            assert not said
            clock.now += 1.0
            self.sent += bytes(next(pieces, b""))
            return False

    waited = Waited()
    sink._watch(waited)
    assert waited.sent == body
    assert clock.now >= 4.0 + upload.SAID_SECONDS - 1.0
    assert [line.partition(";")[0] for line in said] == ["10.0.0.9:1 has not answered for 2.5 s"]


def test_a_large_body_arrives_whole(server: Yard):
    sink = HttpSink(server.url, {}, "xray")
    sink.put_contents([Content(sha256(b"a").digest(), b"a" * (3 * upload.PIECE_BYTES + 1))])
    sink.close()
    assert server.packs == 1
    assert server.longest > 3 * upload.PIECE_BYTES


def test_a_worker_that_is_killed_while_it_waits_is_named(server: Yard, tmp_path: Path):
    (tmp_path / "a").write_text("alpha")
    server.refusals = 1000
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        os.kill(worker._process.pid, signal.SIGKILL)

    worker = Worker(os.fsencode(tmp_path), sink_of_server(server.url, {}, "xray"), say)
    worker.start([(b"", [(b"a", FILE, 0, 0, 0)])])
    assert worker.results() is not None
    with pytest.raises(WorkerFailed, match="was killed"):
        worker.finish()
    worker.kill()
    assert said


def many(root: Path) -> Path:
    """A directory with more files than are read without worker processes."""
    root.mkdir()
    for number in range(ALONE_FILES + 1):
        (root / f"{number:03}").write_text(str(number))
    return root


def test_many_files_go_into_a_lake_on_this_machine_and_not_to_the_server(server: Yard, tmp_path: Path):
    lake = FolderLake(tmp_path / "lake")
    folder = str(lake.root)
    sink = sink_of_server(server.url, {}, "xray")
    found = sync_tree(
        many(tmp_path / "source"),
        sink,
        nearby=lambda: sink_nearby(folder, folder_mark(folder), Sharing.REFLINK.value),
    )
    assert found.manifest is not None
    assert lake.lacking(found.manifest.contents()) == set()
    assert (server.packs, server.longest) == (0, 0)


def test_few_files_do_not_ask_for_a_lake_nearby(tmp_path: Path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_text("alpha")

    def asked() -> None:
        raise AssertionError("A request more, for one file.")

    assert sync_tree(tmp_path / "source", sink_of_folder(tmp_path / "lake"), nearby=asked).manifest


def test_a_lake_is_nearby_only_if_it_is_the_same_folder_of_the_same_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, other = tmp_path / "lake", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    mark = folder_mark(str(folder))
    assert sink_nearby(str(folder), mark, Sharing.REFLINK.value) == sink_of_folder(folder)
    assert sink_nearby(str(other), mark, Sharing.REFLINK.value) is None
    assert sink_nearby(str(tmp_path / "none"), mark, Sharing.REFLINK.value) is None
    monkeypatch.setattr(nearby.os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert sink_nearby(str(folder), mark, Sharing.REFLINK.value) is None
