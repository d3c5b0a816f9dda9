"""The web process over real sockets: who is let in, the feed, streams, and everything else through the hop."""

import json
import socket
import threading

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from websockets.exceptions import ConnectionClosed, InvalidStatus

from controlplane.actions import accounts
from controlplane.actions.passwords import set_password
from controlplane.live.changes import Change, apply
from controlplane.live.hub import hub
from controlplane.models import User
from tests.builders import make_job
from tests.cast import Cast
from tests.live.server import Events, Server
from tests.waiting import patience, wait_until


def bearer(cast: Cast, name: str) -> dict[str, str]:
    token = accounts.issue_token(getattr(cast, name), "test", actor=cast.actor(name))[1]
    return {"Authorization": f"Bearer {token}"}


def cookie(user: User) -> tuple[dict[str, str], SessionStore]:
    """A signed-in browser's cookie."""
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    return {"Cookie": f"yard_session={session.session_key}"}, session


def ask(socket, topic: str, since=None) -> dict:
    socket.send(json.dumps({"op": "subscribe", "topic": topic, "since": since}))
    return json.loads(socket.recv(5))


def test_a_probe_is_answered_under_any_host_name(server):
    response = server.request("GET", "/healthz", headers={"Host": "10.1.2.3:8000"})
    assert response.status == 200
    assert json.loads(response.read()) == {"status": "ok"}
    assert response.headers["content-type"] == "application/json"
    assert server.request("GET", "/login", headers={"Host": "10.1.2.3:8000"}).status == 400
    metrics = server.request("GET", "/metrics", headers={"Host": "10.1.2.3:8000"})
    assert metrics.status == 404  # answered, and none without their token
    path = f"/api/v1/pod-code/{'0' * 8}-0000-4000-8000-{'0' * 12}/1"
    code = server.request("GET", path, headers={"Host": "trainyard.trainyard.svc:8000"})
    assert code.status == 404  # the same for pods, which reach the server by a name of their cluster


def test_readiness_names_the_failing_check(server):
    response = server.request("GET", "/readyz")
    assert (response.status, json.loads(response.read())["failing"]) == (503, "loop")
    assert response.headers["retry-after"] == "1"
    assert server.request("GET", "/readyz?exclude=loop", headers={"Host": "10.1.2.3:8000"}).status == 200


def test_head_has_the_headers_and_no_body(server):
    response = server.request("HEAD", "/healthz")
    assert response.status == 200
    assert response.read() == b""


def test_a_body_above_the_limit_is_refused_and_the_server_lives_on(server, people):
    big = b"x" * (10 << 20)
    response = server.request("POST", "/api/v1/whoami", big, {"Content-Type": "application/json"})
    assert response.status == 413
    assert response.headers["content-type"] == "application/problem+json"
    assert json.loads(response.read())["code"] == "body_too_large"
    assert server.request("GET", "/healthz").status == 200


def test_a_socket_needs_a_credential(server, people):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "yard_session=wrong"}):
        with pytest.raises(InvalidStatus) as refused:
            server.websocket(additional_headers=headers)
        assert refused.value.response.status_code == 401


def test_a_token_in_the_header_or_the_subprotocol_opens_a_socket(server, people):
    headers = bearer(people, "ben")
    with server.websocket(additional_headers=headers) as socket:
        assert ask(socket, "overview")["type"] == "state"
    secret = headers["Authorization"].removeprefix("Bearer ")
    with server.websocket(subprotocols=["bearer", secret]) as socket:
        assert socket.subprotocol == "bearer"
        assert ask(socket, "overview")["type"] == "state"


def test_a_session_opens_a_socket_from_our_own_pages_only(server, people):
    headers, _session = cookie(people.ben)
    with server.websocket(additional_headers=headers, origin=server.origin) as socket:
        assert ask(socket, "overview")["type"] == "state"
    with pytest.raises(InvalidStatus) as refused:
        server.websocket(additional_headers=headers, origin="http://evil.example")
    assert refused.value.response.status_code == 403
    rebound = headers | {"Host": "evil.example"}
    response = server.request(
        "GET", "/api/v1/watch?topics=queue", headers=rebound | {"Origin": "http://evil.example"}
    )
    assert response.status == 400


def test_signing_out_closes_the_socket(server, people):
    headers, session = cookie(people.ben)
    with server.websocket(additional_headers=headers, origin=server.origin) as socket:
        ask(socket, "overview")
        session.delete()
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(30)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4401


def test_a_new_password_ends_other_sessions(server, people):
    headers, _session = cookie(people.ben)
    with server.websocket(additional_headers=headers, origin=server.origin) as socket:
        ask(socket, "overview")
        set_password(people.ben, "another correct horse", actor=people.actor("root"))
        with pytest.raises(ConnectionClosed):
            socket.recv(30)


def test_other_sockets_are_not_found(server, people):
    for path in ("/ws/other", "/ws/live/", "/nothing"):
        with pytest.raises(InvalidStatus) as refused:
            server.websocket(path, additional_headers=bearer(people, "ben"))
        assert refused.value.response.status_code == 404


def test_states_then_changes_over_a_socket(server, people):
    with server.websocket(additional_headers=bearer(people, "ben")) as socket:
        first = ask(socket, "queue")
        job = make_job(people.project, "one", people.ben)
        change = json.loads(socket.recv(5))
        assert change["type"] == "change"
        assert change["topic"] == "queue"
        assert change["seq"] > first["seq"]
        after = apply(first["state"], Change(change["upserts"], tuple(map(tuple, change["deletes"]))))
        assert list(after["queued"]) == [str(job.pk)]
        assert after["queued"][str(job.pk)]["queued_at"].endswith("Z")


def test_nonsense_is_answered_and_the_socket_lives_on(server, people):
    with server.websocket(additional_headers=bearer(people, "ben")) as socket:
        for text in (
            "",
            "[]",
            "{",
            '{"op": "fly"}',
            '{"op": "subscribe", "topic": 7}',
            "x" * 5000,
            "\x00",
            b"\x00\xff",
        ):
            socket.send(text)
            assert json.loads(socket.recv(5))["type"] == "error"
        socket.send('{"op": "ping"}')
        assert json.loads(socket.recv(5))["type"] == "pong"


def test_watch_streams_the_same_frames_and_resumes(server, people):
    headers = bearer(people, "ben")
    events = Events(server, "/api/v1/watch?topics=queue,overview", headers)
    stream = iter(events)
    first = [next(stream), next(stream)]
    assert {data["topic"] for _, _, data in first} == {"queue", "overview"}
    assert all(name == data["type"] == "state" for name, _, data in first)
    job = make_job(people.project, "one", people.ben)
    changed = [next(stream), next(stream)]
    assert all(name == "change" for name, _, _ in changed)
    events.close()
    make_job(people.project, "two", people.ben)
    resume = headers | {"Last-Event-ID": changed[-1][1]}
    events = Events(server, "/api/v1/watch?topics=queue,overview", resume)
    name, _, data = next(iter(events))
    assert name == "change"
    assert str(job.pk) not in data["upserts"].get("queued", {})
    events.close()


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/watch", 400, "topics_required"),
        ("/api/v1/watch?topics=weather", 400, "unknown_topic"),
        ("/api/v1/watch?topics=queue&since=x", 400, "bad_since"),
        ("/api/v1/watch?topics=queue&since=" + "9" * 5000, 400, "bad_since"),
        ("/api/v1/watch?topics=queue&topic=overview", 400, "unknown_query_field"),
        (
            "/api/v1/jobs/00000000-0000-4000-8000-000000000000/logs?follow=true&x=1",
            400,
            "unknown_query_field",
        ),
        ("/api/v1/jobs/nonsense/logs?follow=true", 404, "not_found"),
        ("/api/v1/jobs/00000000-0000-4000-8000-000000000000/logs?follow=1", 404, "not_found"),
    ],
)
def test_streams_refuse_what_they_cannot_serve(server, people, path, status, code):
    response = server.request("GET", path, headers=bearer(people, "ben"))
    assert (response.status, json.loads(response.read())["code"]) == (status, code)
    anonymous = server.request("GET", path)
    assert anonymous.status == 401
    assert anonymous.headers["www-authenticate"].startswith("Bearer")


def test_a_client_that_leaves_a_stream_leaves_the_hub(server, people):
    events = Events(server, "/api/v1/watch?topics=queue", bearer(people, "ben"))
    next(iter(events))
    assert len(hub()._listeners) == 1
    events.close()
    wait_until(lambda: not hub()._listeners, what="the listener to go")


def test_requests_are_served_one_at_a_time_and_all_of_them(server: Server):
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.request("GET", "/healthz").status))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(10))
    assert answers == [200] * 20


def test_nul_in_a_session_cookie_is_nobody(server, people):
    response = server.request(
        "GET", "/api/v1/watch?topics=queue", headers={"Cookie": 'yard_session="aaaaaaaaaa\\000"'}
    )
    assert response.status == 401


def test_a_socket_that_sends_too_fast_is_closed_with_a_reason(server, people):
    """20,000 subscriptions on one socket delayed everyone's feed by 10-19 s."""
    with server.websocket(additional_headers=bearer(people, "ben")) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            churn(socket)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4429, "at most 20 messages a second")


def churn(socket) -> None:
    """Subscribe and unsubscribe, then read what comes, until the socket is closed."""
    for number in range(5000):
        operation = "subscribe" if number % 2 == 0 else "unsubscribe"
        socket.send(json.dumps({"op": operation, "topic": "overview"}))
    while True:
        socket.recv(5)


def test_a_socket_that_goes_on_sending_after_its_close_is_dropped(server, people):
    key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    upgrade = f"GET /ws/live HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    token = f"Authorization: {bearer(people, 'ben')['Authorization']}\r\n\r\n"
    frame = b"\x81\xfe\x01\x00" + bytes(4) + b"x" * 256  # a masked text message
    with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
        connection.sendall((upgrade + key + token).encode())
        assert b" 101 " in connection.recv(65536)
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(frame * 200_000)  # 50 MB
