"""Live push: 1,000 websocket clients and one change of the cluster per second through the real web process, beside
Channels' group_send of messages of the same size, in turn in the same run.

A change is what telemetry writes: progress of five running jobs and one event. Its latency is from the event's own
time, taken before the commit, until a client in another process has the frame. CPU is that of the server process.

Run: python -m bench.push [CLIENTS]
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.harness import Row, report
from tests.servers import free_port
from tests.waiting import wait_until

CLIENTS, SECONDS, ROUNDS = 1000, 10.0, 3
JOBS, MOVING = 16, 5
OURS_MARK, PEER_MARK = '"latest":{"at":"', '"stamp": {"at": "'
SUBSCRIBE = '{"op": "subscribe", "topic": "overview", "since": null}'


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one window: the latency of every message, the server's CPU, bytes per message, and lost
    connections."""

    latencies_ms: list[float]
    cpu_percent: float
    message_bytes: int
    lost: int


def main() -> None:
    """Measure our server and Channels' group_send in turn, ROUNDS times each, and report the results."""
    clients = int(sys.argv[1]) if len(sys.argv) > 1 else CLIENTS
    ours: list[Measured] = []
    peers: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        token = prepare(Path(directory))
        for _ in range(ROUNDS):
            with server("controlplane.asgi:application", {}) as (port, process), changes():
                ours.append(measure(port, process, clients, "/ws/live", OURS_MARK, token, SUBSCRIBE))
            size = {"PUSH_PEER_BYTES": str(ours[-1].message_bytes)}
            with server("bench.push_peer:application", size) as (port, process):
                peers.append(measure(port, process, clients, "/", PEER_MARK, "", ""))
    report("push", rows(clients, ours, peers))


def rows(clients: int, ours: list[Measured], peers: list[Measured]) -> list[Row]:
    """Return rows for latency and CPU, beside the peer."""
    name = "Channels group_send, in-memory layer"
    latencies = [value for window in ours for value in window.latencies_ms]
    peer_latencies = [value for window in peers for value in window.latencies_ms]
    expected = clients * int(SECONDS) * len(ours)
    note = (
        f"{ours[0].message_bytes} bytes a message; received {len(latencies):,} of about {expected:,}"
        f" (peer {len(peer_latencies):,}); connections lost {sum(window.lost for window in ours)}"
    )
    return [
        Row(
            f"push to {clients:,} clients, one change a second, p95",
            "<= 250 ms",
            "ms",
            thinned(latencies),
            limit=250,
            quantile=0.95,
            peer=name,
            peer_samples=thinned(peer_latencies),
            note=note,
        ),
        Row(
            "the same, median", "-", "ms", thinned(latencies), peer=name, peer_samples=thinned(peer_latencies)
        ),
        Row(
            "CPU of the web process meanwhile",
            "<= 10 % of one core",
            "%",
            [window.cpu_percent for window in ours],
            limit=10,
            peer=name,
            peer_samples=[window.cpu_percent for window in peers],
        ),
    ]


def thinned(values: list[float], most: int = 1000) -> list[float]:
    """Return at most `most` evenly spaced quantiles of `values`, to keep the results small."""
    ordered = sorted(values)
    if len(ordered) <= most:
        return ordered
    return [round(ordered[index * (len(ordered) - 1) // (most - 1)], 2) for index in range(most)]


def measure(
    port: int, process: psutil.Process, clients: int, path: str, mark: str, token: str, subscription: str
) -> Measured:
    """Connect `clients` clients to `path` on `port`, then measure the latencies and the CPU of the server's
    `process` over SECONDS. `mark`: the text before the time in a message; `token`: "" for none; `subscription`:
    sent by each client after the handshake. Raises RuntimeError if the clients cannot connect."""
    command = [sys.executable, "-m", "bench.push_client", str(port), path, str(clients), str(SECONDS), mark]
    reader = subprocess.Popen(
        [*command, token, subscription], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        if reader.stdout.readline().strip() != "ready":
            raise RuntimeError("the readers could not connect")
        # By then all states are delivered, and a first message has warmed the code.
        threading.Event().wait(2)
        before = process.cpu_times()
        reader.stdin.write("go\n")
        reader.stdin.flush()
        found: dict[str, Any] = json.loads(reader.stdout.readline())
        after = process.cpu_times()
    spent = (after.user - before.user) + (after.system - before.system)
    latencies = found["latencies_ms"]
    size = found["bytes"] // max(1, len(latencies))
    return Measured(latencies, 100 * spent / SECONDS, size, found["lost"])


@contextmanager
def server(application: str, variables: dict[str, str]) -> Iterator[tuple[int, psutil.Process]]:
    """Context manager that runs an ASGI application on uvicorn with the product's options, in a process of its own, and
    yields its port and process. `variables`: added to this process's environment."""
    port = free_port()
    options = ["--no-access-log", "--log-level", "warning", "--ws-per-message-deflate", "false"]
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        application,
        "--port",
        str(port),
        "--backlog",
        "4096",
        *options,
    ]
    process = subprocess.Popen(command, env={**os.environ, **variables})
    try:
        wait_until(lambda: listens(process, port), timeout=30, what=f"the start of {application}")
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(20)


def listens(process: "subprocess.Popen[bytes]", port: int) -> bool:
    if process.poll() is not None:
        raise RuntimeError("the server ended")
    return any(
        connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        for connection in psutil.Process(process.pid).net_connections(kind="tcp")
    )


def prepare(directory: Path) -> str:
    """Create a database with sixteen running jobs. Return a token that may see all of them."""
    os.environ |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", "TRAINYARD_STATE_DIR": str(directory)}
    os.environ["TRAINYARD_LOG_LEVEL"] = "error"
    import django
    from django.core.management import call_command

    django.setup()
    (directory / "static").mkdir()
    call_command("migrate", interactive=False, verbosity=0)
    from controlplane.access import SYSTEM
    from controlplane.actions.accounts import issue_token
    from controlplane.loop.wake import listen
    from jobs.models import Job
    from tests.builders import make_job, make_project, make_user

    listen(lambda: None)
    user = make_user("root", is_admin=True)
    project = make_project(quota=16)
    for number in range(JOBS):
        job = make_job(project, f"training-{number}", user)
        Job.objects.filter(pk=job.pk).update(state="running", started_at=job.created_at, allocated_milli=1000)
    return issue_token(user, "bench", actor=SYSTEM)[1]


@contextmanager
def changes() -> Iterator[None]:
    """Context manager in which one change of the cluster per second is committed in the background, as telemetry
    does."""
    stop = threading.Event()
    thread = threading.Thread(target=change_until, args=(stop,), daemon=True)
    thread.start()
    yield
    stop.set()
    thread.join()


def change_until(stop: threading.Event) -> None:
    from django.db import connection, transaction
    from django.utils import timezone

    from controlplane.models import Event
    from jobs.models import Job

    keys = list(Job.objects.values_list("pk", flat=True)[:MOVING])
    step = 0
    while not stop.wait(1.0):
        step += 1
        progress = {
            "epoch": step // 24,
            "step": step,
            "total_steps": 1920,
            "eta_seconds": 1920 - step,
            "loss": 0.3,
            "accuracy": 0.9,
        }
        now = timezone.now()
        with transaction.atomic():
            for key in keys:
                Job.objects.filter(pk=key).update(
                    progress=progress, gpu_utilization=round(0.9 + step % 10 / 100, 3)
                )
            Event.objects.append(
                [Event(kind="telemetry.sampled", at=now, data={"jobs": [str(key) for key in keys]})]
            )
    connection.close()


if __name__ == "__main__":
    main()
