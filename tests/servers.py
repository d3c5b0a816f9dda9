"""Real servers for tests and measurements, each on a free port and in a directory of its own: PostgreSQL, Redis,
the control plane."""

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from controlplane.supervisor.programs import redis_server
from tests import migrated, stuck
from tests.waiting import patience, wait_until

CHECKOUT = Path(__file__).resolve().parent.parent
# Below those that the kernel gives to connections and to servers that ask for any port.
PORTS = range(20_000, 30_000)
# By UDP, which no server of ours uses.
_claims: list[socket.socket] = []
POSTGRES_HOMES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql@*/bin")
FORGETFUL = (
    "-c synchronous_commit=off -c full_page_writes=off -c wal_level=minimal -c max_wal_senders=0 -c jit=off"
)
PROGRAM_MARKS = {
    "redis": "valkey-server",
    "web": "supervisor.web",
    "worker": "loopworker",
    "tasks": "manage.py worker",
}
# The first draws without the windows and menus of the others: a new page takes a third of their CPU time.
CHROMIUMS = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)


def free_port() -> int:
    """Return a loopback port on which no program listens. No other call in any process returns it while this
    process lives, since a server may bind it seconds later."""
    while True:
        port, claim = secrets.choice(PORTS), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
        else:
            _claims.append(claim)
            return port


def chromium() -> str | None:
    """Return the path of this machine's Chromium; None if there is none."""
    return next((path for name in CHROMIUMS if (path := shutil.which(name))), None)


def postgres_home() -> Path | None:
    """Return the directory of the programs of the newest PostgreSQL server; None if there is none."""
    homes = [home for pattern in POSTGRES_HOMES for home in Path("/").glob(pattern.lstrip("/"))]
    newest = sorted(homes, key=lambda home: float(home.parent.name) if home.parent.name.isdecimal() else 0.0)
    found = [home for home in newest if (home / "initdb").exists()]
    beside = shutil.which("initdb")
    return found[-1] if found else Path(beside).parent if beside else None


@contextmanager
def postgres() -> Iterator[str]:
    """Context manager with a PostgreSQL server, whose data is deleted at the end; yields its DATABASE_URL. Raises
    FileNotFoundError if none is installed."""
    home = postgres_home()
    if home is None:
        raise FileNotFoundError("no PostgreSQL server on this machine: apt-get install postgresql")
    identity = _postgres_identity()
    with tempfile.TemporaryDirectory(prefix="trainyard-postgres-", ignore_cleanup_errors=True) as directory:
        if identity:
            shutil.chown(directory, identity["user"])
        port, log_path, data = free_port(), Path(directory) / "log", f"{directory}/data"
        make = [f"{home}/initdb", *f"-D {data} -U trainyard -A trust -E UTF8 --locale=C -N".split()]
        subprocess.run(make, cwd=directory, check=True, stdout=subprocess.DEVNULL, **identity)
        words = f"-D {data} -k {directory} -h 127.0.0.1 -p {port} -F {FORGETFUL} -c max_connections=100"
        with log_path.open("wb") as log:
            command = [f"{home}/postgres", *words.split()]
            server = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, **identity)
        try:
            wait_until(lambda: b"ready to accept" in log_path.read_bytes(), 30, "PostgreSQL's start")
            yield f"postgres://trainyard@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # its fast shutdown: open sessions are ended
            server.wait(patience(20))


@contextmanager
def redis() -> Iterator[str]:
    """Context manager with a Redis server; yields its URL."""
    program = redis_server()
    with tempfile.TemporaryDirectory(prefix="trainyard-redis-") as directory:
        port = free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: _accepts(port), timeout=10, what="Redis's start")
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()
            server.wait(patience(10))


def words_of(process: psutil.Process) -> str:
    """Return the process's command line; "" if it has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def descendants(pid: int) -> list[psutil.Process]:
    """Return all processes below this one; [] if it has ended."""
    try:
        below: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return below


@dataclass
class ControlPlane:
    """A running control plane, as `make up` starts it, and an admin's token. `process`: its supervisor."""

    url: str
    token: str
    state_dir: Path
    process: subprocess.Popen[bytes]
    environment: dict[str, str] = field(repr=False)

    def children(self) -> dict[str, psutil.Process]:
        """Return the supervisor's processes by name: redis, web, worker, tasks."""
        named: dict[str, psutil.Process] = {}
        for child in psutil.Process(self.process.pid).children():
            words = words_of(child)
            named |= {name: child for name, mark in PROGRAM_MARKS.items() if mark in words}
        return named

    def call(self, method: str, path: str, body: Any = None, timeout: float = 20) -> tuple[int, Any]:
        """Send a REST request as the admin; return the status and the decoded answer, also for an HTTP error.
        Raises OSError if there is no connection. `timeout`: seconds."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=patience(timeout)) as answer:
                return answer.status, _decode(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decode(error.read())

    def is_ready(self) -> bool:
        """Return whether /readyz answers 200."""
        try:
            return self.call("GET", "/readyz", timeout=5)[0] == 200
        except OSError:
            return False

    def stop_jobs(self) -> None:
        """Stop all unfinished jobs and wait for their ends; their pods would outlive the control plane."""
        unfinished = (
            "/api/v1/jobs?limit=500&fields=id&state=queued,starting,running,scaling,suspended,stopping"
        )
        for job in self.call("GET", unfinished)[1]["results"]:
            self.call("POST", f"/api/v1/jobs/{job['id']}/stop")
        wait_until(lambda: not self.call("GET", unfinished)[1]["results"], timeout=60, what="the jobs' ends")

    def stop(self, number: int = signal.SIGINT, seconds: float = 15) -> int:
        """Send the supervisor the signal `number`, and return its exit code. If it has not ended after `seconds`, end
        it, and raise AssertionError with what its processes were doing."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        limit = patience(seconds)
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            why = self._explain()
            self.process.wait(patience(10))
            raise AssertionError(
                f"not ended {limit:.1f} s after {signal.Signals(number).name}:\n{why}"
            ) from None

    def _explain(self) -> str:
        logs = [self.state_dir / "console.log", *sorted((self.state_dir / "control").glob("*.log"))]
        # The supervisor first: it would start again what ends before it.
        supervisor = psutil.Process(self.process.pid)
        return stuck.explain([supervisor, *descendants(supervisor.pid)], logs)


@contextmanager
def control_plane(
    state_dir: Path,
    variables: Mapping[str, str] | None = None,
    is_up: Callable[[ControlPlane], bool] = ControlPlane.is_ready,
) -> Iterator[ControlPlane]:
    """Context manager with a control plane on a free port, as `make up` starts it; stops it at the end. Begins
    once it is ready, or `is_up` returns True. `variables`: environment variables."""
    port, token = free_port(), secrets.token_urlsafe(32)
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("TRAINYARD_", "DATABASE_"))
    }
    environment |= {"TRAINYARD_PORT": str(port), "TRAINYARD_STATE_DIR": str(state_dir)}
    environment |= {"TRAINYARD_BOOTSTRAP_TOKEN": token, **stuck.STACKS, **(variables or {})}
    state_dir.mkdir(parents=True, exist_ok=True)
    if "DATABASE_URL" not in environment:
        migrated.lay_out(state_dir / "db.sqlite3")
    migrated.lay_out_static(state_dir)
    with (state_dir / "console.log").open("ab") as console:
        command = [sys.executable, "-m", "controlplane.supervisor"]
        process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=console, stderr=console)
    running = ControlPlane(f"http://127.0.0.1:{port}", token, state_dir, process, environment)
    try:
        wait_until(
            lambda: is_up(running) or process.poll() is not None,
            timeout=120,
            what="the control plane's start",
        )
        assert process.poll() is None, (state_dir / "console.log").read_text()
        yield running
    finally:
        running.stop(signal.SIGTERM)


def _decode(body: bytes) -> Any:
    return json.loads(body) if body[:1] in (b"{", b"[") else body.decode(errors="replace")


def _postgres_identity() -> dict[str, Any]:
    """Return arguments of Popen with which PostgreSQL does not run as root, which it refuses: the user of
    Debian's package; {} for another user than root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_name, "group": user.pw_gid, "extra_groups": []}


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=patience(1)):
            return True
    except OSError:
        return False
