"""Ports and shells of running pods, through a real server, as a member, a stranger and nobody."""

from __future__ import annotations

import json
import re
import select
import socket
from pathlib import Path
from urllib.parse import urlencode

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.gateway.yard import Yard, call, seen, stop
from tests.waiting import patience, wait_until

pytestmark = pytest.mark.slow
MISSING = "00000000-0000-4000-8000-000000000000"


# HTTP


def test_a_member_reaches_the_port_and_the_job_sees_no_credential(yard: Yard):
    status, headers, body = yard.ask("/a%2Fb?x=1", yard.ana, Cookie="yard_session=1; mine=2", X_Mine="yes")
    assert status == 200
    request = seen(body)
    assert request["path"] == "/a%2Fb?x=1"
    assert request["headers"]["x-mine"] == "yes"
    assert request["headers"]["x-forwarded-host"] == yard.host()
    assert request["headers"]["host"].startswith("127.0.0.1:")
    assert request["headers"]["cookie"] == "mine=2"
    assert "authorization" not in request["headers"]
    assert yard.ana not in body.decode()
    assert len(headers.get_all("Date")) == 1
    assert headers.get_all("Content-Security-Policy") == ["frame-ancestors 'self'"]


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_bodies_pass_whole(yard: Yard, size: int):
    body = b"z" * size
    status, _, answer = yard.ask("/up", yard.ana, "POST", body)
    assert (status, len(seen(answer)["body"])) == (200, size)


def test_streams_and_redirects_pass(yard: Yard):
    assert yard.ask("/chunks", yard.ana)[2] == b"line0line1line2"
    status, headers, _ = yard.ask("/away", yard.ana)
    assert (status, headers["Location"]) == (302, "/there")
    assert yard.ask("/head", yard.ana, "HEAD")[0] in (200, 501)


@pytest.mark.parametrize(
    ("host", "who", "expected"),
    [
        ("{id}-8888", None, 401),
        ("{id}-8888", "wrong", 401),
        ("{id}-8888", "chi", 404),
        ("{id}-8888", "vic", 403),
        ("{id}-9999", "ana", 404),
        ("{id}-7777", "ana", 503),
        (f"{MISSING}-8888", "ana", 404),
    ],
)
def test_others_are_refused(yard: Yard, host: str, who: str | None, expected: int):
    token = getattr(yard, who) if who in ("ana", "chi", "vic") else who
    name = f"{host.replace('{id}', yard.job_id)}.{yard.host().partition('.')[2]}"
    status, headers, body = yard.get("/", token, Host=name)
    assert status == expected
    assert json.loads(body)["status"] == expected
    assert (status != 503) or headers["Retry-After"]


def test_a_browser_is_shown_a_page_that_asks_again(yard: Yard):
    status, headers, body = yard.ask("/", yard.ana, port=7777, Accept="text/html,*/*;q=0.8")
    assert (status, headers["Refresh"], headers["Cache-Control"]) == (503, "2", "no-store")
    assert "Port 7777 of the job does not answer" in body.decode()
    assert f'href="{yard.server.url}/jobs/{yard.job_id}"' in body.decode()
    status, headers, body = yard.ask("/", yard.ana, port=9999, Accept="text/html")
    assert (status, headers["Refresh"]) == (404, None)
    assert "<h1>Not Found</h1>" in body.decode()


def test_a_job_that_is_over_is_not_asked_for_again(yard: Yard):
    body = {"name": "over", "kind": "interactive", "command": ["sleep", "60"], "ports": [{"port": 8888}]}
    job = call(yard.server, "POST", "/api/v1/projects/team-a/jobs", body)
    stop(yard.server, job["id"])
    for accept in ("text/html", "*/*"):
        host = yard.host(job_id=job["id"])
        status, headers, answer = yard.get("/", yard.ana, Host=host, Accept=accept)
        assert (status, headers["Refresh"], headers["Retry-After"]) == (503, None, None)
        assert b"its state is stopped" in answer


# Websockets


def test_websockets_pass_both_ways(yard: Yard):
    with yard.socket("/live?x=1", yard.ana, subprotocols=["a", "b"]) as socket:
        assert socket.subprotocol == "b"
        assert socket.recv(patience(10)) == "path /live?x=1"
        for message in ("text", b"\0\xff", "x" * 200_000):
            socket.send(message)
            assert socket.recv(patience(10)) == message
        socket.send("bye")
        with pytest.raises(Exception, match="4321"):
            socket.recv(patience(10))


@pytest.mark.parametrize(
    ("who", "port", "status"), [(None, 6006, 401), ("chi", 6006, 404), ("ana", 9999, 404), ("ana", 7777, 503)]
)
def test_websockets_of_others_are_refused(yard: Yard, who: str | None, port: int, status: int):
    with pytest.raises(InvalidStatus) as refusal:
        yard.socket("/", getattr(yard, who) if who else None, port=port)
    assert refusal.value.response.status_code == status


# The shell


def read_until(socket: ClientConnection, wanted: bytes) -> bytes:
    output = b""
    while wanted not in output:
        message = socket.recv(patience(15))
        assert isinstance(message, bytes), message
        output += message
    return output


def test_a_shell_runs_in_the_pod_and_tells_its_exit_code(yard: Yard):
    with yard.own_socket(f"/ws/shell/{yard.job_id}?rank=0&columns=100&rows=30", yard.ana) as socket:
        socket.send(b"stty size; echo $TRAINYARD_JOB/$TRAINYARD_PROJECT\n")
        assert b"30 100" in read_until(socket, b"web/team-a\r\n")
        socket.send(json.dumps({"op": "resize", "columns": 60, "rows": 20}))
        for nonsense in ("[", "{}", '{"op":"resize","columns":"x"}', "7"):
            socket.send(nonsense)
        socket.send(b"stty size\n")
        read_until(socket, b"20 60")
        socket.send(b"exit 7\n")
        message = socket.recv(patience(15))
        while isinstance(message, bytes):
            message = socket.recv(patience(15))
        assert json.loads(message) == {"op": "exit", "exit_code": 7}
    audit = yard.server.call("GET", "/api/v1/audit")[1]["results"]
    assert any((row["verb"], row["actor"]) == ("job.shell", "ana") for row in audit)


def test_a_long_paste_arrives_whole(yard: Yard):
    with yard.own_socket(f"/ws/shell/{yard.job_id}", yard.ana) as socket:
        socket.send(b"stty -echo -icanon; echo ready; head -c 300000 | wc -c\n")
        read_until(socket, b"ready\r\n")
        socket.send(b"x" * 300_000)
        read_until(socket, b"300000")


def test_nothing_of_a_shell_is_left_when_the_client_leaves(yard: Yard):
    with yard.own_socket(f"/ws/shell/{yard.job_id}", yard.ana) as socket:
        socket.send(b"stty -echo; sleep 987654 & echo pid-$!-\n")
        output = b""
        while not (found := re.search(rb"pid-(\d+)-", output)):
            output += read_until(socket, b"\r\n")
        pid = int(found[1])
        assert Path(f"/proc/{pid}").exists()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the shell's child")


DEAF = "trap '' HUP; echo pid-$$-; exec sleep 987654"


def leave_behind_unread(client: ClientConnection) -> None:
    """Send messages until the server reads no more, then end the connection as a client does that is killed."""
    frame, sent = b"\x82\xfe" + (60_000).to_bytes(2, "big") + bytes(4) + b"x" * 60_000, 0
    while select.select([], [client.socket], [], 1)[1]:
        sent += client.socket.send(frame[sent % len(frame) :], socket.MSG_DONTWAIT)
    client.socket.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "path", ["/ws/shell/{}", "/ws/exec/{}?" + urlencode([("command", word) for word in ("sh", "-c", DEAF)])]
)
def test_a_client_that_leaves_a_program_that_reads_nothing_is_noticed(yard: Yard, path: str):
    """The program's input is full, so that the gateway reads no further message, the last one included."""
    with yard.own_socket(path.format(yard.job_id), yard.ana) as client:
        if "shell" in path:
            client.send(f"stty raw -echo; {DEAF}\n".encode())
        output = b""
        while not (found := re.search(rb"pid-(\d+)-", output)):
            output += read_until(client, b"-")
        leave_behind_unread(client)
    wait_until(lambda: not Path(f"/proc/{int(found[1])}").exists(), what="the end of the program")


@pytest.mark.parametrize("path", ["/ws/shell/{}", "/ws/exec/{}?command=%00", "/ws/forward/{}/8888"])
@pytest.mark.parametrize(("who", "status"), [(None, 401), ("chi", 404)])
def test_ways_into_pods_of_others_are_refused(yard: Yard, path: str, who: str | None, status: int):
    with pytest.raises(InvalidStatus) as refusal:
        yard.own_socket(path.format(yard.job_id), getattr(yard, who) if who else None)
    assert refusal.value.response.status_code == status


def test_a_command_runs_in_the_pod_and_is_in_the_audit_log(yard: Yard):
    with yard.own_socket(
        f"/ws/exec/{yard.job_id}?command=sh&command=-c&command=cat;exit+4", yard.ana
    ) as socket:
        for message in (b"in", "nonsense", '{"op":"end_of_input"}', b"too late"):
            socket.send(message)
        assert socket.recv(patience(15)) == b"\x01in"
        assert json.loads(socket.recv(patience(15))) == {"op": "exit", "exit_code": 4}
    audit = yard.server.call("GET", "/api/v1/audit")[1]["results"]
    assert ("job.exec", {"rank": 0, "command": "sh -c cat;exit 4"}) in [
        (row["verb"], row["after"]) for row in audit
    ]


def test_a_command_that_no_process_can_be_given_is_refused_in_words(yard: Yard):
    with yard.own_socket(f"/ws/exec/{yard.job_id}?command=echo&command=a%00b", yard.ana) as socket:
        assert json.loads(socket.recv(patience(15)))["code"] == "invalid_pod"


def test_a_forwarded_port_that_was_not_declared_is_not_there(yard: Yard):
    with pytest.raises(InvalidStatus) as refusal:
        yard.own_socket(f"/ws/forward/{yard.job_id}/22", yard.ana)
    assert refusal.value.response.status_code == 404


def test_a_forwarded_port_is_one_connection(yard: Yard):
    with yard.own_socket(f"/ws/forward/{yard.job_id}/8888", yard.ana) as socket:
        socket.send(b"GET /away HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 302 " in b"".join(socket)  # until the job's server closes the connection


def test_a_port_without_a_listener_is_said_in_words(yard: Yard):
    with yard.own_socket(f"/ws/forward/{yard.job_id}/7777", yard.ana) as socket:
        assert json.loads(socket.recv(patience(15)))["code"] == "no_answer"


def test_a_shell_from_another_sites_page_is_refused(yard: Yard):
    with pytest.raises(InvalidStatus) as refusal:
        connect(
            f"ws://{yard.netloc}/ws/shell/{yard.job_id}",
            origin="https://evil.example",
            additional_headers={"Authorization": f"Bearer {yard.ana}"},
            proxy=None,
        )
    assert refusal.value.response.status_code == 403


def test_a_rank_that_does_not_run_is_said_in_words(yard: Yard):
    with yard.own_socket(f"/ws/shell/{yard.job_id}?rank=5", yard.ana) as socket:
        message = json.loads(socket.recv(patience(10)))
    assert (message["op"], message["code"]) == ("error", "not_running")


def test_a_shell_ends_when_its_token_is_revoked(yard: Yard):
    server = yard.server
    answer = call(server, "POST", "/api/v1/tokens", {"name": "short", "user": "ana"})
    with yard.own_socket(f"/ws/shell/{yard.job_id}", answer["token"]) as socket:
        socket.send(b"echo in\n")
        read_until(socket, b"in\r\n")
        call(server, "DELETE", f"/api/v1/tokens/{answer['id']}")
        message = socket.recv(patience(10))
        while isinstance(message, bytes):
            message = socket.recv(patience(10))
        assert json.loads(message)["code"] == "signed_out"
