"""Time from the submit of a torch job with three workers to its first step, beside torchrun's start of the same
program.

Ours: a running control plane, by REST and by `yard submit-elastic`; three pods, each a process of its own, whose
membership the loop publishes. torchrun: three agents with one worker each, which find one another by c10d and know
their number, and one agent with three workers. All are measured in turn in one run.
Run: python -m bench.elastic_start
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.elastic_kubernetes import Yard
from bench.harness import Row, report
from tests import servers
from tests.waiting import wait_until

ROUNDS, WORKERS, LIMIT_SECONDS = 5, 3, 120
PROJECT, YARD = "bench", Path(sys.executable).parent / "yard"
ENVIRONMENT = {
    "EPOCHS": "1000000",
    "SAMPLES": "256",
    "WORK_MS": "0.5",
    "POLICY": "linear_learning_rate",
    "CHECKPOINT_STEPS": "0",
    "TRAINYARD_ELASTIC_FORM_SECONDS": "10",
}
JOB = {
    "kind": "elastic",
    "image": "elastic",
    "workers": WORKERS,
    "min_workers": 1,
    "max_workers": 4,
    "gpus": 1,
    "cpus": 0.1,
    "memory_mib": 1024,
    "env": ENVIRONMENT,
}
STEP = re.compile(rf'"workers": {WORKERS}, "at": ([0-9.]+)')


@dataclass
class Starts:
    """Seconds from the request, or from the start of torchrun, to the first step with three workers."""

    rest: list[float] = field(default_factory=list)
    command: list[float] = field(default_factory=list)
    agents: list[float] = field(default_factory=list)
    one_agent: list[float] = field(default_factory=list)


def main() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        with control_plane(Path(directory) / "state") as running:
            report("elastic_start", rows(measured(running, Path(directory))))


@contextmanager
def control_plane(state_dir: Path) -> Iterator[servers.ControlPlane]:
    """Context manager with a running control plane that has a project; stops its jobs at the end."""
    with servers.control_plane(state_dir) as running:
        Yard(running).call("POST", "/projects", {"name": PROJECT, "gpu_quota": 16})
        try:
            yield running
        finally:
            running.stop_jobs()


def measured(running: servers.ControlPlane, directory: Path) -> Starts:
    """Start each kind once in every round, on the control plane or below `directory`; return the times. A first
    job is not counted, since no process has imported torch yet."""
    found = Starts()
    for number in range(ROUNDS + 1):
        by_rest = submitted(running, f"rest-{number}", submit_by_rest)
        if number == 0:
            continue
        found.rest.append(by_rest)
        found.command.append(submitted(running, f"command-{number}", submit_by_command))
        found.agents.append(torchrun(directory / f"agents-{number}", agents=WORKERS, workers=1))
        found.one_agent.append(torchrun(directory / f"agent-{number}", agents=1, workers=WORKERS))
    return found


def submitted(
    running: servers.ControlPlane, name: str, submit: Callable[[servers.ControlPlane, str], None]
) -> float:
    """Submit a job with `submit` (which gets the control plane and the job's name), wait for its first step, and
    stop it. Return the seconds from the request to the step."""
    asked = time.time()
    submit(running, name)
    job = Yard(running).call("GET", f"/projects/{PROJECT}/jobs?name={name}")["results"][0]["id"]
    took = first_step(lambda: (running.state_dir / "logs").glob(f"**/*{job}*/**/*.log"), asked)
    running.stop_jobs()
    return took


def submit_by_rest(running: servers.ControlPlane, name: str) -> None:
    Yard(running).call("POST", f"/projects/{PROJECT}/jobs", {"name": name, **JOB})


def submit_by_command(running: servers.ControlPlane, name: str) -> None:
    """Submit the job `name` by `yard submit-elastic`, so that the start of `yard` is included."""
    words = [str(YARD), "submit-elastic", name, "-i", "elastic", "-g", "1", "--cpu", "0.1", "--memory", "1Gi"]
    words += ["--workers", str(WORKERS), "--min-workers", "1", "--max-workers", "4"]
    words += [word for item in ENVIRONMENT.items() for word in ("-e", "=".join(item))]
    subprocess.run(words, check=True, env=settings(running), capture_output=True)


def settings(running: servers.ControlPlane) -> dict[str, str]:
    """Return the environment with which `yard` uses this control plane."""
    server = {"TRAINYARD_URL": running.url, "TRAINYARD_TOKEN": running.token, "TRAINYARD_PROJECT": PROJECT}
    return {**os.environ, **server, "TRAINYARD_CONFIG": str(running.state_dir / "yard.json")}


def first_step(logs: Callable[[], Iterable[Path]], since: float) -> float:
    """Wait for the first step with three workers in these logs. Return the seconds from `since` (Unix seconds)."""

    def found() -> float | None:
        texts = (path.read_text(errors="replace") for path in logs())
        return min((float(at) for text in texts for at in STEP.findall(text)), default=None)

    at = wait_until(found, timeout=LIMIT_SECONDS, what="the first step")
    assert at is not None
    return at - since


def torchrun(folder: Path, *, agents: int, workers: int) -> float:
    """Start this number of torchrun `agents` with as many `workers` each, wait for the first step, and kill them.
    Return the seconds from the start to the step."""
    folder.mkdir()
    env = {**os.environ, **ENVIRONMENT, "TRAINYARD_CHECKPOINT_DIR": str(folder)}
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes",
        str(agents),
        "--nproc-per-node",
        str(workers),
    ]
    command += [
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"127.0.0.1:{servers.free_port()}",
        "--rdzv-id",
        "bench",
    ]
    since, running = time.time(), list[subprocess.Popen[bytes]]()
    try:
        for number in range(agents):
            own = ["--rdzv-conf", f"is_host={int(number == 0)}", "-m", "workloads.elastic.train"]
            with open(folder / f"{number}.log", "wb") as log:
                running.append(
                    subprocess.Popen(
                        [*command, *own], stdout=log, stderr=log, env=env, start_new_session=True
                    )
                )
        return first_step(lambda: folder.glob("*.log"), since)
    finally:
        for agent in running:
            end(agent)


def end(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent and its workers, which have sessions of their own."""
    below = servers.descendants(agent.pid)
    for process in below:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    agent.kill()
    agent.wait()


def rows(found: Starts) -> list[Row]:
    goal, peer = "<= 1/15 of torchrun", f"torchrun, {WORKERS} agents"
    work = f"submit of a job of {WORKERS} torch workers to its first step"
    return [
        Row(f"{work}, REST", goal, "s", found.rest, peer=peer, peer_samples=found.agents, ratio_limit=1 / 15),
        Row(f"{work}, `yard`", goal, "s", found.command, peer=peer, peer_samples=found.agents, ratio_limit=1 / 15),
        Row(f"{work}, REST, beside one agent", "-", "s", found.rest,
            peer=f"torchrun, 1 agent of {WORKERS} workers", peer_samples=found.one_agent),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
