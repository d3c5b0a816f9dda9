"""Lease host ports to pods: each is free on this machine and held by at most one pod of this state directory."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

HOST = "127.0.0.1"
# A port that the kernel names as free may be leased to a pod that does not listen yet.
_TRIES = 100


def lease_ports(folder: Path, pod_name: str, declared: Iterable[int]) -> dict[int, int]:
    """Lease a free host port to the pod for each declared port, until `release_ports`. Return {declared port: host
    port}. `folder`: the leases, one file per host port. Raise OSError if no free port is found; what was leased
    before in the call stays leased."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {port: _lease(folder, pod_name) for port in declared}


def release_ports(folder: Path, ports: Iterable[int]) -> None:
    for port in ports:
        (folder / str(port)).unlink(missing_ok=True)


def _lease(folder: Path, pod_name: str) -> int:
    for _ in range(_TRIES):
        port = _free_port()
        try:
            # Exclusive creation decides between pods that start at the same time, so no port is leased twice.
            with open(folder / str(port), "x") as file:
                file.write(pod_name)
            return port
        except FileExistsError:
            # Leased to another pod that does not listen yet.
            continue
    raise OSError("no free port was found on this machine")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
