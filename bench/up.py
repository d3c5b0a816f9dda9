"""`make up` on a warm install: seconds to the first page, and memory of the idle control plane.

Run: python -m bench.up
"""

import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from bench.harness import Row, report
from tests import servers
from tests.waiting import wait_until

REPEATS = 5
IDLE_SECONDS = 20.0
MIB = 1 << 20


def main() -> None:
    """Start on an empty state directory, then several times on the same one; report."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        first, _ = start(Path(directory), idle_seconds=0)
        again, memory = [], []
        for number in range(REPEATS):
            seconds, mib = start(Path(directory), idle_seconds=IDLE_SECONDS if number == 0 else 5.0)
            again.append(seconds)
            memory.append(mib)
    total = [sum(parts.values()) for parts in memory]
    parts = ", ".join(f"{name} {mib:.0f}" for name, mib in sorted(memory[0].items()))
    report(
        "up",
        [
            Row("first `make up` to the page answering", "<= 6 s", "s", [first], limit=6),
            Row("`make up` again to the page answering", "<= 6 s", "s", again, limit=6),
            Row("idle control plane, RSS of all processes", "<= 400 MB", "MB", total, limit=400, note=parts),
        ],
    )


def start(state_dir: Path, idle_seconds: float) -> tuple[float, dict[str, float]]:
    """Return the seconds from the command to a served page, and the MiB of each process after `idle_seconds`."""
    began = time.perf_counter()
    with servers.control_plane(state_dir, is_up=has_page) as running:
        seconds = time.perf_counter() - began
        wait_until(running.is_ready, timeout=30, what="readiness")
        # Memory use settles; there is no condition to wait for.
        time.sleep(idle_seconds)
        processes = {"supervisor": psutil.Process(running.process.pid), **running.children()}
        return seconds, {name: process.memory_info().rss / MIB for name, process in processes.items()}


def has_page(running: servers.ControlPlane) -> bool:
    """Return whether a browser gets the first page, the login; False if nothing answers."""
    try:
        with urllib.request.urlopen(f"{running.url}/", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    main()
