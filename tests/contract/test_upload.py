"""What a client sends of a large file, against the answers of a server."""

from hashlib import sha256
from typing import Any

import pytest

from datasets.ingest.upload import HttpSink


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
