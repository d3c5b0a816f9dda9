"""What a client sends of a large file, against the answers of a server."""

from hashlib import sha256
from typing import Any

import pytest

from datasets.ingest import upload
from datasets.ingest.upload import HttpSink, UploadRefused


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
    sink.put_file(sha256(content).digest(), bytes(tmp_path / "file"), len(content))
    assert server.is_finished


def answers_of(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, str | None, bytes]) -> HttpSink:
    """A sink whose server gives these answers, and which waits for nothing."""
    sink, said = HttpSink("http://127.0.0.1:1", {}, "xray"), iter(answers)
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
