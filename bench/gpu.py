"""The torch workloads on this machine's first GPU, as jobs of a control plane, beside the same programs alone.

Needs an NVIDIA GPU. Measures whether a job trains as fast as the program alone, whether an owner's reclaim costs the
borrower completed steps, and whether the API shows the driver's utilisation.
Run: python -m bench.gpu
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from bench import gpu_steps
from bench.elastic_kubernetes import Yard
from bench.harness import Row, print_table, report
from controlplane.engines.local.inventory import NvmlInventory
from tests import servers
from tests.waiting import wait_until
from workloads.lane_detection.data import LISTS

ROUNDS = 5
LIMIT_SECONDS = 90.0
LOADERS = 8
LANES, LANE_REPEATS, PICTURES, CLASSES = 192, 10, 4096, 8
OWNER, BORROWER = "owner", "borrower"
FIRST_KERNEL = (
    "import torch, time; torch.ones(1, device='cuda').item(); print('kernel', time.time(), flush=True)"
)
KERNEL = re.compile(r"kernel ([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Training:
    """A program of workloads/: the catalogue image that runs it, its module, and its settings."""

    image: str
    module: str
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The cost of a reclaim: seconds from the owner's request to its first kernel, steps that the borrower lost, and
    seconds from the owner's end until the borrower trains again."""

    seconds: float
    lost_steps: int
    back_seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of steps, {', '.join(PARTS)}")
    wanted = parser.parse_args().parts or ["steps", *PARTS]
    if not torch.cuda.is_available():
        sys.exit("bench.gpu needs an NVIDIA GPU that torch can use; this machine has none.")
    os.environ["OMP_NUM_THREADS"] = "2"
    found: list[Row] = []
    if "steps" in wanted:
        found += measured("steps", gpu_steps.rows)
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        folder = Path(directory)
        trainings = prepared(folder)
        with control_plane(folder / "state") as running:
            for name in [name for name in PARTS if name in wanted]:
                found += measured(name, partial(PARTS[name], running, trainings, folder))
    report("gpu", found)


def measured(name: str, part: Callable[[], list[Row]]) -> list[Row]:
    """Run `part`, print its duration under `name` and its rows, and return the rows."""
    began = time.monotonic()
    rows = part()
    print(f"-- {name}: {time.monotonic() - began:.1f} s", flush=True)
    print_table(rows)
    return rows


def prepared(folder: Path) -> list[Training]:
    """Generate the data of both programs and return them. An epoch uses each clip LANE_REPEATS times, since
    generating a clip is slow."""
    lanes, classes = folder / "lanes", folder / "classes"
    settings = {"DATA_DIR": str(lanes), "CLIPS": str(LANES)}
    command = [sys.executable, "-m", "workloads.lane_detection.prepare"]
    subprocess.run(command, check=True, env={**os.environ, **settings}, stdout=subprocess.DEVNULL)
    listed = lanes / LISTS / "train.txt"
    listed.write_text(listed.read_text() * LANE_REPEATS)
    draw_classes(classes)
    loaders = {"NUM_WORKERS": str(LOADERS)}
    lane_settings = {"DATA_DIR": str(lanes), "EPOCHS": "2", "USE_WORKERS": "true", **loaders}
    class_settings = {"DATA_DIR": str(classes), "EPOCHS": "4", "BATCH_SIZE": "64", **loaders}
    return [
        Training("lane-detection", "workloads.lane_detection.train", lane_settings),
        Training("image-classification", "workloads.image_classification.train", class_settings),
    ]


def draw_classes(folder: Path) -> None:
    """Write PICTURES images of 256 x 256 pixels; each class has a colour of its own."""
    for number in range(PICTURES):
        place = folder / "train" / f"class-{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        colour = tuple(random.Random(number % CLASSES).choices(range(256), k=3))
        Image.new("RGB", (256, 256), colour).save(place / f"{number}.jpg")


@contextmanager
def control_plane(state_dir: Path) -> Iterator[servers.ControlPlane]:
    """Context manager with a control plane that has this machine's GPUs, a project `owner` with a quota of one
    GPU and a project `borrower` with none."""
    with servers.control_plane(state_dir, {"TRAINYARD_CLUSTERS": "local:nvml"}) as running:
        Yard(running).call("POST", "/projects", {"name": OWNER, "gpu_quota": 1})
        Yard(running).call("POST", "/projects", {"name": BORROWER, "gpu_quota": 0})
        try:
            yield running
        finally:
            running.stop_jobs()


class Job:
    """A submitted job and its log."""

    def __init__(self, running: servers.ControlPlane, project: str, body: dict[str, Any]) -> None:
        self._running = running
        self.asked = time.time()
        body = {"kind": "train", "gpus": 1, "cpus": LOADERS + 2, "memory_mib": 16384, **body}
        self.id = Yard(running).call("POST", f"/projects/{project}/jobs", body)["id"]

    def state(self) -> str:
        return str(Yard(self._running).call("GET", f"/jobs/{self.id}")["status"]["state"])

    def log(self) -> str:
        files = sorted((self._running.state_dir / "logs").glob(f"**/*{self.id}*/**/*.log"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def wait_for(self, found: Callable[[str], Any], what: str) -> Any:
        """Wait until `found` returns a true value for the log, and return that. `what`: what is waited for, for the
        error. Raises RuntimeError if the job fails."""

        def look() -> Any:
            if self.state() == "failed":
                raise RuntimeError(f"{what}: the job failed:\n{self.log()[-3000:]}")
            return found(self.log())

        return wait_until(look, timeout=LIMIT_SECONDS, what=what)

    def stop(self) -> None:
        Yard(self._running).call("POST", f"/jobs/{self.id}/stop")
        self.wait_for_end()

    def wait_for_end(self) -> None:
        def is_over() -> bool:
            return self.state() in ("succeeded", "failed", "stopped")

        wait_until(is_over, timeout=LIMIT_SECONDS, what="the job's end")


def submitted(running: servers.ControlPlane, project: str, name: str, training: Training) -> Job:
    return Job(running, project, {"name": name, "image": training.image, "env": training.settings})


def endless(training: Training) -> Training:
    """Return the training with more epochs than a measurement lasts."""
    return replace(training, settings={**training.settings, "EPOCHS": "1000"})


def first_kernel(running: servers.ControlPlane, name: str) -> Job:
    """Submit and return a job `name` of the owner's that runs one kernel on the GPU."""
    return Job(running, OWNER, {"name": name, "image": "python", "args": ["-c", FIRST_KERNEL], "cpus": 1})


def kernel_at(text: str) -> float | None:
    return float(found[1]) if (found := KERNEL.search(text)) else None


def progress(text: str) -> list[dict[str, Any]]:
    """Return the progress records with a `step` that the log `text` contains."""
    lines = [line[line.index("{") :] for line in text.splitlines() if '"trainyard"' in line]
    return [fields for line in lines if "step" in (fields := json.loads(line))]


def starts(running: servers.ControlPlane, trainings: list[Training], folder: Path) -> list[Row]:
    """Return a row with the times from a job's request, and from the start of a process without the control
    plane, to the end of the first kernel, ROUNDS of each. `trainings` and `folder` are not used."""
    samples, floors = [], []
    for number in range(ROUNDS):
        job = first_kernel(running, f"kernel-{number}")
        at = job.wait_for(kernel_at, "the first kernel")
        samples.append(1000 * (at - job.asked))
        job.wait_for_end()
        began = time.time()
        text = subprocess.run(
            [sys.executable, "-c", FIRST_KERNEL], check=True, capture_output=True, text=True
        ).stdout
        floors.append(1000 * ((kernel_at(text) or began) - began))
    goal = "<= 1.2x the program alone"
    return [
        Row(
            "submit asked to the first kernel on a GPU", goal, "ms", samples, peer="the program alone",
            peer_samples=floors, ratio_limit=1.2,
        )
    ]  # fmt: skip


def speeds(running: servers.ControlPlane, trainings: list[Training], folder: Path) -> list[Row]:
    return [speed_row(running, training, folder) for training in trainings]


def speed_row(running: servers.ControlPlane, training: Training, folder: Path) -> Row:
    """Return a row with the samples per second of a training as a job, without the first two progress lines,
    beside those of the program alone. Raises RuntimeError if the job fails."""
    job = submitted(running, OWNER, training.image, training)
    job.wait_for_end()
    if job.state() != "succeeded":
        raise RuntimeError(job.log()[-3000:])
    ours, alone = rates(job.log()), rates(by_itself(training, folder))
    work = f"{training.image} as a job, samples a second on a GPU"
    return Row(
        work, ">= 0.97x the program alone", "1/s", ours, limit=0.97 * statistics.median(alone), at_least=True,
        peer="the program alone", peer_samples=alone,
    )  # fmt: skip


def by_itself(training: Training, folder: Path) -> str:
    """Run a training's program without a control plane, with its checkpoints in `folder`. Return its output."""
    settings = {**training.settings, "TRAINYARD_CHECKPOINT_DIR": str(folder / f"alone-{training.image}")}
    return subprocess.run(
        [sys.executable, "-m", training.module],
        check=True, env={**os.environ, **settings}, capture_output=True, text=True,
    ).stdout  # fmt: skip


def rates(text: str) -> list[float]:
    return [float(line["samples_per_second"]) for line in progress(text)][2:]


def reclaimed(running: servers.ControlPlane, training: Training, number: int) -> Reclaim:
    """Return the cost of one reclaim: a borrower trains, the owner takes the GPU and ends, and the borrower
    resumes. `number`: makes the jobs' names unique."""
    borrower = submitted(running, BORROWER, f"borrower-{number}", endless(training))
    borrower.wait_for(lambda text: len(progress(text)) > 3, "the borrower's steps")
    owner = first_kernel(running, f"reclaim-{number}")
    at = owner.wait_for(kernel_at, "the owner's kernel")
    owner.wait_for_end()
    ended = time.time()
    stopped = borrower.log()
    last = max(int(line["step"]) for line in progress(stopped))
    saved = int((re.findall(r"saved step (\d+)", stopped) or ["0"])[-1])
    borrower.wait_for(
        lambda text: f"resumed at step {saved}" in text and len(progress(text)) > len(progress(stopped)),
        "the borrower's return",
    )
    back = time.time() - ended
    borrower.stop()
    return Reclaim(at - owner.asked, max(0, last - saved), back)


def reclaims(running: servers.ControlPlane, trainings: list[Training], folder: Path) -> list[Row]:
    found = [reclaimed(running, trainings[0], number) for number in range(ROUNDS)]
    return [
        Row(
            "a GPU reclaimed from a training, owner's submit to its first kernel", "<= 10 s", "s",
            [one.seconds for one in found], limit=10,
        ),
        Row("steps lost by the training", "0", "steps", [float(one.lost_steps) for one in found], limit=0),
        Row(
            "owner's end to the next steps of the training", "<= 20 s", "s",
            [one.back_seconds for one in found], limit=20,
        ),
    ]  # fmt: skip


def readings(running: servers.ControlPlane, trainings: list[Training], folder: Path) -> list[Row]:
    """Return a row with the utilisation that the API shows beside the driver's, once a second during a training."""
    job = submitted(running, OWNER, "read", endless(trainings[0]))
    job.wait_for(lambda text: len(progress(text)) > 3, "steps")
    shown, read = [], []
    for _ in range(10):
        device = Yard(running).call("GET", "/telemetry/overview")["node_list"][0]["devices"][0]
        shown.append(100 * float(device["utilization"] or 0))
        read.append(100 * float(NvmlInventory().readings()[0].utilization or 0))
        wait_for_next_second()
    job.stop()
    work, goal = "GPU utilisation shown while training", "as the driver's"
    return [Row(work, goal, "%", shown, peer="NVML", peer_samples=read)]


PARTS = {"starts": starts, "speeds": speeds, "reclaims": reclaims, "readings": readings}


def wait_for_next_second() -> None:
    time.sleep(1 - time.time() % 1)


if __name__ == "__main__":
    main()
