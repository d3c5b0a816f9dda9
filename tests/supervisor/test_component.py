"""Web server and workers in processes of their own, on one PostgreSQL and one Redis: what containers run."""

import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import servers
from tests.servers import CHECKOUT, free_port
from tests.waiting import patience, wait_until

PART = [sys.executable, "-m", "controlplane.supervisor.component"]


def variables(state_dir: Path, **more: str) -> dict[str, str]:
    """An environment of its own for one part, with a state directory that no other part sees."""
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith(("TRAINYARD_", "DATABASE_"))
    }
    return {**inherited, "TRAINYARD_STATE_DIR": str(state_dir), **more}


def run_part(name: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PART, name],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )


@contextmanager
def part(name: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    state_dir = Path(environment["TRAINYARD_STATE_DIR"])
    state_dir.mkdir()
    with (state_dir / "output").open("wb") as output:
        process = subprocess.Popen([*PART, name], cwd=CHECKOUT, env=environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait(patience(10))


def status_of(port: int, path: str) -> int:
    """The answer to a probe; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=patience(5)) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


@pytest.fixture
def shared() -> Iterator[dict[str, str]]:
    """What all parts are given."""
    with ExitStack() as stack:
        try:
            yield {
                "DATABASE_URL": stack.enter_context(servers.postgres()) + "?sslmode=prefer",
                "TRAINYARD_REDIS_URL": stack.enter_context(servers.redis()),
                "TRAINYARD_SECRET_KEY": secrets.token_urlsafe(48),
                "TRAINYARD_CLUSTERS": "memory:a=1x1024",
                "TRAINYARD_PORT": str(free_port()),
            }
        except FileNotFoundError as missing:
            pytest.skip(str(missing))


@pytest.mark.postgres
@pytest.mark.slow
def test_parts_in_processes_of_their_own_make_one_control_plane(
    tmp_path: Path, shared: dict[str, str]
) -> None:
    port = int(shared["TRAINYARD_PORT"])
    with ExitStack() as stack:
        web = stack.enter_context(part("web", variables(tmp_path / "web", **shared)))
        wait_until(lambda: status_of(port, "/healthz") == 200, 60, "the web server's start")
        assert status_of(port, "/readyz?exclude=loop") == 503  # not before the migrations
        assert status_of(port, "/static/css/base.css") == 200  # gathered at its start
        migrated = run_part("migrate", variables(tmp_path / "migrate", **shared))
        assert migrated.returncode == 0, migrated.stderr
        assert json.loads(migrated.stdout)["first_admin"].startswith(f"http://127.0.0.1:{port}/setup/")
        assert status_of(port, "/readyz?exclude=loop") == 200
        assert status_of(port, "/readyz") == 503  # no loop yet
        workers = [
            stack.enter_context(part(name, variables(tmp_path / name, **shared)))
            for name in ("worker", "tasks", "loop")
        ]
        wait_until(lambda: status_of(port, "/readyz") == 200, 60, "the loop's first cycle")
        wait_until(lambda: says(tmp_path / "worker", " ready"), 60, "the worker's connection to Redis")
        for name in ("worker", "loop"):  # what liveness probes ask for
            wait_until((tmp_path / name / "control" / "loop.alive").exists, 30, f"the loop of {name}")
        for process in (web, *workers):
            process.send_signal(signal.SIGTERM)
        codes = [process.wait(patience(15)) for process in (web, *workers)]
    # uvicorn ends in order, and then by the signal itself; the worker may hear it while it starts
    assert codes[0] == -signal.SIGTERM
    assert codes[1] == codes[3] == 0


def says(state_dir: Path, words: str) -> bool:
    return words in (state_dir / "output").read_text()


def test_a_part_without_what_the_parts_share_is_refused(tmp_path: Path) -> None:
    refused = run_part("web", variables(tmp_path, DATABASE_URL="postgres://localhost/yard"))
    assert refused.returncode == 1
    assert "must be set: TRAINYARD_REDIS_URL, TRAINYARD_SECRET_KEY" in refused.stderr


def test_a_part_that_is_none_is_refused_with_the_list(tmp_path: Path) -> None:
    refused = run_part("sever", variables(tmp_path))
    assert refused.returncode == 2
    assert "web, worker, tasks, loop, migrate" in refused.stderr


def test_a_short_secret_key_is_refused_before_the_database_is_touched(tmp_path: Path) -> None:
    environment = variables(
        tmp_path,
        DATABASE_URL="postgres://127.0.0.1:9/nothing",
        TRAINYARD_REDIS_URL="redis://127.0.0.1:9/0",
        TRAINYARD_SECRET_KEY="short",
    )
    refused = run_part("migrate", environment)
    assert refused.returncode == 1
    assert "trainyard.E006" in refused.stderr
