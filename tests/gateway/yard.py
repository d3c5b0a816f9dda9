"""A control plane with a job that serves pages, and requests over plain sockets as a browser or program sends
them."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.servers import ControlPlane, control_plane
from tests.waiting import patience, wait_until

PASSWORD = "correct horse battery"
JOBS = Path(__file__).with_name("jobs")
Answer = tuple[int, http.client.HTTPMessage, bytes]


@dataclass(frozen=True)
class Yard:
    """A control plane with team-a, where ana is member, vic viewer and chi a stranger, and one job with four
    ports, of which 7777 has no server. `ana`, `chi`, `vic`: their tokens."""

    server: ControlPlane
    job_id: str
    ana: str
    chi: str
    vic: str

    @property
    def netloc(self) -> str:
        return urllib.parse.urlsplit(self.server.url).netloc

    def host(self, port: int = 8888, job_id: str = "") -> str:
        """Return the host name and port at which a port of the job is served."""
        return f"{job_id or self.job_id}-{port}.localhost:{self.netloc.partition(':')[2]}"

    def origin(self, port: int = 8888) -> str:
        return f"http://{self.host(port)}"

    def entrance(self, rest: str = "/", port: int = 8888) -> str:
        return f"/services/{self.job_id}/{port}{rest}"

    def get(
        self,
        path: str,
        token: str | None = None,
        method: str = "GET",
        body: bytes | None = None,
        **headers: str,
    ) -> Answer:
        """Send a request to the control plane's own host, or to the one in the header `Host`. Return status,
        headers and body. Underscores in the names of `headers` become hyphens."""
        connection = http.client.HTTPConnection(self.netloc, timeout=patience(20))
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, sent)
        response = connection.getresponse()
        try:
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def ask(
        self, path: str, token: str | None = None, method: str = "GET", body: bytes | None = None, *,
        port: int = 8888, **headers: str,
    ) -> Answer:  # fmt: skip
        """Send a request to the host of a port of the job. See `get`."""
        return self.get(path, token, method, body, **({"Host": self.host(port)} | headers))

    def visit(self, url: str, cookies: dict[str, str], **headers: str) -> tuple[str, Answer]:
        """Open a page as a browser does: follow redirects, with each host's cookies. `cookies` (host -> Cookie
        header) is updated. Return the last URL and its answer."""
        for _ in range(10):
            parts = urllib.parse.urlsplit(url)
            target = parts.path + (f"?{parts.query}" if parts.query else "")
            sent = {"Host": parts.netloc, "Accept": "text/html", **headers}
            if parts.netloc in cookies:
                sent["Cookie"] = cookies[parts.netloc]
            answer = self.get(target, **sent)
            kept = [value.partition(";")[0] for value in answer[1].get_all("Set-Cookie") or []]
            if kept:
                cookies[parts.netloc] = "; ".join([*filter(None, [cookies.get(parts.netloc)]), *kept])
            if answer[0] not in (302, 307):
                return url, answer
            url = urllib.parse.urljoin(url, answer[1]["Location"])
        raise AssertionError(f"redirected without end, last to {url}")

    def service_cookie(self, session: str, port: int = 8888) -> str:
        """Return the Cookie header with which a browser with this session may use the job's host."""
        cookies = {self.netloc: session}
        _, (status, _, _) = self.visit(f"{self.server.url}{self.entrance(port=port)}", cookies)
        assert status == 200
        return cookies[self.host(port)]

    def socket(
        self, path: str, token: str | None = None, *, port: int = 6006, **options: Any
    ) -> ClientConnection:
        """Return an open websocket to the host of a port of the job."""
        headers = options.pop("headers", {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        address = self.netloc.partition(":")[0], int(self.netloc.partition(":")[2])
        return connect(
            f"ws://{self.host(port)}{path}", additional_headers=headers, proxy=None,
            sock=socket.create_connection(address, patience(20)), open_timeout=patience(20), **options,
        )  # fmt: skip

    def own_socket(self, path: str, token: str | None, **options: Any) -> ClientConnection:
        headers = options.pop("headers", {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        return connect(
            f"ws://{self.netloc}{path}", additional_headers=headers, proxy=None, open_timeout=patience(20),
            **options,
        )  # fmt: skip

    def sign_in(self, name: str = "ana", public_url: str = "") -> str:
        """Sign in at the page under `public_url` and return the session's cookie."""
        public_url = public_url or self.server.url
        host = urllib.parse.urlsplit(public_url).netloc
        _, headers, page = self.get("/login", Host=host)
        cookie = headers["Set-Cookie"].partition(";")[0]
        token = page.decode().partition('name="csrfmiddlewaretoken" value="')[2].partition('"')[0]
        form = {"username": name, "password": PASSWORD, "csrfmiddlewaretoken": token}
        status, headers, _ = self.get(
            "/login",
            None,
            "POST",
            urllib.parse.urlencode(form).encode(),
            Cookie=cookie,
            Content_Type="application/x-www-form-urlencoded",
            Referer=public_url,
            Origin=public_url,
            Host=host,
        )
        assert status == 302
        cookies = [value.partition(";")[0] for value in headers.get_all("Set-Cookie") or []]
        return next(cookie for cookie in cookies if "yard_session=" in cookie)


@pytest.fixture(scope="package")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    state_dir = tmp_path_factory.mktemp("state")
    with control_plane(state_dir, {"TRAINYARD_ALLOWED_HOSTS": "yard.lan"}) as server:
        call(server, "POST", "/api/v1/projects", {"name": "team-a", "gpu_quota": 4})
        tokens = [
            member(server, "ana", "member"),
            member(server, "chi", None),
            member(server, "vic", "viewer"),
        ]
        body = {
            "name": "web",
            "kind": "interactive",
            "image": "python",
            "gpus": 0.5,
            "command": ["bash", "-c", 'python -c "$WS" & python -c "$PAGE" & python -c "$HTTP"'],
            "env": {"HTTP": program("web.py"), "WS": program("echo.py"), "PAGE": program("page.py")}
            | {"APP": program("app.js"), "WORKER": program("worker.js"), "OWN": server.url},
            "ports": [
                {"port": 8888, "service_type": "ingress"},
                {"port": 6006},
                {"port": 7777},
                {"port": 5555},
            ],
        }
        job = call(server, "POST", "/api/v1/projects/team-a/jobs", body)
        yard = Yard(server, job["id"], *tokens)
        try:
            wait_until(lambda: yard.ask("/", yard.ana)[0] == 200, 60, "the job's server")
            wait_until(lambda: yard.ask("/page", yard.ana, port=5555)[0] == 200, 60, "the job's pages")
            wait_until(lambda: answers_websockets(yard), 60, "the job's websocket server")
            yield yard
        finally:
            stop(server, job["id"])


def program(name: str) -> str:
    return (JOBS / name).read_text()


def stop(server: ControlPlane, job_id: str) -> None:
    """Stop the job, since jobs outlive the control plane; wait for its end."""
    call(server, "POST", f"/api/v1/jobs/{job_id}/stop", {})

    def is_stopped() -> bool:
        return bool(call(server, "GET", f"/api/v1/jobs/{job_id}")["status"]["state"] == "stopped")

    wait_until(is_stopped, 30, "the job's end")


def call(server: ControlPlane, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    status, answer = server.call(method, path, body)
    assert status < 300, (method, path, status, answer)
    return answer


def member(server: ControlPlane, name: str, role: str | None) -> str:
    """Create a user, with this role in team-a unless it is None; return a token."""
    call(server, "POST", "/api/v1/users", {"username": name, "password": PASSWORD})
    if role:
        call(server, "POST", "/api/v1/projects/team-a/members", {"user": name, "role": role})
    return str(call(server, "POST", "/api/v1/tokens", {"name": "test", "user": name})["token"])


def answers_websockets(yard: Yard) -> bool:
    try:
        with yard.socket("/", yard.ana, subprotocols=["b"]):
            return True
    except InvalidStatus:
        return False


def seen(answer: bytes) -> dict[str, Any]:
    """Return the request that the job's server got, from its answer."""
    result: dict[str, Any] = json.loads(answer)
    return result
