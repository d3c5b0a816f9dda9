"""Resizes and failures of a training with 2 to 4 workers, beside plain torchrun on the same program in the same run.

Ours: workers forked from a process that has imported torch, a membership file, and survivors that form a new group in
process. torchrun: one agent per worker, c10d rendezvous with short timeouts, and a checkpoint at every step, so that a
change repeats as few steps as possible. Run: python -m bench.elastic
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.harness import Row, report
from workloads.common import membership
from workloads.elastic.launch import Crew, Worker
from workloads.elastic.train import main as train

EPOCHS = 1_000_000
PROGRAM = (
    "--epochs",
    str(EPOCHS),
    "--samples",
    "256",
    "--work-ms",
    "0.5",
    "--policy",
    "linear_learning_rate",
)
ROUNDS, RESIZES, KILLS = 5, 20, 50
HANG_SECONDS = 2.0
TORCHRUN_ROUNDS = 2
# Shorter keep-alives made agents on two busy cores declare one another dead, and with a last call of 1 s the second of
# two newcomers came too late: it waited until the next round, which nothing begins.
RENDEZVOUS = "join_timeout=60,last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
LIMIT_SECONDS = 120.0


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as folder:
        os.environ["TRAINYARD_WORLD_SIZE"] = "2"
        os.environ["TRAINYARD_CHECKPOINT_DIR"] = str(Path(folder) / "checkpoints")
        ours = Ours(Path(folder) / "ours")
        try:
            resized(ours)
            killed(ours)
        finally:
            ours.crew.close()
        peer = torchrun(Path(folder) / "torchrun")
        # what our workers noted is in files of the folder
        report("elastic", rows(ours, peer))


class Ours:
    """Our workers in one training, and the measurements on it. `joins`, `pauses`, `recoveries`: seconds; `hangs`:
    recoveries above HANG_SECONDS; `two_worlds`: switches after which not all members had the same generation."""

    def __init__(self, folder: Path) -> None:
        self.crew = Crew(folder, lambda: train([*PROGRAM, "--checkpoint-steps", "0"]))
        self.pauses: list[float] = []
        self.joins: list[float] = []
        self.recoveries: list[float] = []
        self.hangs = 0
        self.two_worlds = 0

    def grow(self, count: int) -> float:
        """Start `count` workers and make them members. Return the seconds from their start until all members
        train in the larger world."""
        began = time.monotonic()
        fresh = self.crew.start(count)
        self.crew.until(lambda: self.crew.is_ready(fresh), 60)
        self.crew.publish([*self.crew.members, *fresh])
        self.settle()
        return time.monotonic() - began

    def shrink(self, leavers: list[int]) -> None:
        self.crew.publish([number for number in self.crew.members if number not in leavers])
        self.settle()
        self.crew.until(lambda: not any(self.crew.workers[number].is_alive for number in leavers), 60)

    def settle(self) -> None:
        """Wait until all members have completed the switch to the newest generation, and count in `two_worlds` if they
        have not the same one then. Raises TimeoutError after 60 s."""
        self.crew.until(self.is_settled, 60)
        generations = {worker.status.generation for worker in self.members() if worker.status}
        self.two_worlds += len(generations) != 1

    def is_settled(self, after: int = 0) -> bool:
        """Return whether the newest generation is newer than `after` and all members train in it."""
        if self.crew.generation <= after:
            return False
        found = [worker.status for worker in self.members()]
        return all(
            one is not None and one.generation == self.crew.generation and one.state == membership.TRAINING
            for one in found
        )

    def members(self) -> Iterator[Worker]:
        return (self.crew.workers[number] for number in self.crew.members)

    def switches(self) -> list[membership.Switch]:
        found = [worker.status for worker in self.crew.workers.values()]
        return [switch for status in found if status is not None for switch in status.switches]

    @property
    def exactness(self) -> tuple[int, int]:
        """Return the number of completed epochs, and of those that used every sample exactly once."""
        furthest = max((one.status for one in self.members() if one.status), key=lambda one: one.step)
        return furthest.epochs_done, furthest.epochs_exact


def resized(ours: Ours) -> None:
    """Resize from 2 to 4 to 2 workers ROUNDS times, then RESIZES times at random; record the pauses and joins in
    `ours`."""
    ours.grow(2)
    for _ in range(ROUNDS):
        ours.joins.append(ours.grow(2))
        ours.shrink(list(ours.crew.members[2:]))
    draw = random.Random(20)
    for _ in range(RESIZES):
        members = list(ours.crew.members)
        if len(members) == 1 or (len(members) < 4 and draw.random() < 0.5):
            ours.grow(1)
        else:
            ours.shrink([draw.choice(members)])
    ours.pauses = [switch.pause_seconds for switch in ours.switches() if switch.step > 0]


def killed(ours: Ours) -> None:
    """Kill random members KILLS times, the host of the store most often, and replace each; record the recoveries
    and hangs in `ours`."""
    draw = random.Random(50)
    while len(ours.crew.members) < 3:
        ours.grow(1)
    for _ in range(KILLS):
        victim = ours.crew.members[0] if draw.random() < 0.3 else draw.choice(ours.crew.members)
        before, began = ours.crew.generation, time.monotonic()
        ours.crew.kill(victim)
        ours.crew.until(partial(ours.is_settled, before), 60)
        took = time.monotonic() - began
        ours.recoveries.append(took)
        ours.hangs += took > HANG_SECONDS
        ours.grow(1)


@dataclass
class Torchrun:
    """torchrun agents with one worker each and a shared rendezvous in `folder`, and the seconds of each join, leave,
    recovery and start."""

    folder: Path
    joins: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    agents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = 0
    note: str = ""  # what did not happen in time

    def __post_init__(self) -> None:
        self.folder.mkdir()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start(self, count: int) -> None:
        env = {**os.environ, "TRAINYARD_CHECKPOINT_DIR": str(self.folder / "checkpoints")}
        env.pop("TRAINYARD_WORLD_SIZE", None)
        # By default an agent that joins a running rendezvous waits in vain for MASTER_ADDR: rank 0 publishes it in its
        # first round alone (torch 2.13, DynamicRendezvousHandler.next_rendezvous), and all agents end after 60 s.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        for _ in range(count):
            is_host = not self.agents
            with open(self.folder / f"agent-{len(self.agents)}.log", "wb") as log:
                self.agents.append(
                    subprocess.Popen(
                        self._command(is_host=is_host),
                        stdout=log,
                        stderr=log,
                        env=env,
                        start_new_session=True,
                    )
                )

    def _command(self, *, is_host: bool) -> list[str]:
        return [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:4", "--nproc-per-node", "1",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "bench",
            "--rdzv-conf", f"{RENDEZVOUS},is_host={int(is_host)}", "--max-restarts", "100", "--monitor-interval", "0.1",
            "-m", "workloads.elastic.train", *PROGRAM, "--checkpoint-steps", "1",
        ]  # fmt: skip

    def steps_in_world_of(self, workers: int, since: float) -> float:
        """Wait for the first step after `since` (Unix seconds) with this number of workers. Return the seconds from
        `since`. Raises TimeoutError after LIMIT_SECONDS."""
        end = time.monotonic() + LIMIT_SECONDS
        pattern = re.compile(rf'"workers": {workers}, "at": ([0-9.]+)')
        while time.monotonic() < end:
            text = "".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))
            times = [at for at in map(float, pattern.findall(text)) if at > since]
            if times:
                return min(times) - since
            time.sleep(0.02)
        raise TimeoutError(f"torchrun made no step with {workers} workers")

    def any_step(self, since: float, limit: float) -> float:
        """Wait for a step after `since` (Unix seconds) with any number of workers. Return the seconds from `since`.
        Raises TimeoutError after `limit` seconds of waiting."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            text = "".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))
            times = [at for at in map(float, re.findall(r'"at": ([0-9.]+)', text)) if at > since]
            if times:
                return min(times) - since
            time.sleep(0.05)
        raise TimeoutError("torchrun made no step")

    def kill(self, agent: subprocess.Popen[bytes], which: int) -> None:
        """Send the signal `which` to an agent, which then ends its workers; SIGKILL is sent to its workers too."""
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(agent.pid, which)
        if which == signal.SIGKILL:
            for child in map(int, children):
                os.kill(child, which)

    def add(self, other: Torchrun) -> None:
        """Append the measurements of another instance."""
        self.joins += other.joins
        self.leaves += other.leaves
        self.recoveries += other.recoveries
        self.starts += other.starts

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                self.kill(agent, signal.SIGKILL)
            agent.wait()


def torchrun(folder: Path) -> Torchrun:
    """Return measurements of torchrun: from 2 to 4 to 2 workers, and the loss of one of three, TORCHRUN_ROUNDS
    times each with new agents. The first agent hosts the rendezvous and always stays."""
    total = Torchrun(folder)
    for number in range(TORCHRUN_ROUNDS):
        for name, work in (("resize", resize_torchrun), ("kill", kill_torchrun)):
            peer = Torchrun(folder / f"{name}-{number}")
            try:
                work(peer)
            except TimeoutError as error:
                total.note = (
                    f"{error} within {LIMIT_SECONDS:.0f} s in one of {TORCHRUN_ROUNDS} rounds or more"
                )
            finally:
                peer.close()
            total.add(peer)
    return total


def resize_torchrun(peer: Torchrun) -> None:
    since = time.time()
    peer.start(2)
    peer.steps_in_world_of(2, since)
    since = time.time()
    peer.start(2)
    peer.joins.append(peer.steps_in_world_of(4, since))
    since = time.time()
    for agent in peer.agents[-2:]:
        peer.kill(agent, signal.SIGTERM)
    peer.leaves.append(peer.steps_in_world_of(2, since))


def kill_torchrun(peer: Torchrun) -> None:
    since = time.time()
    peer.start(3)
    peer.starts.append(peer.steps_in_world_of(3, since))
    since = time.time()
    peer.kill(peer.agents[-1], signal.SIGKILL)
    peer.recoveries.append(peer.steps_in_world_of(2, since))


def rows(ours: Ours, peer: Torchrun) -> list[Row]:
    found = ours.switches()
    done, exact = ours.exactness
    lost, repeated = (sum(one.lost_steps for one in found), sum(one.repeated_steps for one in found))
    return [
        Row("planned resizes: steps lost", "0", "steps", [lost], limit=0),
        Row("planned resizes and kills: completed steps computed again", "0", "steps", [repeated], limit=0),
        Row(
            "planned resize: pause of the training", "<= 3 s", "s", ours.pauses, limit=3,
            peer="torchrun, 4 -> 2", peer_samples=peer.leaves, note=peer.note,
        ),
        Row(
            "two workers join: next step in the larger world", "<= 0.4 s, <= 1/20 of torchrun", "s", ours.joins,
            limit=0.4, peer="torchrun, 2 -> 4", peer_samples=peer.joins, ratio_limit=0.05,
        ),
        Row(
            "kill -9 of one worker: next step in the smaller world", "<= 0.3 s, <= 1/20 of torchrun", "s",
            ours.recoveries, limit=0.3, peer="torchrun, 3 -> 2", peer_samples=peer.recoveries, ratio_limit=0.05,
        ),
        Row(f"hangs over 2 s in {KILLS} kills", "0", "hangs", [ours.hangs], limit=0),
        Row(f"two worlds at once in {RESIZES} resizes and {KILLS} kills", "0", "times", [ours.two_worlds], limit=0),
        Row(
            "epochs in which every sample came exactly once", "all", "%", [100 * exact / max(1, done)], limit=100,
            at_least=True, note=f"{exact} of {done} epochs, over all resizes and kills",
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
