"""`make up` for real: Redis, web server, the two workers and a pod, and what happens when each is killed."""

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests import servers
from tests.servers import CHECKOUT, ControlPlane, control_plane
from tests.waiting import patience, wait_until

NAMES = ["redis", "web", "worker", "tasks"]
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:%d"}}]
users: [{name: u, user: {token: t}}]
"""
# Packages with extension modules: PostgreSQL's driver, and those of an HTTP client, a template engine and YAML, which
# REST framework and drf-spectacular import.
UNUSED = ("psycopg_binary", "charset_normalizer", "markupsafe", "yaml")
FOREVER = ["/bin/sh", "-c", "echo pid $$; while :; do sleep 0.2; done"]


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("up")
    directory.chmod(0o755)  # as an earlier version left it
    return directory


@pytest.fixture(scope="module")
def running(state_dir: Path) -> Iterator[ControlPlane]:
    """One control plane for the tests that leave it as they found it; it ends in order."""
    with control_plane(state_dir) as started:
        create_project(started)
        yield started
        children = started.children().values()
        began = time.monotonic()
        assert started.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < patience(10)
        assert not any(child.is_running() for child in children)


@pytest.fixture(scope="module")
def job(running: ControlPlane) -> Iterator["RunningJob"]:
    started = submit(running, "steady")
    yield started
    started.end(running)


class RunningJob:
    """A job whose only pod is the process that it printed."""

    def __init__(self, job_id: str, process: psutil.Process) -> None:
        self.id = job_id
        self.process = process

    def is_untouched(self, running: ControlPlane) -> bool:
        """Still the first attempt, still the same process."""
        status = running.call("GET", f"/api/v1/jobs/{self.id}")[1]["status"]
        return status["state"] == "running" and status["attempt"] == 1 and self.process.is_running()

    def end(self, running: ControlPlane) -> None:
        assert running.call("POST", f"/api/v1/jobs/{self.id}/stop")[0] in {200, 202}
        wait_until(lambda: not self.process.is_running(), timeout=30, what="the pod's end")


def create_project(running: ControlPlane) -> None:
    status, answer = running.call("POST", "/api/v1/projects", {"name": "team-a", "gpu_quota": 4})
    assert status == 201, answer


def submit(running: ControlPlane, name: str) -> RunningJob:
    body = {"name": name, "kind": "train", "gpus": 1, "command": FOREVER}
    status, answer = running.call("POST", "/api/v1/projects/team-a/jobs", body)
    assert status == 201, answer
    first = wait_until(lambda: first_line(running, answer["id"]), timeout=60, what="the pod's first line")
    job = RunningJob(answer["id"], psutil.Process(int(first.removeprefix("pid "))))
    wait_until(lambda: job.is_untouched(running), timeout=60, what="the job to be shown running")
    return job


def first_line(running: ControlPlane, job_id: str) -> str | None:
    status, page = running.call("GET", f"/api/v1/jobs/{job_id}/logs")
    return page["lines"][0]["text"] if status == 200 and page["lines"] else None


def test_other_users_of_the_machine_read_nothing_of_it(running: ControlPlane, job: RunningJob) -> None:
    found: dict[Path, os.stat_result] = {}
    for path in [running.state_dir, *running.state_dir.rglob("*")]:
        with suppress(FileNotFoundError):  # removed since it was listed
            found[path] = path.lstat()
    kept = [path for path, facts in found.items() if not stat.S_ISLNK(facts.st_mode)]
    assert {str(path) for path in kept if stat.S_IMODE(found[path].st_mode) & 0o077} == set()
    assert {"db.sqlite3-wal", "redis.sock", "web.log", "1-0.log"} <= {path.name for path in kept}


def test_it_runs_its_four_processes(running: ControlPlane) -> None:
    assert sorted(running.children()) == sorted(NAMES)


def test_its_web_server_loads_nothing_that_it_does_not_use(running: ControlPlane) -> None:
    loaded = Path(f"/proc/{running.children()['web'].pid}/maps").read_text()
    assert "orjson" in loaded  # that of extension modules is seen
    assert [name for name in UNUSED if f"/{name}/" in loaded] == []


@pytest.mark.parametrize("name", ["redis", "worker"])
def test_a_killed_process_comes_back_and_the_job_does_not_notice(
    running: ControlPlane, job: RunningJob, name: str
) -> None:
    killed = running.children()[name]
    killed.kill()
    expect_its_return(running, job, name, killed)


def test_a_caller_waits_while_the_killed_web_server_starts_again(
    running: ControlPlane, job: RunningJob
) -> None:
    killed = running.children()["web"]
    killed.kill()
    assert running.call("GET", "/healthz", timeout=60)[0] == 200
    expect_its_return(running, job, "web", killed)


def expect_its_return(running: ControlPlane, job: RunningJob, name: str, killed: psutil.Process) -> None:
    wait_until(lambda: running.children().get(name, killed) != killed, what=f"{name}'s return")
    wait_until(running.is_ready, timeout=60, what="readiness")
    assert job.is_untouched(running)


def test_all_processes_killed_at_once_come_back(running: ControlPlane, job: RunningJob) -> None:
    killed = running.children()
    for process in killed.values():
        process.kill()
    wait_until(
        lambda: (
            set(running.children()) == set(NAMES)
            and not set(killed.values()) & set(running.children().values())
        ),
        what="all four",
    )
    wait_until(running.is_ready, timeout=60, what="readiness")
    assert job.is_untouched(running)


def test_a_long_command_whose_worker_is_killed_is_carried_out_by_the_next(
    running: ControlPlane, job: RunningJob
) -> None:
    """A check of a cluster that accepts connections and answers nothing; the job does not notice."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(patience(60))
        body = {"name": "silent", "engine": "kubernetes"}
        body["kubeconfig"] = KUBECONFIG % silent.getsockname()[1]
        assert running.call("POST", "/api/v1/clusters", body)[0] == 201
        with silent.accept()[0] as first:
            killed = running.children()["tasks"]
            assert owner_of(first) == killed.pid
            killed.kill()
            with silent.accept()[0] as second:
                assert owner_of(second) == running.children()["tasks"].pid != killed.pid
                assert running.call("DELETE", "/api/v1/clusters/silent")[0] == 204
    expect_its_return(running, job, "tasks", killed)


def owner_of(connection: socket.socket) -> int:
    """The process at the other end."""
    port = connection.getpeername()[1]
    found = (one for one in psutil.net_connections("tcp4") if one.laddr and one.laddr.port == port)
    return next(one.pid for one in found if one.pid is not None)


def test_submit_answers_and_the_job_runs_while_redis_is_frozen(running: ControlPlane) -> None:
    redis = running.children()["redis"]
    redis.suspend()
    try:
        began = time.monotonic()
        started = submit(running, "frozen-redis")
        assert time.monotonic() - began < patience(
            20
        )  # without a wake-up a quiet loop looks every five seconds
        started.end(running)
    finally:
        redis.resume()
    wait_until(running.is_ready, timeout=60, what="readiness")


def test_a_second_one_on_the_same_directory_is_refused(running: ControlPlane) -> None:
    environment = {**running.environment, "TRAINYARD_PORT": str(servers.free_port())}
    second = run_supervisor(environment)
    assert second.returncode == 1
    assert f"already runs on {running.state_dir}" in second.stderr


def test_a_taken_port_is_refused(running: ControlPlane, tmp_path: Path) -> None:
    second = run_supervisor({**running.environment, "TRAINYARD_STATE_DIR": str(tmp_path)})
    assert second.returncode == 1
    assert "Choose another port" in second.stderr


def test_the_first_start_prints_a_link_that_works_once_and_its_job_outlives_every_end(
    running: ControlPlane, tmp_path: Path
) -> None:
    """Beside another instance of the machine, of which it shows nothing."""
    with control_plane(tmp_path) as second:
        said = wait_until(
            lambda: re.search(r"First admin, once:\s+(\S+)", (tmp_path / "console.log").read_text()),
            what="the link",
        )
        assert said[1].startswith(f"{second.url}/setup/")
        expect_a_link_that_works_once(second, said[1].removeprefix(second.url))
        assert second.call("GET", "/api/v1/projects")[1]["results"] == []
        shown = running.call("GET", "/api/v1/projects")[1]["results"]
        assert [project["name"] for project in shown] == ["team-a"]
        assert replace(second, token=running.token).call("GET", "/api/v1/projects")[0] == 401
        assert (tmp_path / "secret.key").stat().st_mode & 0o077 == 0
        create_project(second)
        job = submit(second, "long")
        children = second.children().values()
        second.process.kill()
        wait_until(lambda: not any(child.is_running() for child in children), what="the children's end")
        assert job.process.is_running()
    expect_a_job_to_outlive_make(second, job)


def expect_a_job_to_outlive_make(before: ControlPlane, job: RunningJob) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with make_up(before, number) as by_make:
            wait_until(lambda by_make=by_make: job.is_untouched(by_make), what="the job to be found")
            if number == signal.SIGTERM:
                job.end(by_make)
        assert job.process.is_running() == (number == signal.SIGINT)


def expect_a_link_that_works_once(running: ControlPlane, path: str) -> None:
    assert running.call("GET", path)[0] == 200
    assert running.call("GET", "/setup/another-secret")[0] in {404, 410}
    assert running.call("POST", path, {})[0] == 403
    logged = (running.state_dir / "control" / "web.log").read_text()
    assert "/setup/[secret]" in logged
    assert path.rpartition("/")[2] not in logged
    first = {"username": "first", "password": "correct horse battery", "is_admin": True}
    assert running.call("POST", "/api/v1/users", first)[0] == 201
    assert running.call("GET", path)[0] == 404


@contextmanager
def make_up(before: ControlPlane, number: int) -> Iterator[ControlPlane]:
    """`make up` in the state directory of an instance that has ended; at the end make alone is signalled."""
    console_path = before.state_dir / f"make-{number}.log"
    with console_path.open("wb") as console:
        make = subprocess.Popen(
            ["make", "up"], cwd=CHECKOUT, env=before.environment, stdout=console, stderr=console
        )
    running = replace(before, process=make)
    wait_until(running.is_ready, timeout=40, what="readiness")
    yield running
    below = servers.descendants(make.pid)
    assert len(below) >= len(NAMES)
    make.send_signal(number)
    make.wait(patience(10))
    wait_until(lambda: not any(process.is_running() for process in below), what="the end of all")
    assert "Stopped in" in console_path.read_text()


@pytest.mark.parametrize(
    ("variable", "value", "finding"),
    [
        ("TRAINYARD_BOOTSTRAP_TOKEN", "short", "trainyard.E001"),
        ("TRAINYARD_LOG_LEVEL", "loud", "TRAINYARD_LOG_LEVEL must be one of debug, info"),
        ("DATABASE_URL", "mysql://localhost/x", "DATABASE_URL must start with"),
        ("DATABASE_URL", "postgres://localhost:70000/x", "DATABASE_URL has no valid port"),
    ],
)
def test_an_impossible_setting_is_refused_before_anything_starts(
    tmp_path: Path, variable: str, value: str, finding: str
) -> None:
    port = str(servers.free_port())
    environment = {
        **os.environ,
        "TRAINYARD_STATE_DIR": str(tmp_path),
        "TRAINYARD_PORT": port,
        variable: value,
    }
    refused = run_supervisor(environment)
    assert refused.returncode == 1
    assert finding in refused.stderr
    assert "Traceback" not in refused.stderr


def run_supervisor(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "controlplane.supervisor"]
    return subprocess.run(
        command,
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
