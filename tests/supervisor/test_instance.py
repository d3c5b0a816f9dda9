"""Refusals of a start, each with what to do, and the built-in Redis on short and long paths."""

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis as redis_client

from controlplane.supervisor import programs
from controlplane.supervisor.instance import CannotStart, Instance, bind, claim, read_instance, running_url
from controlplane.supervisor.supervise import is_make_waiting
from tests import servers
from tests.waiting import wait_until


def instance_of(state_dir: Path, port: int = 8000) -> Instance:
    return read_instance({"TRAINYARD_STATE_DIR": str(state_dir), "TRAINYARD_PORT": str(port)})


def test_the_address_of_a_running_instance_is_that_of_its_lock(tmp_path: Path) -> None:
    assert running_url(tmp_path) == ""
    lock = claim(instance_of(tmp_path, 8123))
    assert running_url(tmp_path) == instance_of(tmp_path, 8123).public_url
    os.close(lock)
    # Above the largest process id of Linux.
    (tmp_path / "control" / "lock").write_text("process 4194305, http://127.0.0.1:8123\n")
    assert running_url(tmp_path) == ""


def test_the_second_on_a_state_directory_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    lock = claim(instance_of(tmp_path, 8123))
    with pytest.raises(CannotStart, match=rf"process {os.getpid()}, http://127\.0\.0\.1:8123"):
        claim(instance_of(tmp_path, 8124))
    os.close(lock)
    os.close(claim(instance_of(tmp_path, 8124)))


def test_a_taken_port_is_refused_with_another_to_try(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=f"TRAINYARD_PORT={port + 1} make up"):
            bind(instance_of(tmp_path, port))


@pytest.mark.parametrize("port", ["0", "65536", "eighty", "-1", "8000.5"])
def test_an_impossible_port_names_the_variable(port: str) -> None:
    with pytest.raises(CannotStart, match="TRAINYARD_PORT must be a whole number from 1 to 65535"):
        read_instance({"TRAINYARD_PORT": port})


@pytest.mark.parametrize(("depth", "scheme"), [(1, "redis+socket"), (8, "redis")])
def test_the_built_in_redis_answers_on_short_and_on_long_paths(depth: int, scheme: str) -> None:
    with tempfile.TemporaryDirectory(
        prefix="yard-", dir="/tmp"
    ) as short:  # pytest's own paths are long already
        state_dir = Path(short, *["a-quite-long-name"] * depth)
        state_dir.mkdir(parents=True)
        check_redis(state_dir, scheme)


def check_redis(state_dir: Path, scheme: str) -> None:
    url, program = programs.redis(instance_of(state_dir))
    assert program is not None
    assert url.startswith(f"{scheme}://")
    with subprocess.Popen(program.arguments, stdout=subprocess.DEVNULL) as server:
        client = redis_client.Redis.from_url(url.replace("redis+socket", "unix"))
        try:
            wait_until(lambda: _answers(client), what="Redis's answer")
            assert client.info("memory")["maxmemory_policy"] == "noeviction"
            assert int(client.info("server")["valkey_version"].partition(".")[0]) >= 9
            refuses(client)
        finally:
            client.close()
            server.terminate()


def refuses(client: redis_client.Redis) -> None:
    """Assert that our own account may not change, replace, dump or stop the server."""
    for words in ("CONFIG SET dir /tmp", "MODULE LIST", "FUNCTION LIST", "REPLICAOF NO ONE", "SAVE", "FLUSHALL",
                  "SHUTDOWN", "ACL LIST", "MONITOR", "KEYS *", "DEBUG SLEEP 0"):  # fmt: skip
        with pytest.raises((redis_client.exceptions.NoPermissionError, redis_client.ResponseError)):
            client.execute_command(*words.split())


def test_a_redis_that_the_person_named_is_left_to_them(tmp_path: Path) -> None:
    env = {"TRAINYARD_STATE_DIR": str(tmp_path), "TRAINYARD_REDIS_URL": "redis://redis.example:6379/0"}
    assert programs.redis(read_instance(env)) == ("redis://redis.example:6379/0", None)


def test_a_make_that_took_sigint_is_seen_waiting() -> None:
    with make_waiting_for_a_sleep("exec make -s -f -") as make:
        assert not is_make_waiting(make.pid)
        make.send_signal(signal.SIGINT)
        wait_until(lambda: is_make_waiting(make.pid), what="make to wait")


def test_a_make_in_the_background_of_a_script_is_not_waiting() -> None:
    """There SIGINT is ignored from the start; taking that for a Ctrl-C would end `make up &` at once."""
    with make_waiting_for_a_sleep("trap '' INT; exec make -s -f -") as make:
        assert not is_make_waiting(make.pid)


@contextmanager
def make_waiting_for_a_sleep(script: str) -> Iterator[subprocess.Popen[str]]:
    """A make, started by a shell script, whose only rule sleeps."""
    with subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, text=True, process_group=0
    ) as make:
        assert make.stdin is not None
        make.stdin.write("all:\n\t@exec sleep 600\n")
        make.stdin.close()
        children = wait_until(lambda: servers.descendants(make.pid), what="make's child")
        try:
            yield make
        finally:
            for child in children:
                child.kill()


def _answers(client: redis_client.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis_client.ConnectionError:
        return False
