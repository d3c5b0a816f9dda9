"""Run one cluster: `python -m tools.kube.supervise STATE_DIR [--until-stdin-closes]`.

Two processes. The outer one holds the state directory's lock, connects the network, waits for SIGTERM (or for
its starter's end, seen on its standard input) and removes everything. The inner one is the first process of
the cell (tools/kube/cell.py): it starts the cluster's programs, restarts them when they exit, and all end
with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from tools.kube import cell, certificates, image
from tools.kube.cell import CannotIsolate, Network
from tools.kube.parts import (
    CONTAINERD_SOCKET,
    Part,
    Plan,
    addresses_of_server,
    names_of_server,
    parts,
    write_files,
)

CANNOT = 3  # exit code
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> int:
    """Run the outer process until SIGTERM. Return 0, or CANNOT if this machine allows no cell: the last line of
    its log gives the reason."""
    state_dir = Path(sys.argv[1]).resolve()
    lock = take_lock(state_dir)
    plan = Plan(**json.loads((state_dir / "plan.json").read_text()))
    stop = _stop_signal()
    ready, tell = os.pipe()
    heard, answer = os.pipe()
    inner, network, code = 0, None, 0
    try:
        inner = cell.fork()
        if inner == 0:
            _inner(plan, state_dir, tell, heard)
        os.close(tell)
        if os.read(ready, 1):
            network = cell.connect(inner)
            certificates.write_all(state_dir, addresses_of_server(network), names_of_server())
            write_files(plan, network, state_dir)
            os.write(answer, bytes([network.slot]))
            _publish(state_dir / "cluster.json", json.dumps(asdict(network)))
            _wait(stop, inner, watches_stdin="--until-stdin-closes" in sys.argv)
    except CannotIsolate as error:
        print(error, flush=True)
        code = CANNOT
    finally:
        code = end(inner, network, state_dir) or code
        os.close(lock)
    return code


def take_lock(state_dir: Path) -> int:
    """Put a lock file with this process's id into the directory, in the place of another one, and lock it. Return its
    descriptor."""
    path = state_dir / f"lock.{os.getpid()}"
    lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    # Locked before it has its final name, so that it is never mistaken for the file of a dead cluster.
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.write(lock, str(os.getpid()).encode())
    path.rename(state_dir / "lock")
    return lock


def end(inner: int, network: Network | None, state_dir: Path) -> int:
    """Kill the cell and remove what the kernel does not. `inner`: the cell's first process, 0 if none was
    started; `network`: None if it was not connected. Return the exit code of a cell that had ended by itself,
    else 0."""
    status = 0
    if inner:
        # The process exists, possibly as a zombie, until this one has waited for it.
        os.kill(inner, signal.SIGKILL)
        # Returns when all processes of the cell have ended: the kernel kills them with the first one.
        status = os.waitpid(inner, 0)[1]
    if network:
        cell.disconnect(network)
    cell.remove_cgroups(cell.cgroup_of(state_dir))
    shutil.rmtree(state_dir)
    return max(0, os.waitstatus_to_exitcode(status))


def _stop_signal() -> int:
    """Install handlers for SIGTERM and SIGINT; return a descriptor that becomes readable when one arrives."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _noted)
    return read


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal is reported through the wake-up descriptor."""


def _wait(stop: int, inner: int, *, watches_stdin: bool) -> None:
    waiting = select.poll()
    for descriptor in (stop, os.pidfd_open(inner), *([0] if watches_stdin else [])):
        waiting.register(descriptor, select.POLLIN | select.POLLHUP)
    waiting.poll()


def _publish(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    # By rename, so that a reader never finds an incomplete file.
    path.with_suffix(".new").rename(path)


def _inner(plan: Plan, state_dir: Path, tell: int, heard: int) -> None:
    """Run the first process of the cell; never returns. `tell`, `heard`: descriptors to report to the outer process
    that the network can be connected, and to receive its slot."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        cell.detach_rest()
        os.write(tell, b"!")
        if slot := os.read(heard, 1):
            cell.furnish_network(Network(slot[0]))
            _run(plan, Network(slot[0]), state_dir)
    except CannotIsolate as error:
        print(error, flush=True)
        code = CANNOT
    except Exception:  # noqa: BLE001  nobody is above this process; the log is where it is read
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(plan: Plan, network: Network, state_dir: Path) -> None:
    cell.enter_cgroups(cell.cgroup_of(state_dir))
    programs = {Path(program).parent for program in plan.programs.values()}
    cell.furnish_mounts(state_dir, [*image.mounted(), *programs])
    os.chdir(state_dir)
    keeper = Keeper(state_dir / "logs")
    threads = {
        "api": threading.Thread(target=_wait_for_api, args=(state_dir,), daemon=True),
        "images": threading.Thread(target=_import_images, args=(state_dir,), daemon=True),
    }
    if plan.node:
        image.write_archive(state_dir / "image.tar")
        image.write_base_specification(state_dir / "container.json")
    waiting = parts(plan, network, state_dir)
    keeper.start([part for part in waiting if not part.after])
    threads["api"].start()
    if plan.node:
        threads["images"].start()
    waiting = [part for part in waiting if part.after]
    while True:
        due = [
            part for part in waiting if not threads[part.after].is_alive() and not threads["api"].is_alive()
        ]
        keeper.start(due)
        waiting = [part for part in waiting if part not in due]
        keeper.look()
        _open_volumes(state_dir / "volumes")
        time.sleep(0.05 if waiting else 0.15)


class Keeper:
    """Restarts the cluster's processes, and reaps orphaned ones, as the first process of a PID namespace must."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._alive: dict[int, Part] = {}
        self._again: dict[str, tuple[float, Part]] = {}

    def start(self, started: list[Part]) -> None:
        """Start these processes, each with its own log."""
        for part in started:
            with (self._logs / f"{part.name}.log").open("ab") as log:
                process = subprocess.Popen(
                    part.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
                )
            # Keeps Popen from waiting for the process: `look` reaps it.
            process.returncode = 0
            self._alive[process.pid] = part

    def look(self) -> None:
        """Reap ended processes, and start parts of the cluster again half a second after their end."""
        now = time.monotonic()
        with contextlib.suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if part := self._alive.pop(pid, None):
                    print(f"{part.name} has ended and is started again", flush=True)
                    self._again[part.name] = (now + 0.5, part)
        due = [part for when, part in self._again.values() if when <= now]
        self._again = {name: item for name, item in self._again.items() if item[0] > now}
        self.start(due)


def _open_volumes(volumes: Path) -> None:
    """Make volumes writable for all users."""
    # A volume may have been deleted meanwhile.
    with contextlib.suppress(FileNotFoundError):
        for volume in volumes.iterdir():
            # The directories of host-path volumes belong to root, and fsGroup does not change that.
            if volume.stat().st_mode & 0o777 != 0o777:
                volume.chmod(0o777)


def _environment() -> dict[str, str]:
    # With Go's default of 100 the garbage collector takes an eighth of the API server's CPU. At 400 the server needs
    # 450 MiB instead of 310.
    return {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", "GOGC": "400"}


def _wait_for_api(state_dir: Path) -> None:
    context = ssl.create_default_context(cafile=str(state_dir / "ca.crt"))
    token = (state_dir / "tokens.csv").read_text().partition(",")[0]
    request = urllib.request.Request(
        "https://127.0.0.1:443/readyz", headers={"Authorization": f"Bearer {token}"}
    )
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5, context=context):
                return
        # The server refuses connections, or answers 500, until all of its parts run.
        except OSError:
            time.sleep(0.05)


def _import_images(state_dir: Path) -> None:
    """Wait for containerd's socket, then import our images."""
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(CONTAINERD_SOCKET) == 0:
                break
        time.sleep(0.05)
    ctr = f"ctr --address {CONTAINERD_SOCKET} --namespace k8s.io"
    words = f"{ctr} images import --snapshotter native {state_dir}/image.tar"
    log = (state_dir / "logs" / "images.log").open("wb")
    with log:
        importing = subprocess.Popen(words.split(), stdout=log, stderr=log, env=_environment())
        # Not `wait`: the first process reaps all others (see Keeper).
        while Path(f"/proc/{importing.pid}/stat").exists():
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
