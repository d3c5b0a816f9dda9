"""kill -9 of random processes of a training with three workers: a worker, its agent, both, or the store's host.

Ours: a job of a running control plane. A worker's agent is its pod's supervisor; the store's host is the first member.
After each kill the job is scaled to three again. torchrun: three agents with one worker each, killed once in each way,
each time after a new start, because torchrun may not recover. Run: python -m bench.elastic_kills
"""

from __future__ import annotations

import json
import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench.elastic import Torchrun
from bench.elastic_kubernetes import Yard
from bench.elastic_refused import processes_of, submitted
from bench.harness import Row, report
from tests import servers
from tests.waiting import wait_until

KILLS, MEMBERS, HANG_SECONDS = 50, 3, 2.0
# For all kills of ours, and for one of torchrun's.
LONGEST_SECONDS, TORCHRUN_SECONDS = 90.0, 20.0
# A step that was under way at the kill does not count.
SETTLE_SECONDS = 0.5
WAYS = ("worker", "agent", "both", "store host")


@dataclass
class Killed:
    """Results of the kills. `recoveries`: seconds from a kill to the next step; `hangs`: those above HANG_SECONDS.
    `orphans`: processes that outlived the job. `two_worlds`: steps of an older generation after one of a newer."""

    recoveries: list[float] = field(default_factory=list)
    hangs: int = 0
    orphans: int = 0
    two_worlds: int = 0
    note: str = ""


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        with servers.control_plane(Path(directory) / "state") as running:
            try:
                ours = killed(running)
            finally:
                running.stop_jobs()
        report("elastic_kills", rows(ours, torchrun(Path(directory))))


def killed(running: servers.ControlPlane) -> Killed:
    """Kill processes of a training on the control plane and scale it up again, KILLS times or until
    LONGEST_SECONDS have passed. Return the results."""
    found, yard, draw = Killed(), Yard(running), random.Random(50)
    job, until = submitted(yard, running.state_dir, MEMBERS), time.monotonic() + LONGEST_SECONDS
    steps = running.state_dir / "steps"
    wait_until(lambda: last_step(steps)[2] == MEMBERS, what="three workers")
    ways: list[str] = []
    while len(ways) < KILLS and time.monotonic() < until:
        ways.append(draw.choice(WAYS))
        victims = chosen(running.state_dir, ways[-1], draw)
        generation, began = last_step(steps)[1], time.time()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        wait_until(partial(is_beyond, steps, generation), timeout=70, what="a step")
        took = first_after(steps, generation) - began
        found.recoveries.append(took)
        found.hangs += took > HANG_SECONDS
        grow(yard, job, steps)
    found.two_worlds = worlds_at_once(steps)
    running.stop_jobs()
    found.orphans = len(processes_of(running.state_dir))
    found.note = ", ".join(f"{ways.count(way)} x {way}" for way in WAYS)
    return found


def chosen(state: Path, way: str, draw: random.Random) -> list[int]:
    """Return the pids to kill, of a pod of the newest generation that `draw` chooses or, for the way "store
    host", of its first member. `way`: one of WAYS; "agent" is the pod's supervisor, "both" the supervisor and the
    worker, any other the worker. `state`: the control plane's state directory."""
    pods = {}
    for file in state.glob("pods/*/start"):
        with suppress(OSError, ValueError):
            membership = json.loads((file.parent / "elastic" / "membership.json").read_text())
            rank = int(file.parent.name.rpartition("-")[2])
            place = [one["id"] for one in membership["members"]].index(rank)
            pods[place] = json.loads(file.read_text())
    pod = pods[0 if way == "store host" else draw.choice(sorted(pods))]
    return {"agent": [pod["shim_pid"]], "both": [pod["shim_pid"], pod["pid"]]}.get(way, [pod["pid"]])


def grow(yard: Yard, job: str, steps: Path) -> None:
    """Scale the job to MEMBERS again over REST, and wait until a step has that many workers: the job's own
    replacement would wait longer after each loss. `steps`: the file of recorded steps."""

    def is_grown() -> bool:
        if last_step(steps)[2] == MEMBERS:
            return True
        # Refused while the loss is not recorded yet, or another operation runs.
        with suppress(RuntimeError):
            yard.call("POST", f"/jobs/{job}/scale", {"workers": MEMBERS})
        return False

    wait_until(is_grown, timeout=60, what="three workers")


def read_steps(file: Path) -> list[tuple[float, int, int]]:
    """Return the time, generation and number of workers of each step that a first member recorded."""
    lines = (line.split() for line in file.read_text().splitlines())
    return [(float(at), int(generation), int(workers)) for at, generation, workers in lines]


def last_step(file: Path) -> tuple[float, int, int]:
    return read_steps(file)[-1]


def is_beyond(file: Path, generation: int) -> bool:
    return last_step(file)[1] > generation


def first_after(file: Path, generation: int) -> float:
    return next(at for at, number, _ in read_steps(file) if number > generation)


def worlds_at_once(file: Path) -> int:
    """Return how many steps of an older generation came after one of a newer."""
    return sum(later[1] < earlier[1] for earlier, later in pairwise(sorted(read_steps(file))))


def torchrun(folder: Path) -> dict[str, str]:
    """Kill once in each of WAYS, after a new start; return the outcome by way, as text."""
    found = {}
    for way in WAYS:
        peer = Torchrun(folder / way.replace(" ", "-"))
        try:
            since = time.time()
            peer.start(MEMBERS)
            peer.steps_in_world_of(MEMBERS, since)
            found[way] = after_kill(peer, way)
        except TimeoutError:
            found[way] = "did not start"
        finally:
            end_all(peer)
    return found


def after_kill(peer: Torchrun, way: str) -> str:
    """Kill processes of torchrun in one `way` of WAYS: a worker, an agent, both, or the first agent with its
    worker ("store host"). Return the seconds to the next step and the number of orphans, as text."""
    agent = peer.agents[0 if way == "store host" else -1]
    below = [one.pid for one in servers.descendants(agent.pid)]
    pids = {"worker": below, "agent": [agent.pid]}.get(way, [agent.pid, *below])
    since = time.time()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    try:
        said = f"{peer.any_step(since + SETTLE_SECONDS, TORCHRUN_SECONDS) + SETTLE_SECONDS:.1f} s"
    except TimeoutError:
        said = f"no step in {TORCHRUN_SECONDS:.0f} s"
    left = 0 if way == "worker" else sum(Path(f"/proc/{pid}").exists() for pid in below)
    return f"{said}, {left} orphans"


def end_all(peer: Torchrun) -> None:
    """Kill the agents of `peer` and all processes that they started, including those whose agent is gone."""
    needle = f"TRAINYARD_CHECKPOINT_DIR={peer.folder}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if needle in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
    for agent in peer.agents:
        agent.wait()


def rows(ours: Killed, peer: dict[str, str]) -> list[Row]:
    work = f"{len(ours.recoveries)} random kills of agents, workers, both and the store's host"
    beside = "torchrun: " + "; ".join(f"{way}: {said}" for way, said in peer.items())
    return [
        Row(f"{work}: processes left over", "0", "orphans", [ours.orphans], limit=0, note=ours.note),
        Row(f"{work}: two worlds at once", "0", "times", [ours.two_worlds], limit=0),
        Row(f"{work}: hangs over 2 s", "0", "hangs", [ours.hangs], limit=0, note=beside),
        Row(f"{work}: to the next step", "-", "s", ours.recoveries),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
