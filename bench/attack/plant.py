"""The instance under attack: two projects, with the attacker in one and the measured user in the other."""

import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import orjson
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from bench.attack.attacks import Target
from tests import servers
from tests.waiting import wait_until

PASSWORD = "correct horse battery"
LOST_MS = 10_000.0  # what a request counts that got no answer
PACE_SECONDS = 0.1
SPEC_BYTES = 60_000
SERVICE = "python -m http.server --bind 127.0.0.1 $PORT_8888"
STUCK = """python -c "
import os, socket, time
listening = socket.create_server(('127.0.0.1', int(os.environ['PORT_8888'])), backlog=0)
time.sleep(3600)" """
CHATTY = "while :; do seq 1 10; sleep 0.1; done"


@dataclass
class Plant:
    """A running instance with the attack's target. `token`, `cookie`, `service`: the other user's API token,
    browser cookies, and the URL of a job's port."""

    running: servers.ControlPlane
    target: Target
    token: str
    cookie: str
    service: str

    @property
    def port(self) -> int:
        return self.target.port


@dataclass
class Samples:
    """Milliseconds of the other user's requests, by kind of request; LOST_MS for each that got no good answer."""

    by_name: dict[str, list[float]] = field(default_factory=dict)

    @property
    def all(self) -> list[float]:
        return [sample for kept in self.by_name.values() for sample in kept]


@contextmanager
def plant(directory: Path, clones: int) -> Iterator[Plant]:
    """Context manager: start an instance with users, jobs and `clones` queued jobs with large specs; stop the
    jobs at the end."""
    with servers.control_plane(directory) as running:
        tokens = [_member(running, name, project) for name, project in (("eve", "red"), ("olga", "blue"))]
        try:
            jobs = {name: _job(running, "red", name, command) for name, command in
                    {"stuck": STUCK, "chatty": CHATTY}.items()}  # fmt: skip
            jobs["well"] = _job(running, "blue", "well", SERVICE)
            bodies = [_clone_body(number) for number in range(clones)]
            for start in range(0, clones, 10):
                batch = {"jobs": bodies[start : start + 10]}
                _call(running, "POST", "/api/v1/projects/red/jobs/batch", batch)
            port = urlsplit(running.url).port or 0
            (eve, csrf), (olga, _csrf) = _sign_in(port, "eve"), _sign_in(port, "olga")
            addresses = {name: _service(running, jobs[name]) for name in ("stuck", "well")}
            target = Target(port, tokens[0], eve, csrf, addresses["stuck"], jobs["chatty"])
            made = Plant(running, target, tokens[1], olga, addresses["well"])
            wait_until(
                lambda: _get(made, *_requests(made)["service"])[0] == 200, 60, "the other user's service"
            )
            yield made
        finally:
            running.stop_jobs()


def attack(made: Plant, name: str, seconds: float) -> "subprocess.Popen[bytes]":
    """Start the attack `name` for `seconds` on an instance, wait until it has begun, and return its process. It
    runs at a lower priority than the instance, because real attackers use machines of their own."""
    arguments = [name, orjson.dumps(asdict(made.target)).decode(), str(seconds)]
    command = ["nice", "-n", "10", sys.executable, "-m", "bench.attack.attacks", *arguments]
    attacking = subprocess.Popen(command, stdout=subprocess.PIPE)
    if attacking.stdout:
        attacking.stdout.readline()
    return attacking


def measure(made: Plant, seconds: float) -> Samples:
    """Return the other user's response times on an instance over `seconds`: each kind of request ten times a
    second, on new connections."""
    samples, end = Samples(), time.monotonic() + seconds

    def client(name: str, path: str, headers: dict[str, str]) -> None:
        kept = samples.by_name.setdefault(name, [])
        while time.monotonic() < end:
            began = time.monotonic()
            status, milliseconds = _get(made, path, headers)
            kept.append(milliseconds if status == 200 else LOST_MS)
            time.sleep(max(0.0, PACE_SECONDS - (time.monotonic() - began)))

    def feed() -> None:
        kept = samples.by_name.setdefault("feed", [])
        while time.monotonic() < end:
            kept.append(_first_state(made))
            time.sleep(PACE_SECONDS)

    threads = [
        threading.Thread(target=client, args=(name, *request)) for name, request in _requests(made).items()
    ]
    threads.append(threading.Thread(target=feed))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return samples


def _requests(made: Plant) -> dict[str, tuple[str, dict[str, str]]]:
    bearer = {"Authorization": f"Bearer {made.token}"}
    service = urlsplit(made.service)
    return {
        "jobs": ("/api/v1/jobs", bearer),
        "page": ("/jobs", {"Cookie": made.cookie}),
        "healthz": ("/healthz", {}),
        "service": (service.path or "/", bearer | {"Host": service.netloc}),
    }


def _get(made: Plant, path: str, headers: dict[str, str]) -> tuple[int, float]:
    began = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=LOST_MS / 1000)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        response.read()
        return response.status, (time.perf_counter() - began) * 1000
    except (OSError, http.client.HTTPException):
        return 0, LOST_MS
    finally:
        connection.close()


def _first_state(made: Plant) -> float:
    """Return the milliseconds from opening the other user's live feed to the first state of a topic; LOST_MS if
    there is none."""
    began = time.perf_counter()
    headers = {"Authorization": f"Bearer {made.token}"}
    try:
        with connect(f"ws://127.0.0.1:{made.port}/ws/live", additional_headers=headers, proxy=None) as socket:
            socket.send('{"op": "subscribe", "topic": "project:blue"}')
            socket.recv(LOST_MS / 1000)
    except (OSError, TimeoutError, WebSocketException):
        return LOST_MS
    return (time.perf_counter() - began) * 1000


def _member(running: servers.ControlPlane, name: str, project: str) -> str:
    _call(running, "POST", "/api/v1/users", {"username": name, "password": PASSWORD})
    _call(running, "POST", "/api/v1/projects", {"name": project, "gpu_quota": 4})
    _call(running, "POST", f"/api/v1/projects/{project}/members", {"user": name, "role": "member"})
    token: str = _call(running, "POST", "/api/v1/tokens", {"name": "bench", "user": name})["token"]
    return token


def _job(running: servers.ControlPlane, project: str, name: str, command: str) -> str:
    body = {"name": name, "kind": "interactive", "image": "python", "gpus": 0, "ports": [{"port": 8888}]}
    body["command"] = ["bash", "-c", command]
    job: str = _call(running, "POST", f"/api/v1/projects/{project}/jobs", body)["id"]
    return job


def _clone_body(number: int) -> dict[str, Any]:
    env = {"A": "x" * (SPEC_BYTES // 2), "B": "y" * (SPEC_BYTES // 2)}
    return {"name": f"clone-{number}", "kind": "train", "gpus": 1, "node_pool": "nowhere", "env": env,
            "command": ["true"]}  # fmt: skip


def _service(running: servers.ControlPlane, job: str) -> str:
    """Return the URL of a running job's port."""

    def address() -> str:
        urls = _call(running, "GET", f"/api/v1/jobs/{job}")["status"]["service_urls"]
        first = urls[0] if urls else ""
        return str(first.get("url") if isinstance(first, dict) else first)

    return wait_until(address, 60, "the service's address")


def _sign_in(port: int, name: str) -> tuple[str, str]:
    """Return the cookies of a signed-in browser, and its CSRF token. Raises RuntimeError if the sign-in fails."""
    cookies: dict[str, str] = {}

    def send(method: str, body: str | None, headers: dict[str, str]) -> str:
        if cookies:
            headers["Cookie"] = "; ".join(f"{key}={value}" for key, value in cookies.items())
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request(method, "/login", body, headers)
            response = connection.getresponse()
            for line in response.headers.get_all("set-cookie") or ():
                key, _, value = line.partition(";")[0].partition("=")
                cookies[key] = value
            return response.read().decode()

    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', send("GET", None, {}))
    form = {"username": name, "password": PASSWORD, "csrfmiddlewaretoken": token[1] if token else ""}
    send("POST", urlencode(form), {"Content-Type": "application/x-www-form-urlencoded"})
    if not any("session" in name for name in cookies):
        raise RuntimeError(f"{name} could not sign in")
    return "; ".join(f"{key}={value}" for key, value in cookies.items()), next(
        value for name, value in cookies.items() if "csrf" in name
    )


def _call(running: servers.ControlPlane, method: str, path: str, body: Any = None) -> Any:
    status, answer = running.call(method, path, body)
    if status >= 300:
        raise RuntimeError(f"{method} {path} was refused: {status} {answer}")
    return answer
