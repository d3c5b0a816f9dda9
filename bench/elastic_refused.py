"""The effect of scale-outs that cannot succeed on the training and the machine.

A running control plane has an elastic job with two workers. Three operations by `yard scaleout` must be rolled back:
more GPUs than are free, new workers that never report, and new workers that die at once. No step may be delayed, no
generation be formed, and no pod or process be left. Run: python -m bench.elastic_refused
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench.elastic_kubernetes import Yard
from bench.elastic_start import ENVIRONMENT, JOB, LIMIT_SECONDS, PROJECT, YARD, settings
from bench.harness import Row, report
from tests import servers
from tests.waiting import wait_until

GPUS, MEMBERS, TIMEOUT_SECONDS = 16, 2, 5
ALIVE = ("pending", "starting", "running", "stopping")
# Worker 0 writes the time of every step. Workers whose rank is COLD or more never become ready: if the file
# DIE exists they exit, otherwise they sleep.
PROGRAM = """
import os, sys, time
rank = int(os.environ["TRAINYARD_RANK"])
if rank >= int(os.environ["COLD"]):
    if os.path.exists(os.environ["DIE"]):
        sys.exit(7)
    time.sleep(1000)
from workloads.common import elastic
complete = elastic.World._complete
def note(world, batch):
    complete(world, batch)
    if world.rank == 0:
        with open(os.environ["STEPS"], "a") as file:
            file.write(f"{time.time()} {world.generation} {world.size}\\n")
elastic.World._complete = note
from workloads.elastic.train import main
sys.exit(main([]))
"""


@dataclass
class Refused:
    """Results of the operations, in seconds. `usual`, `gaps`: the longest time without a step before and during
    each; `took`: until nothing was left; `pauses`: as REST reports them. `ends`: their states and messages.
    `stray`: the number of pods, processes, GPUs and attempts that differ from before."""

    usual: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    stray: int = 0


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        with servers.control_plane(Path(directory) / "state") as running:
            try:
                report("elastic_refused", rows(measured(running)))
            finally:
                running.stop_jobs()


def measured(running: servers.ControlPlane) -> Refused:
    """Run each operation while a job trains on the control plane. Return what it did to the training and what was
    left afterwards."""
    found, yard, state = Refused(), Yard(running), running.state_dir
    job = submitted(yard, state, MEMBERS, cold=MEMBERS)
    before = look(running, job)
    for name, count in (("no room", 2 * GPUS), ("never ready", 2), ("end at once", 2)):
        if name == "end at once":
            (state / "die").touch()
        quiet = time.time()
        wait_until(partial(is_past, quiet + TIMEOUT_SECONDS), what="steps to compare with")
        began = time.time()
        found.usual.append(longest_gap(state / "steps", quiet, began))
        scaled_out(running, count)
        operation = yard.operations(job)[0]
        # Pods and processes that remain are counted below.
        with suppress(AssertionError):
            wait_until(lambda: look(running, job) == before, timeout=20, what="the end of the newcomers")
        found.gaps.append(longest_gap(state / "steps", began, time.time()))
        found.stray += sum(abs(now - then) for now, then in zip(look(running, job), before, strict=True))
        found.took.append(time.time() - began)
        found.ends.append(f"{name}: {operation['state']}, {operation['message']}")
        found.pauses.append(operation["pause_seconds"] or 0.0)
    return found


def is_past(moment: float) -> bool:
    return time.time() > moment


def submitted(yard: Yard, state: Path, workers: int, cold: int = 1_000_000) -> str:
    """Submit a job with this number of workers, wait for its first step, and return its id. Workers with ranks from
    `cold` on never become ready. `state`: the directory of the program and its records."""
    yard.call("POST", "/projects", {"name": PROJECT, "gpu_quota": 4 * GPUS})
    (state / "program.py").write_text(PROGRAM)
    env = {**ENVIRONMENT, "STEPS": str(state / "steps"), "DIE": str(state / "die"), "COLD": str(cold)}
    sizes = {"workers": workers, "max_workers": 3 * GPUS}
    command = ["python", str(state / "program.py")]
    body = {**JOB, "name": "trains", "env": env, "command": command, **sizes}
    job = yard.call("POST", f"/projects/{PROJECT}/jobs", body)["id"]
    wait_until((state / "steps").exists, timeout=LIMIT_SECONDS, what="the first step")
    return str(job)


def scaled_out(running: servers.ControlPlane, count: int) -> None:
    """Run `yard scaleout --wait` for `count` more workers. Raises RuntimeError unless it exits with 1, which means
    that the change was rolled back."""
    words = [
        str(YARD),
        "scaleout",
        "trains",
        "--count",
        str(count),
        "--timeout",
        f"{TIMEOUT_SECONDS}s",
        "--wait",
    ]
    done = subprocess.run(words, env=settings(running), capture_output=True, text=True, check=False)
    if done.returncode != 1:
        raise RuntimeError(f"yard scaleout ended with {done.returncode}: {done.stdout}{done.stderr}")


def look(running: servers.ControlPlane, job: str) -> tuple[int, int, int, int]:
    """Return the numbers of a job's remaining pods, of pod processes, of held GPUs, and the attempt."""
    yard = Yard(running)
    pods = [one for one in yard.call("GET", f"/jobs/{job}/pods")["results"] if one["state"] in ALIVE]
    shown = yard.call("GET", f"/jobs/{job}")["status"]
    return len(pods), len(processes_of(running.state_dir)), shown["allocated_gpus"], shown["attempt"]


def processes_of(state: Path) -> list[int]:
    """Return the pids of the workers and pod supervisors of this state directory."""
    marks, found = (f"{state}/program.py".encode(), f"{state}/pods/".encode()), []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = entry.read_bytes()
            if any(mark in words for mark in marks):
                found.append(int(entry.parent.name))
    return found


def longest_gap(file: Path, since: float, until: float) -> float:
    """Return the longest time between two steps from `since` to `until` (Unix seconds), in seconds. Raises
    ValueError if fewer than two steps are in `file`."""
    times = [at for line in file.read_text().splitlines() if since <= (at := float(line.split()[0])) <= until]
    return max(later - earlier for earlier, later in pairwise(times))


def rows(found: Refused) -> list[Row]:
    """Return the rows of the results. The longest gap between two steps is shown beside that of an equally long
    time without an operation."""
    work = "scale-out that cannot be satisfied"
    return [
        Row(f"{work}: pause of the training", "0 s", "s", found.pauses, limit=0, note="; ".join(found.ends)),
        Row(f"{work}: longest time without a step", "-", "s", found.gaps, peer="5 s before", peer_samples=found.usual),
        Row(f"{work}: stray pods, processes and GPUs after the time-out", "0", "left", [found.stray], limit=0),
        Row(f"{work}: time-out of {TIMEOUT_SECONDS} s to all as before", "-", "s", found.took),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
