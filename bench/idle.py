"""CPU and memory of an instance without jobs: the embedded default with its simulated GPUs, at rest and with one reader
of the overview's feed.

Run: python -m bench.idle [SECONDS]

Linux only. CPU is that of all processes of the instance, Redis included. Wake-ups are voluntary context switches of
the threads that live throughout. Memory is PSS: pages that processes share count once. The floor, measured in turn, is
a valkey-server with its default settings and a Python process that wakes once a second.
"""

import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.harness import Row, report
from controlplane.supervisor.programs import redis_server
from tests import servers

SECONDS = 60.0
# By then what a start leaves to do has ended, and the loop has changed to its long period.
SETTLE_SECONDS = 60.0
WINDOWS = 2
MIB = 1 << 20
FLOOR = "valkey-server and a Python that wakes each second"

Processes = Mapping[str, psutil.Process]


@dataclass(frozen=True, slots=True)
class Used:
    """What a process used in a window: percent of one core, and wake-ups per second."""

    cpu: float
    wakeups: float


def main() -> None:
    """Measure the instance and the floor in turn, then the instance with a reader; report."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory, floor(directory) as beside:
        with servers.control_plane(Path(directory) / "state") as running:
            # There is no condition to wait for: nothing happens any more.
            time.sleep(SETTLE_SECONDS)
            processes = everything(running)
            ours, peers = [], []
            for _ in range(WINDOWS):
                ours.append(window(processes, seconds))
                peers.append(window(beside, seconds / 2))
            memory = {name: pss(process) for name, process in processes.items()}
            with reader(running):
                # By then the feed has sent its first state.
                time.sleep(seconds / 4)
                watched = window(processes, seconds)
        floor_memory = [sum(map(pss, beside.values()))]
    report("idle", rows(ours, peers, memory, floor_memory, watched))


def rows(
    ours: list[dict[str, Used]],
    peers: list[dict[str, Used]],
    memory: dict[str, float],
    floor_memory: list[float],
    watched: dict[str, Used],
) -> list[Row]:
    """Return the table: CPU at rest, memory (PSS, MiB by process), CPU with a reader (`watched`). `ours`,
    `peers`: one reading per window, of the instance and of the floor; `floor_memory`: MiB."""
    parts = ", ".join(f"{name} {mib:.0f}" for name, mib in memory.items())
    floor_cpu, total = [cpu(used) for used in peers], [sum(memory.values())]
    return [
        Row(
            "idle instance, CPU of all processes", "<= 1 % of a core", "%", [cpu(used) for used in ours], limit=1,
            peer=FLOOR, peer_samples=floor_cpu, note=in_words(ours[-1]),
        ),
        Row(
            "idle instance, PSS of all processes", "<= 280 MB", "MB", total, limit=280,
            peer=FLOOR, peer_samples=floor_memory, note=parts,
        ),
        Row(
            "the same with one reader of its overview, CPU", "-", "%", [cpu(watched)],
            peer=FLOOR, peer_samples=floor_cpu, note=in_words(watched),
        ),
    ]  # fmt: skip


@contextmanager
def floor(directory: str) -> Iterator[Processes]:
    """Context manager with the floor's two processes by name; ends them."""
    commands = {
        "valkey": [redis_server(), "--port", str(servers.free_port()), "--save", "", "--dir", directory],
        "python": [sys.executable, "-c", "import time\nwhile True: time.sleep(1)"],
    }
    started = {
        name: subprocess.Popen(command, stdout=subprocess.DEVNULL) for name, command in commands.items()
    }
    try:
        yield {name: psutil.Process(process.pid) for name, process in started.items()}
    finally:
        for process in started.values():
            process.terminate()
            process.wait()


@contextmanager
def reader(running: servers.ControlPlane) -> Iterator[None]:
    """Context manager in which a client follows the overview, as an open page does."""
    request = urllib.request.Request(
        f"{running.url}/api/v1/watch?topics=overview", headers={"Authorization": f"Bearer {running.token}"}
    )
    with urllib.request.urlopen(request, timeout=30):
        yield


def everything(running: servers.ControlPlane) -> Processes:
    """Return the instance's supervisor and all processes below it, by name."""
    names = {process.pid: name for name, process in running.children().items()}
    below = {
        names.get(process.pid, str(process.pid)): process
        for process in servers.descendants(running.process.pid)
    }
    return {"supervisor": psutil.Process(running.process.pid), **below}


def window(processes: Processes, seconds: float) -> dict[str, Used]:
    """Wait for `seconds`. Return what each process used meanwhile."""
    began, before = time.monotonic(), {name: reading(process) for name, process in processes.items()}
    time.sleep(seconds)
    took = time.monotonic() - began
    return {
        name: Used(100 * (now[0] - before[name][0]) / took, switches(before[name][1], now[1]) / took)
        for name, now in {name: reading(process) for name, process in processes.items()}.items()
    }


def reading(process: psutil.Process) -> tuple[float, dict[str, int]]:
    """Return the CPU seconds of a process, and by thread its voluntary context switches, both since their start."""
    times, threads = process.cpu_times(), {}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        try:
            fields = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
        except OSError:
            continue  # the thread has just ended
        threads[task.name] = int(fields["voluntary_ctxt_switches"])
    return times.user + times.system, threads


def switches(before: Mapping[str, int], now: Mapping[str, int]) -> int:
    """Return the voluntary context switches between two readings, of the threads that are in both."""
    return sum(now[name] - count for name, count in before.items() if name in now)


def cpu(used: Mapping[str, Used]) -> float:
    """Return the CPU of all processes together, in percent of one core."""
    return sum(one.cpu for one in used.values())


def in_words(used: Mapping[str, Used]) -> str:
    """Return each process's percent and wake-ups per second as text, then all wake-ups."""
    parts = [f"{name} {one.cpu:.2f} % in {one.wakeups:.1f}/s" for name, one in used.items()]
    return ", ".join(parts) + f"; {sum(one.wakeups for one in used.values()):.1f} wake-ups a second"


def pss(process: psutil.Process) -> float:
    """Return the proportional set size in MiB."""
    return float(process.memory_full_info().pss) / MIB


if __name__ == "__main__":
    main()
