"""What an anonymous client may cost: heads, cookies, half-open connections, bodies that never end, password hashes."""

import http.client
import ipaddress
import select
import socket
import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from django.contrib.auth import hashers

import controlplane.http.wsgi_bridge
from controlplane import asgi
from controlplane.actions.accounts import issue_token
from controlplane.actions.sign_in import check_password, forget_attempts
from controlplane.http.client_address import address_key
from controlplane.http.connections import (
    PROBE_SECONDS,
    LimitedHttp,
    LimitedWebsocket,
    Limits,
    is_loopback,
)
from controlplane.http.departure import until_gone
from controlplane.http.header_limits import COOKIE_MOST_BYTES, HEADERS_MOST_BYTES, header_refusal
from controlplane.http.throttle import Throttle, TooManyAttempts
from controlplane.http.unknown_tokens import note_unknown_token
from tests.live.server import Server, running
from tests.waiting import patience, wait_until

QUICK = Limits(connections=100, head_seconds=0.5, body_idle_seconds=0.5, write_stall_seconds=0.5)
HOST = b"Host: localhost\r\n"
UPGRADE = (
    b"GET /ws/live HTTP/1.1\r\n" + HOST + b"Upgrade: websocket\r\nConnection: upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.fixture
def quick(live_db: None) -> Iterator[Server]:
    """A web server that loses patience soon."""
    with running(QUICK) as server:
        yield server


def open_socket(server: Server, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), patience(10))
    connection.sendall(sent)
    return connection


def answer_of(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([(b"a", b"x" * HEADERS_MOST_BYTES)], "headers_too_large"),
        ([(b"a", b"x")] * 200, "headers_too_large"),
        ([(b"cookie", b'a="' + b'"' * COOKIE_MOST_BYTES)], "cookie_too_large"),
        ([(b"cookie", b"a" * 5000), (b"cookie", b"b" * 5000)], "cookie_too_large"),
        ([(b"cookie", b'a="' + b"\\" * 4000 + b'"')], "cookie_too_large"),
        ([(b"cookie", b"sessionid=" + b"a" * 32), (b"accept", b"x" * 9000)], None),
    ],
)
def test_a_head_beyond_the_limits_is_refused_before_it_is_parsed(headers, code):
    refusal = header_refusal(headers)
    assert (refusal.code if refusal else None) == code


@pytest.mark.parametrize(
    "head",
    [
        b"GET /login HTTP/1.1\r\n" + HOST + b"Cookie: a=" + b'"' * 20_000 + b"\r\n\r\n",
        b"GET /login HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 40_000 + b"\r\n\r\n",
        b"GET /login HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 40_000,  # its end never comes
        b"GET /login HTTP/1.1\r\n" + HOST + b"a:b\r\n" * 5000,
        b"GET /" + b"x" * 40_000,
        b"GET / HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n" + b"a:b\r\n" * 500 + b"\r\n",
    ],
)
def test_a_large_head_is_answered_with_431(server, head):
    with open_socket(server, head) as connection:
        answer = answer_of(connection) if b"\r\n\r\n" not in head else connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in answer
    assert b"_too_large" in answer


def test_a_half_open_connection_is_ended(quick):
    with open_socket(quick) as silent, open_socket(quick, b"GET / HTTP/1.1\r\nHost: local") as partial:
        assert answer_of(partial).startswith(b"HTTP/1.1 408 ")
        assert b"headers_too_slow" in answer_of(silent)


def test_a_blank_line_after_an_answer_keeps_no_connection_open(quick, monkeypatch):
    monkeypatch.setattr(
        LimitedHttp, "timeout_keep_alive", property(lambda _: 0.5, lambda _, __: None), raising=False
    )
    with open_socket(quick, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"\r\n")
        assert answer_of(connection) == b""


def test_headers_that_trickle_in_do_not_extend_the_time(quick):
    with open_socket(quick, b"GET / HTTP/1.1\r\n") as connection:
        connection.settimeout(0.05)

        def is_ended() -> bool:
            try:
                connection.sendall(b"a")
                return b"408" in connection.recv(65536)
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_ended, what="the end of a connection that trickles")


def test_a_body_that_stops_is_ended(quick):
    head = b"POST /api/v1/whoami HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n{"
    with open_socket(quick, head) as connection:
        assert answer_of(connection) == b""


def test_a_body_that_trickles_in_is_ended(server, monkeypatch):
    monkeypatch.setattr(controlplane.http.wsgi_bridge, "BODY_MOST_SECONDS", 0.2)
    head = b"POST /api/v1/whoami HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n{"
    with open_socket(server, head) as connection:
        answer = answer_of(connection)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body_too_slow" in answer


def test_a_client_that_does_not_read_is_ended():
    ended = threading.Event()

    async def endless(scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await asgi.application(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        ended.set()

    with running(QUICK, endless) as server, open_socket(server, b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"):
        assert ended.wait(patience(30))  # what is sent to a connection that was ended is dropped


def deaf(left: threading.Event):
    """Return an application that reads nothing of what the client sends after the start."""

    async def application(scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await asgi.application(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
        await until_gone(scope)
        left.set()

    return application


def test_a_websocket_client_that_leaves_behind_unread_messages_is_noticed():
    """The end of its connection is behind them, and does not arrive while there is no room."""
    frame = b"\x82\xfe" + (60_000).to_bytes(2, "big") + bytes(4) + b"x" * 60_000
    left, sent = threading.Event(), 0
    with running(QUICK, deaf(left)) as server:
        client = open_socket(server, UPGRADE)
        assert b" 101 " in client.recv(4096)
        while select.select([], [client], [], 0.3)[1]:
            sent += client.send(frame[sent % len(frame) :], socket.MSG_DONTWAIT)
        assert not left.is_set()
        client.close()
        assert left.wait(patience(60))


def test_a_client_that_leaves_behind_an_unread_body_is_noticed():
    left = threading.Event()
    with running(QUICK, deaf(left)) as server:
        head = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999\r\n\r\n"
        open_socket(server, head + b"x" * 200_000).close()
        assert left.wait(patience(60))


def test_a_websocket_whose_messages_wait_may_answer_pings_late():
    connection = LimitedWebsocket.__new__(LimitedWebsocket)
    scheduled = []
    connection.read_paused, connection.schedule_ping = True, lambda: scheduled.append(1)
    connection.keepalive_timeout()
    assert (scheduled, connection.pending_ping_payload) == ([1], None)


def test_a_websocket_that_closes_behind_unread_messages_and_does_not_end_is_ended():
    """Its client takes nothing of what is left. A closing connection has no pings."""
    connection = LimitedWebsocket.__new__(LimitedWebsocket)
    connection.read_paused = connection.handshake_complete = True
    connection.close_sent, connection._probed_at = False, 0.0
    connection.transport = Mock(is_closing=lambda: True, get_extra_info=lambda _name: None)
    connection.check(PROBE_SECONDS + 1)
    connection.transport.abort.assert_called_once_with()


def test_a_websocket_whose_client_neither_reads_nor_answers_pings_is_ended(monkeypatch):
    ended = threading.Event()

    async def endless(scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            await asgi.application(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        try:
            while True:
                await send({"type": "websocket.send", "bytes": b"x" * 65536})
        finally:
            ended.set()

    def ping_without_answer(self: LimitedWebsocket) -> None:
        self.loop.call_later(0.5, self.keepalive_timeout)

    monkeypatch.setattr(LimitedWebsocket, "schedule_ping", ping_without_answer)
    with running(QUICK, endless) as server, open_socket(server, UPGRADE):
        assert ended.wait(patience(30))


def test_a_new_connection_takes_the_place_of_the_longest_waiting_one(live_db):
    limits = Limits(connections=64)
    with running(limits) as server:
        held = [open_socket(server) for _ in range(70)]
        assert server.request("GET", "/healthz").status == 200
        assert held[0].recv(1) == b""
        for connection in held:
            connection.close()


def test_a_slot_is_given_back(live_db, people):
    """Also that of a websocket, which another protocol takes over."""
    limits = Limits(connections=64)
    with running(limits) as server:
        for _ in range(3):
            held = [open_socket(server, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n") for _ in range(60)]
            for connection in held:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200")
                connection.close()
        for _ in range(100):
            with open_socket(server, UPGRADE) as connection:
                assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        assert server.request("GET", "/healthz").status == 200


def test_an_address_has_a_share_and_loopback_has_none(live_db, monkeypatch):
    with running(Limits(per_address=2)) as server:
        held = [open_socket(server) for _ in range(5)]
        assert server.request("GET", "/healthz").status == 200
        monkeypatch.setattr("controlplane.http.connections.is_loopback", lambda key: False)
        response = server.request("GET", "/healthz")
        assert response.status == 429
        assert response.headers["retry-after"]
        assert b"too_many_connections_from_address" in response.read()
        for connection in held:
            connection.close()


def test_an_ipv6_network_counts_as_one_client():
    assert address_key(("2001:db8:1:2:3:4:5:6", 1)) == address_key(("2001:db8:1:2::1", 2)) == "2001:db8:1:2::"
    assert address_key(("10.0.0.1", 1)) == address_key(("::ffff:10.0.0.1", 1)) == "10.0.0.1"
    assert is_loopback(address_key(("::1", 1)))
    assert is_loopback(address_key(("::ffff:127.0.0.1", 1)))
    assert not is_loopback(address_key(("::ffff:10.0.0.1", 1)))


def test_limits_count_the_clients_of_a_trusted_proxy(server, people, monkeypatch, settings):
    """And without one no header: a client could choose its address."""

    def sign_in(client: str) -> int:
        headers = {"Content-Type": "application/json", "X-Forwarded-For": client}
        return server.request("POST", "/api/v1/login", b'{"username": "x", "password": "y"}', headers).status

    monkeypatch.setattr("controlplane.asgi.sign_ins", Throttle(1, 60))
    forget_attempts()
    assert [sign_in("198.51.100.1"), sign_in("198.51.100.2")] == [401, 429]
    settings.TRUSTED_PROXIES = [ipaddress.ip_network("127.0.0.0/8")]
    assert [sign_in(f"198.51.100.{last}") for last in (1, 2, 1)] == [401, 401, 429]
    assert sign_in("9.9.9.9, 198.51.100.2") == 429
    assert [sign_in(f"2001:db8::{last}") for last in (1, 2)] == [401, 429]
    forget_attempts()


def test_a_client_does_not_escape_limits_by_another_address_of_its_ipv6_network(people, monkeypatch):
    """A host has 2 ** 64 of them."""
    monkeypatch.setattr("controlplane.http.unknown_tokens._attempts", Throttle(1, 60))
    note_unknown_token("2001:db8::1")
    with pytest.raises(TooManyAttempts):
        note_unknown_token("2001:db8::2")
    for name in ("_attempts", "_attempts_by_address"):
        forget_attempts()
        with monkeypatch.context() as patched:
            patched.setattr(f"controlplane.actions.sign_in.{name}", Throttle(1, 60))
            assert check_password("ana", "wrong", "2001:db8::1") is None
            with pytest.raises(TooManyAttempts):
                check_password("ana", "wrong", "2001:db8::2")
    forget_attempts()


@pytest.mark.parametrize("path", ["/api/v1/whoami", "/api/v1/watch?topics=overview"])
def test_unknown_tokens_of_an_address_have_a_rate_and_known_ones_none(server, people, monkeypatch, path):
    monkeypatch.setattr("controlplane.http.unknown_tokens._attempts", Throttle(2, 60))
    _, secret = issue_token(people.ana, "test", actor=people.actor("ana"))
    known = {"Authorization": f"Bearer {secret}"}

    def ask(secret: str) -> http.client.HTTPResponse:
        return server.request("GET", path, headers={"Authorization": f"Bearer {secret}"})

    answers = [ask(f"yard_unknown{number}") for number in range(3)]
    assert [answer.status for answer in answers] == [401, 401, 429]
    assert 0 < int(answers[2].headers["Retry-After"]) <= 60
    assert b"too_many_requests" in answers[2].read()
    assert server.request("GET", path, headers=known).status == 200


class SlowHasher(hashers.MD5PasswordHasher):
    """Hashes when it may."""

    algorithm = "slow"
    gate = threading.Event()
    threads: set[str] = set()

    def encode(self, password, salt):
        self.threads.add(threading.current_thread().name)
        self.gate.wait(patience(30))
        return super().encode(password, salt)


@pytest.fixture
def slow_hashes(settings) -> Iterator[threading.Event]:
    settings.PASSWORD_HASHERS = [f"{__name__}.SlowHasher"]
    SlowHasher.gate.clear()
    yield SlowHasher.gate
    SlowHasher.gate.set()


def test_wrong_sign_ins_delay_nothing_but_sign_ins(server, people, slow_hashes):
    body = b'{"username": "nobody", "password": "wrong wrong wrong"}'
    statuses: list[int] = []

    def sign_in() -> None:
        response = server.request("POST", "/api/v1/login", body, {"Content-Type": "application/json"})
        statuses.append(response.status)

    threads = [threading.Thread(target=sign_in) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        wait_until(
            lambda: statuses.count(429) >= 12 - asgi.HASHING_MOST_OF_CLIENT - asgi.HASHING_THREADS - 1,
            what="refusals",
        )
        assert server.request("GET", "/login").status == 200
        assert server.request("GET", "/healthz").status == 200
        assert server.request("GET", "/readyz?exclude=loop").status == 200
    finally:
        slow_hashes.set()
        for thread in threads:
            thread.join(patience(30))
    assert set(statuses) <= {401, 429}
    assert {name.partition("_")[0] for name in SlowHasher.threads} == {"hashing"}


def test_sign_ins_of_an_address_have_a_rate(server, people, monkeypatch):
    forget_attempts()
    monkeypatch.setattr(asgi, "sign_ins", Throttle(2, 60))
    body, kind = b'{"username": "nobody", "password": "wrong"}', {"Content-Type": "application/json"}
    statuses = [server.request("POST", "/api/v1/login", body, kind).status for _ in range(3)]
    assert statuses == [401, 401, 429]
    assert server.request("GET", "/login").status == 200
