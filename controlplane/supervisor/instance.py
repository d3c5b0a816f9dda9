"""The instance's address, directory and Redis, read once from the environment."""

import fcntl
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.config import environment
from controlplane.config.state_files import make_private

CHECKOUT = Path(__file__).resolve().parents[2]
MAX_WEB_PROCESSES = 64
_HOLDER = re.compile(r"process (\d+), (\S+)\n")


class CannotStart(Exception):
    """This instance cannot start; the message states why and the next step."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Where one control plane listens, and the state directory that it owns. Paths are absolute."""

    host: str
    port: int
    public_url: str
    state_dir: Path
    # "": the supervisor starts a Redis of its own.
    redis_url: str
    web_processes: int

    @property
    def control_dir(self) -> Path:
        """Return the directory with the supervisor's lock and the control plane's own logs."""
        return self.state_dir / "control"

    @property
    def redis_dir(self) -> Path:
        return self.state_dir / "redis"


def read_instance(env: Mapping[str, str]) -> Instance:
    """Return the instance that TRAINYARD_* variables in `env` describe. Raise CannotStart, naming the variable, if
    one is invalid."""
    try:
        host = environment.text(env, "TRAINYARD_HOST")
        port = environment.integer(env, "TRAINYARD_PORT", 1, 65535)
        return Instance(
            host=host,
            port=port,
            public_url=environment.text(env, "TRAINYARD_PUBLIC_URL").rstrip("/") or _url(host, port),
            state_dir=(CHECKOUT / environment.text(env, "TRAINYARD_STATE_DIR")).resolve(),
            redis_url=environment.text(env, "TRAINYARD_REDIS_URL"),
            web_processes=environment.integer(env, "TRAINYARD_WEB_PROCESSES", 1, MAX_WEB_PROCESSES),
        )
    except environment.SettingInvalid as error:
        raise CannotStart(str(error)) from error


def claim(instance: Instance) -> int:
    """Lock the state directory for this process, create it if missing, and return the lock's file descriptor; the
    kernel releases the lock when the process ends. Raise CannotStart if another process has the lock or the directory
    cannot be used."""
    try:
        make_private(instance.state_dir)
        instance.control_dir.mkdir(mode=0o700, exist_ok=True)
        handle = os.open(instance.control_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except environment.SettingInvalid as error:
        raise CannotStart(str(error)) from error
    except OSError as error:
        raise CannotStart(
            f"The state directory {instance.state_dir} cannot be used: {error.strerror}."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
        message = (
            f"Trainyard already runs on {instance.state_dir}: {holder}.\n"
            "Stop it first, or start a second instance with its own TRAINYARD_STATE_DIR and TRAINYARD_PORT."
        )
        raise CannotStart(message) from error
    # Truncated only under the lock: an instance that fails to get it quotes the holder's line.
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()}, {instance.public_url}\n".encode())
    return handle


def running_url(state_dir: Path) -> str:
    """Return the address of the instance that runs on a state directory, "" if none does or another user's does."""
    try:
        found = _HOLDER.fullmatch((state_dir / "control" / "lock").read_text())
    except OSError:
        return ""
    # A try to lock the file would make an instance that starts at this moment fail.
    return found[2] if found and Path("/proc", found[1]).exists() else ""


def bind(instance: Instance) -> socket.socket:
    """Return a socket bound to the instance's address, not yet listening, for the web processes to inherit. The
    supervisor keeps it open, so that connections survive a restart of the web server. Raise CannotStart if the port
    cannot be used."""
    family = socket.AF_INET6 if ":" in instance.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    # Otherwise connections in TIME_WAIT would block the port for a minute after a restart.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((instance.host.strip("[]"), instance.port))
        listener.set_inheritable(True)
    except OSError as error:
        listener.close()
        message = (
            f"{instance.host}:{instance.port} cannot be used: {error.strerror}.\n"
            f"Choose another port: TRAINYARD_PORT={min(instance.port + 1, 65535)} make up"
        )
        raise CannotStart(message) from error
    return listener


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"
