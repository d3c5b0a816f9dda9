"""Websockets of an API server, played by a server on this machine."""

import base64
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from controlplane.kubernetes_api import channel_socket
from controlplane.kubernetes_api.channel_socket import V4_PROTOCOL, V5_PROTOCOL, ChannelSocket
from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.errors import ApiError, ApiFailed
from controlplane.remote_errors import Unreachable
from tests.serving import serving
from tests.waiting import patience, wait_until

Handler = Callable[[ServerConnection], None]


class Tokens:
    """Tokens of which each renewal gives the next."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    def current(self) -> str | None:
        return self.tokens[0]

    def renew(self, refused: str | None) -> bool:
        assert refused == self.tokens.pop(0)
        return True


@contextmanager
def api_server(handler: Handler, **options) -> Iterator[str]:
    with (
        serve(handler, "127.0.0.1", 0, subprotocols=[V5_PROTOCOL, V4_PROTOCOL], **options) as server,
        serving(server),
    ):
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"


@contextmanager
def opened(url: str, tokens: Tokens | None = None, **options) -> Iterator[ChannelSocket]:
    access = Access(url, None, tokens or Tokens("secret-token"))
    stream = ChannelSocket(access, "/exec", [("a", "b")], [V5_PROTOCOL], 0, lambda _, data: data, **options)
    stream.near.settimeout(patience(20))
    with stream.near:
        yield stream
        stream.close()


def answering(*statuses: int, **headers: str) -> Callable[[ServerConnection, Request], Response | None]:
    """Answer requests with these statuses, then accept."""
    left = list(statuses)

    def process(connection: ServerConnection, request: Request) -> Response | None:
        if not left:
            return None
        body = b'{"message": "not with ' + request.headers["Authorization"].encode() + b'"}'
        made = Headers(**headers) if headers else Headers()
        made["Content-Length"] = str(len(body))
        return Response(left.pop(0), "No", made, body)

    return process


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(b"\x01" + message[1:])


def test_a_refused_token_is_renewed_once():
    with (
        api_server(echo, process_request=answering(401)) as url,
        opened(url, Tokens("old", "new")) as stream,
    ):
        stream.near.sendall(b"hello")
        assert stream.near.recv(10) == b"hello"
        stream.close()
        assert stream.near.recv(10) == b""


@pytest.mark.parametrize(("status", "error"), [(403, ApiError), (401, ApiError), (503, ApiFailed)])
def test_a_refusal_keeps_its_status_and_has_no_token(status, error):
    with api_server(echo, process_request=answering(status, status)) as url, pytest.raises(error) as refused:
        opened(url, Tokens("secret-token", "secret-token")).__enter__()
    assert refused.value.status == status
    assert "not with" in refused.value.message
    assert "secret" not in str(refused.value)


def test_a_redirect_is_not_followed():
    """The other server would get the token."""
    asked = []

    def note(connection: ServerConnection, request: Request) -> Response:
        asked.append(request)
        return connection.respond(HTTPStatus.TEAPOT, "")

    with (
        api_server(echo, process_request=note) as other,
        api_server(echo, process_request=answering(302, Location=f"{other}/exec")) as url,
        pytest.raises(ApiError) as refused,
    ):
        opened(url).__enter__()
    assert refused.value.status == 302
    assert asked == []


def test_a_reader_that_does_not_read_holds_the_server_up():
    sent, is_stopping = [0], threading.Event()

    def flood(connection: ServerConnection) -> None:
        while not is_stopping.is_set():
            connection.send(bytes(32768))
            sent[0] += 32768

    with api_server(flood) as url, opened(url):
        wait_until(lambda: is_still(sent), 10, "the server to wait")
        assert sent[0] < 32 << 20  # what two TCP buffers and our own hold
        is_stopping.set()


def is_still(count: list[int]) -> bool:
    before = count[0]
    return before > 0 and not threading.Event().wait(0.2) and count[0] == before


def test_what_the_server_sent_before_its_end_is_read():
    with (
        api_server(lambda connection: connection.send(b"\x01" + bytes(100_000))) as url,
        opened(url) as stream,
    ):
        got = 0
        while data := stream.near.recv(65536):
            got += len(data)
        assert got == 100_000


def test_the_channel_is_closed_where_the_caller_stops_writing():
    messages: list[bytes] = []

    def collect(connection: ServerConnection) -> None:
        messages.extend(connection)

    with api_server(collect) as url, opened(url, is_closable=True) as stream:
        stream.near.sendall(b"x")
        stream.near.shutdown(socket.SHUT_WR)
        wait_until(lambda: len(messages) == 2, 10, "the close of the channel")
        assert messages == [b"\0x", b"\xff\0"]
        stream.near.close()
        assert stream.ended.wait(patience(10))


def test_a_server_that_answers_no_ping_is_given_up(monkeypatch):
    monkeypatch.setattr(channel_socket, "PING_SECONDS", 0.05)
    monkeypatch.setattr(channel_socket, "SILENCE_SECONDS", 0.15)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=shake_hands, args=(server,), daemon=True).start()
        with opened(f"http://127.0.0.1:{server.getsockname()[1]}") as stream:
            assert stream.near.recv(1) == b""


def shake_hands(server: socket.socket) -> None:
    """Accept a websocket, then neither read nor write."""
    connection, _ = server.accept()
    head = connection.recv(65536).decode()
    key = next(line.split()[1] for line in head.splitlines() if line.lower().startswith("sec-websocket-key"))
    digest = hashlib.sha1(
        f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False
    ).digest()
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}",
        f"Sec-WebSocket-Protocol: {V5_PROTOCOL}",
    ]
    connection.sendall("\r\n".join([*lines, "", ""]).encode())
    server.settimeout(patience(30))
    try:
        server.accept()  # until the test closes it
    except OSError:
        connection.close()


def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(Unreachable):
        opened(url).__enter__()
