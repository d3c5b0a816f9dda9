"""Requests over the official client, to a server on this machine."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.tokens import FixedToken
from controlplane.remote_errors import Unreachable
from tests.serving import serving


class Server(ThreadingHTTPServer):
    """Answers every request alike, and notes what it was asked."""

    daemon_threads = True
    status, body, headers = 200, b"{}", {}

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append((self.command, self.path, dict(self.headers), sent))
        self.send_response(self.server.status)
        for name, value in {**self.server.headers, "Content-Length": str(len(self.server.body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815  names of http.server

    def log_message(self, *_arguments: object) -> None:
        return


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server, serving(server):
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    client = Client(Access(server.url, None, FixedToken("secret-token")))
    yield client
    client.close()


def test_a_redirect_is_not_followed(server, client):
    """Another server would get the token."""
    server.status, server.headers = 302, {"Location": f"{server.url}/elsewhere"}
    with pytest.raises(ApiError) as refused:
        client.get("/api")
    assert refused.value.status == 302
    assert [path for _, path, _, _ in server.asked] == ["/api"]


def test_a_proxy_of_the_environment_sees_nothing(server, client, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    again = Client(client.access)
    assert again.get("/api") == {}
    again.close()


def test_bodies_and_their_types(server, client):
    body = {"metadata": {"name": "a"}}
    client.create("/c", body)
    client.apply("/c/a", body)
    client.merge("/c/a", body)
    client.delete("/c/a", uid="7")
    client.remove_finalizer("/c/a", "ours/one", uid="7")
    sent = [(method, headers["Content-Type"]) for method, _, headers, _ in server.asked]
    assert sent == [
        ("POST", "application/json"),
        ("PATCH", "application/apply-patch+yaml"),
        ("PATCH", "application/merge-patch+json"),
        ("DELETE", "application/json"),
        ("PATCH", "application/strategic-merge-patch+json"),
    ]
    assert {data for _, _, _, data in server.asked[:3]} == {b'{"metadata": {"name": "a"}}'}
    assert all(headers["Authorization"] == "Bearer secret-token" for _, _, headers, _ in server.asked)


def test_what_is_not_there_is_found_as_nothing_and_other_refusals_are_raised(server, client):
    server.status = 404
    assert client.find("/api") is None
    server.status = 403
    with pytest.raises(ApiError):
        client.find("/api")


def test_an_answer_that_is_no_json_or_quotes_the_token(server, client):
    server.body = b"<html>"
    with pytest.raises(Unreachable, match="JSON"):
        client.get("/api")
    server.status, server.body = 403, b'{"message": "not with secret-token"}'
    with pytest.raises(ApiError) as refused:
        client.get("/api")
    assert refused.value.message == "not with [hidden]"
