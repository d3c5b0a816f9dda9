"""Ports and shells of running pods, through a real server, as a member, a stranger and nobody."""

from __future__ import annotations

import http.client
import json
import re
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.servers import ControlPlane, chromium, control_plane
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
MISSING = "00000000-0000-4000-8000-000000000000"

JOBS = Path(__file__).with_name("jobs")


@dataclass(frozen=True)
class Yard:
    """A control plane with team-a, where ana is a member and chi is not, and one job with two ports."""

    server: ControlPlane
    job_id: str
    ana: str
    chi: str

    @property
    def netloc(self) -> str:
        return urllib.parse.urlsplit(self.server.url).netloc

    def get(
        self,
        path: str,
        token: str | None = None,
        method: str = "GET",
        body: bytes | None = None,
        **headers: str,
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection(self.netloc, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        try:
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def service(self, rest: str = "/", port: int = 8888) -> str:
        return f"/services/{self.job_id}/{port}{rest}"

    def socket(self, path: str, token: str | None, **options: Any) -> ClientConnection:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return connect(f"ws://{self.netloc}{path}", additional_headers=headers, proxy=None, **options)


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    state_dir = tmp_path_factory.mktemp("state")
    with control_plane(state_dir) as server:
        call(server, "POST", "/api/v1/projects", {"name": "team-a", "gpu_quota": 4})
        tokens = [member(server, "ana", "team-a"), member(server, "chi", None)]
        body = {
            "name": "web",
            "kind": "interactive",
            "image": "python",
            "gpus": 0.5,
            "command": ["bash", "-c", 'python -c "$WS" & python -c "$HTTP"'],
            "env": {"HTTP": program("web.py"), "WS": program("echo.py"), "APP": program("app.js")},
            "ports": [{"port": 8888, "service_type": "ingress"}, {"port": 6006}, {"port": 7777}],
        }
        job = call(server, "POST", "/api/v1/projects/team-a/jobs", body)
        yard = Yard(server, job["id"], *tokens)
        try:
            wait_until(lambda: yard.get(yard.service(), yard.ana)[0] == 200, 60, "the job's server")
            wait_until(lambda: answers_websockets(yard), 60, "the job's websocket server")
            yield yard
        finally:
            stop(server, job["id"])


def program(name: str) -> str:
    return (JOBS / name).read_text()


def stop(server: ControlPlane, job_id: str) -> None:
    """Jobs outlive the control plane, so this one is ended before it goes."""
    call(server, "POST", f"/api/v1/jobs/{job_id}/stop", {})

    def is_stopped() -> bool:
        return bool(call(server, "GET", f"/api/v1/jobs/{job_id}")["status"]["state"] == "stopped")

    wait_until(is_stopped, 30, "the job's end")


def call(server: ControlPlane, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    status, answer = server.call(method, path, body)
    assert status < 300, (method, path, status, answer)
    return answer


def member(server: ControlPlane, name: str, project: str | None) -> str:
    """A token of a new user, who is a member of the project if one is given."""
    call(server, "POST", "/api/v1/users", {"username": name, "password": "correct horse battery"})
    if project:
        call(server, "POST", f"/api/v1/projects/{project}/members", {"user": name, "role": "member"})
    return str(call(server, "POST", "/api/v1/tokens", {"name": "test", "user": name})["token"])


def answers_websockets(yard: Yard) -> bool:
    try:
        with yard.socket(yard.service(port=6006), yard.ana, subprotocols=["b"]):
            return True
    except InvalidStatus:
        return False


def seen(answer: bytes) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(answer)
    return result


# HTTP


def test_a_member_reaches_the_port_and_the_job_sees_no_credential(yard: Yard):
    status, headers, body = yard.get(yard.service("/a%2Fb?x=1"), yard.ana, Cookie="sessionid=1", X_Mine="yes")
    assert status == 200
    request = seen(body)
    assert request["path"] == "/a%2Fb?x=1"
    assert request["headers"]["x-mine"] == "yes"
    assert request["headers"]["x-forwarded-prefix"] == yard.service("")
    assert not {"cookie", "authorization"} & set(request["headers"])
    assert yard.ana not in body.decode()
    assert headers.get_all("Set-Cookie") is None
    assert len(headers.get_all("Date")) == 1
    assert "sandbox allow-scripts" in headers["Content-Security-Policy"]


@pytest.mark.parametrize("size", [0, 10, 3_000_000])
def test_bodies_pass_whole(yard: Yard, size: int):
    body = b"z" * size
    status, _, answer = yard.get(yard.service("/up"), yard.ana, "POST", body)
    assert (status, len(seen(answer)["body"])) == (200, size)


def test_streams_and_redirects_pass(yard: Yard):
    assert yard.get(yard.service("/chunks"), yard.ana)[2] == b"line0line1line2"
    status, headers, _ = yard.get(yard.service("/away"), yard.ana)
    assert (status, headers["Location"]) == (302, yard.service("/there"))
    assert yard.get(yard.service("/head"), yard.ana, "HEAD")[0] in (200, 501)


@pytest.mark.parametrize(
    ("path", "who", "expected"),
    [
        ("/services/{id}/8888/", None, 401),
        ("/services/{id}/8888/", "wrong", 401),
        ("/services/{id}/8888/", "chi", 404),
        ("/services/{id}/9999/", "ana", 404),
        ("/services/{id}/7777/", "ana", 503),
        (f"/services/{MISSING}/8888/", "ana", 404),
        ("/services/nonsense/8888/", "ana", 404),
        ("/services/", "ana", 404),
    ],
)
def test_others_are_refused(yard: Yard, path: str, who: str | None, expected: int):
    token = getattr(yard, who) if who in ("ana", "chi") else who
    status, headers, body = yard.get(path.replace("{id}", yard.job_id), token)
    assert status == expected
    assert json.loads(body)["status"] == expected
    assert (status != 503) or headers["Retry-After"]


def test_a_browser_is_shown_a_page_that_asks_again(yard: Yard):
    status, headers, body = yard.get(yard.service(port=7777), yard.ana, Accept="text/html,*/*;q=0.8")
    assert (status, headers["Refresh"], headers["Cache-Control"]) == (503, "2", "no-store")
    assert "Port 7777 of the job does not answer" in body.decode()
    assert f'href="/jobs/{yard.job_id}"' in body.decode()
    status, headers, body = yard.get(yard.service(port=9999), yard.ana, Accept="text/html")
    assert (status, headers["Refresh"]) == (404, None)
    assert "<h1>Not Found</h1>" in body.decode()


def test_a_job_that_is_over_is_not_asked_for_again(yard: Yard):
    body = {"name": "over", "kind": "interactive", "command": ["sleep", "60"], "ports": [{"port": 8888}]}
    job = call(yard.server, "POST", "/api/v1/projects/team-a/jobs", body)
    stop(yard.server, job["id"])
    for accept in ("text/html", "*/*"):
        status, headers, answer = yard.get(f"/services/{job['id']}/8888/", yard.ana, Accept=accept)
        assert (status, headers["Refresh"], headers["Retry-After"]) == (503, None, None)
        assert b"its state is stopped" in answer


def sign_in(yard: Yard) -> str:
    """ana's session cookie, through the sign-in page."""
    _, headers, page = yard.get("/login")
    cookie = headers["Set-Cookie"].partition(";")[0]
    token = page.decode().partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
    form = {"username": "ana", "password": "correct horse battery", "csrfmiddlewaretoken": token}
    status, headers, _ = yard.get(
        "/login",
        None,
        "POST",
        urllib.parse.urlencode(form).encode(),
        Cookie=cookie,
        Content_Type="application/x-www-form-urlencoded",
        Referer=yard.server.url,
        Origin=yard.server.url,
    )
    assert status == 302
    cookies = [value.partition(";")[0] for value in headers.get_all("Set-Cookie") or []]
    return next(cookie for cookie in cookies if cookie.startswith("sessionid="))


def test_a_browser_is_given_a_ticket_that_opens_this_port_alone(yard: Yard):
    session = sign_in(yard)
    status, headers, _ = yard.get(yard.service("/a?b=1"), Cookie=session, Accept="text/html")
    assert status == 302
    ticketed = headers["Location"]
    assert ticketed.startswith(yard.service("/~"))
    assert ticketed.endswith("/a?b=1")
    assert session.partition("=")[2] not in ticketed
    status, headers, body = yard.get(ticketed, Accept="text/html")
    assert (status, seen(body)["path"]) == (200, "/a?b=1")
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert yard.get(ticketed.replace("/8888/", "/6006/"))[0] == 401
    assert yard.get(ticketed[:-20].replace("/~", "/~x"))[0] == 401
    preflight = yard.get(ticketed, None, "OPTIONS", Access_Control_Request_Method="PUT", Origin="null")
    assert preflight[0] == 204
    yard_ticket = ticketed.removesuffix("/a?b=1")
    assert yard.get(yard_ticket)[1]["Location"] == f"{yard_ticket}/"


def test_a_session_is_not_for_other_sites_nor_for_scripts(yard: Yard):
    session = sign_in(yard)
    path = yard.service("/a")
    assert yard.get(path, Cookie=session)[0] == 200
    assert yard.get(path, None, "POST", b"", Cookie=session, Origin="https://evil.example")[0] == 403
    assert yard.get(path, Cookie=session, Sec_Fetch_Dest="script")[0] == 403
    status, headers, _ = yard.get(path, Accept="text/html")
    assert (status, headers["Location"]) == (302, f"/login?next={path}")


@pytest.mark.browser
def test_a_jobs_page_works_and_cannot_act_as_the_user(yard: Yard):
    """In a real browser, signed in: its own script and data load, ours and our cookies are out of its reach."""
    browser_path = chromium()
    if browser_path is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    name, _, value = sign_in(yard).partition("=")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        context = browser.new_context()
        context.add_cookies([{"name": name, "value": value, "url": yard.server.url, "sameSite": "Lax"}])
        page = context.new_page()
        page.goto(yard.server.url + yard.service("/page"))
        page.wait_for_function("document.title != 'loading'")
        title, address = page.title(), page.url
        browser.close()
    assert title == "/data/x refused refused refused null"
    assert "/~" in address


# Websockets


def test_websockets_pass_both_ways(yard: Yard):
    with yard.socket(yard.service("/live?x=1", 6006), yard.ana, subprotocols=["a", "b"]) as socket:
        assert socket.subprotocol == "b"
        assert socket.recv(10) == "path /live?x=1"
        for message in ("text", b"\0\xff", "x" * 200_000):
            socket.send(message)
            assert socket.recv(10) == message
        socket.send("bye")
        with pytest.raises(Exception, match="4321"):
            socket.recv(10)


@pytest.mark.parametrize(
    ("who", "port", "status"), [(None, 6006, 401), ("chi", 6006, 404), ("ana", 9999, 404), ("ana", 7777, 503)]
)
def test_websockets_of_others_are_refused(yard: Yard, who: str | None, port: int, status: int):
    with pytest.raises(InvalidStatus) as refusal:
        yard.socket(yard.service("/", port), getattr(yard, who) if who else None)
    assert refusal.value.response.status_code == status


# The shell


def read_until(socket: ClientConnection, wanted: bytes) -> bytes:
    output = b""
    while wanted not in output:
        message = socket.recv(15)
        assert isinstance(message, bytes), message
        output += message
    return output


def test_a_shell_runs_in_the_pod_and_tells_its_exit_code(yard: Yard):
    with yard.socket(f"/ws/shell/{yard.job_id}?rank=0&columns=100&rows=30", yard.ana) as socket:
        socket.send(b"stty size; echo $TRAINYARD_JOB/$TRAINYARD_PROJECT\n")
        assert b"30 100" in read_until(socket, b"web/team-a\r\n")
        socket.send(json.dumps({"op": "resize", "columns": 60, "rows": 20}))
        for nonsense in ("[", "{}", '{"op":"resize","columns":"x"}', "7"):
            socket.send(nonsense)
        socket.send(b"stty size\n")
        read_until(socket, b"20 60")
        socket.send(b"exit 7\n")
        message = socket.recv(15)
        while isinstance(message, bytes):
            message = socket.recv(15)
        assert json.loads(message) == {"op": "exit", "exit_code": 7}
    audit = yard.server.call("GET", "/api/v1/audit")[1]["results"]
    assert any((row["verb"], row["actor"]) == ("job.shell", "ana") for row in audit)


def test_a_long_paste_arrives_whole(yard: Yard):
    with yard.socket(f"/ws/shell/{yard.job_id}", yard.ana) as socket:
        socket.send(b"stty -echo -icanon; echo ready; head -c 300000 | wc -c\n")
        read_until(socket, b"ready\r\n")
        socket.send(b"x" * 300_000)
        read_until(socket, b"300000")


def test_nothing_of_a_shell_is_left_when_the_client_leaves(yard: Yard):
    with yard.socket(f"/ws/shell/{yard.job_id}", yard.ana) as socket:
        socket.send(b"stty -echo; sleep 987654 & echo pid-$!-\n")
        output = b""
        while not (found := re.search(rb"pid-(\d+)-", output)):
            output += read_until(socket, b"\r\n")
        pid = int(found[1])
        assert Path(f"/proc/{pid}").exists()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), what="the end of the shell's child")


@pytest.mark.parametrize("path", ["/ws/shell/{}", "/ws/exec/{}?command=true", "/ws/forward/{}/8888"])
@pytest.mark.parametrize(("who", "status"), [(None, 401), ("chi", 404)])
def test_ways_into_pods_of_others_are_refused(yard: Yard, path: str, who: str | None, status: int):
    with pytest.raises(InvalidStatus) as refusal:
        yard.socket(path.format(yard.job_id), getattr(yard, who) if who else None)
    assert refusal.value.response.status_code == status


def test_a_command_runs_in_the_pod_and_is_in_the_audit_log(yard: Yard):
    with yard.socket(f"/ws/exec/{yard.job_id}?command=sh&command=-c&command=cat;exit+4", yard.ana) as socket:
        for message in (b"in", "nonsense", '{"op":"end_of_input"}', b"too late"):
            socket.send(message)
        assert socket.recv(15) == b"\x01in"
        assert json.loads(socket.recv(15)) == {"op": "exit", "exit_code": 4}
    audit = yard.server.call("GET", "/api/v1/audit")[1]["results"]
    assert ("job.exec", {"rank": 0, "command": "sh -c cat;exit 4"}) in [
        (row["verb"], row["after"]) for row in audit
    ]


def test_a_forwarded_port_that_was_not_declared_is_not_there(yard: Yard):
    with pytest.raises(InvalidStatus) as refusal:
        yard.socket(f"/ws/forward/{yard.job_id}/22", yard.ana)
    assert refusal.value.response.status_code == 404


def test_a_forwarded_port_is_one_connection(yard: Yard):
    with yard.socket(f"/ws/forward/{yard.job_id}/8888", yard.ana) as socket:
        socket.send(b"GET /away HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b" 302 " in b"".join(socket)  # until the job's server closes the connection


def test_a_port_without_a_listener_is_said_in_words(yard: Yard):
    with yard.socket(f"/ws/forward/{yard.job_id}/7777", yard.ana) as socket:
        assert json.loads(socket.recv(15))["code"] == "no_answer"


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
    with yard.socket(f"/ws/shell/{yard.job_id}?rank=5", yard.ana) as socket:
        message = json.loads(socket.recv(10))
    assert (message["op"], message["code"]) == ("error", "not_running")


def test_a_shell_ends_when_its_token_is_revoked(yard: Yard):
    server = yard.server
    answer = call(server, "POST", "/api/v1/tokens", {"name": "short", "user": "ana"})
    with yard.socket(f"/ws/shell/{yard.job_id}", answer["token"]) as socket:
        socket.send(b"echo in\n")
        read_until(socket, b"in\r\n")
        call(server, "DELETE", f"/api/v1/tokens/{answer['id']}")
        message = socket.recv(10)
        while isinstance(message, bytes):
            message = socket.recv(10)
        assert json.loads(message)["code"] == "signed_out"
