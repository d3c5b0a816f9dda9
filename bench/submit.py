"""Time from submit to a running process: ours beside the server of `ray job submit`, in turn in one run.

Both get plain HTTP requests from this process, with a command that writes the time at which it runs. Ray is installed
from the package index into an environment of its own under ~/.cache. `python -c pass`, timed beside every submit, is
the floor that makes figures of different machines comparable; a second round keeps one core busy.
Run: python -m bench.submit
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Row, report, time_ms
from tests import servers
from tests.waiting import wait_until

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard-bench"
RAY = "ray[default]==2.60.0"
OURS_REPEATS, RAY_REPEATS, WARM_UP, BUSY_REPEATS = 60, 12, 3, 20
BATCHES, BATCH_JOBS = 10, 100


@dataclass(frozen=True, slots=True)
class Start:
    """Unix times of one submit: request sent, answer received, process running."""

    asked: float
    answered: float
    ran: float


Submit = Callable[[str, str], object]  # name and shell command -> an answered request


@dataclass(frozen=True, slots=True)
class Ours:
    """Our server. `submit`: one job; `submit_waiting`: jobs with these names that stay queued, in one request."""

    submit: Submit
    submit_waiting: Callable[[list[str]], object]


def main() -> None:
    """Measure ours, in turn with Ray if it can be installed; report."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        stamps = Path(directory) / "stamps"
        stamps.mkdir()
        with our_server(Path(directory) / "state") as ours, ray_server(Path(directory)) as (ray, absence):
            starts, peers, floors = [], [], []
            for number in range(WARM_UP + OURS_REPEATS):
                starts.append(measure(ours.submit, f"job-{number}", stamps))
                floors += time_ms(python_pass, 1, warm_up=0)
                if ray and number % (OURS_REPEATS // RAY_REPEATS) == 0:
                    peers.append(measure(ray, f"ray-{number}", stamps))
            with busy_core():
                crowded = [measure_beside_floor(ours, number, stamps) for number in range(BUSY_REPEATS)]
            batches = [measure_batch(ours, number) for number in range(WARM_UP + BATCHES)]
    found = rows(starts[WARM_UP:], peers[1:], absence, batches[WARM_UP:])
    busy_ms, busy_floors = zip(*crowded, strict=True)
    floor_rows = [
        floor_row("", [whole_ms(start) for start in starts[WARM_UP:]], floors[WARM_UP:], 6),
        floor_row(", one core busy", busy_ms, busy_floors, 10),
    ]
    report("submit", [*found, *floor_rows])


def floor_row(when: str, samples: Sequence[float], floors: Sequence[float], limit: float) -> Row:
    return Row(
        f"submit asked to process running{when}, p50",
        f"<= {limit:g}x python -c pass",
        "ms",
        samples,
        peer="python -c pass",
        peer_samples=floors,
        ratio_limit=limit,
    )


def whole_ms(start: "Start") -> float:
    """Return the milliseconds from the request to the running process."""
    return 1000 * (start.ran - start.asked)


def measure_beside_floor(ours: "Ours", number: int, stamps: Path) -> tuple[float, float]:
    start = measure(ours.submit, f"busy-{number}", stamps)
    return whole_ms(start), time_ms(python_pass, 1, warm_up=0)[0]


def python_pass() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True)


@contextmanager
def busy_core() -> Iterator[None]:
    """Context manager in which another process keeps one core busy."""
    burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        burner.kill()
        burner.wait()


def rows(starts: list[Start], peers: list[Start], absence: str, batches: list[float]) -> list[Row]:
    """Return the rows of our submits and of Ray's (`peers`). Goals apply to the time from the answer; the
    comparison with Ray uses the whole time from the request. `absence`: why Ray was not measured, "" if it was;
    `batches`: ms per job of batch requests."""
    running = [1000 * (start.ran - start.answered) for start in starts]
    whole = [whole_ms(start) for start in starts]
    theirs = [whole_ms(peer) for peer in peers]
    answered = [1000 * (start.answered - start.asked) for start in starts]
    return [
        Row("submit answered to process running, p50", "<= 100 ms", "ms", running, limit=100),
        Row("submit answered to process running, p95", "<= 250 ms", "ms", running, limit=250, quantile=0.95),
        Row("submit asked to answered, p50", "-", "ms", answered),
        Row(
            f"{BATCH_JOBS} jobs in one request, asked to answered, each",
            "<= 1/5 of one by one",
            "ms",
            batches,
            peer="a request each",
            peer_samples=answered,
            ratio_limit=0.2,
        ),
        Row(
            "submit asked to process running, p50",
            "<= 1/5 of Ray",
            "ms",
            whole,
            peer="Ray jobs API" if peers else f"Ray: {absence}",
            peer_samples=theirs,
            ratio_limit=0.2,
        ),
    ]


def measure(submit: Submit, name: str, stamps: Path) -> Start:
    """Submit a job that writes the time to the file `name` in `stamps`, wait for the file, and return the three
    times."""
    stamp = stamps / name
    asked = time.time()
    submit(name, f"date +%s.%N > {stamp}.part && mv {stamp}.part {stamp}")
    answered = time.time()
    wait_until(stamp.exists, timeout=60, what=f"{name} to run")
    return Start(asked, answered, float(stamp.read_text()))


def measure_batch(ours: Ours, number: int) -> float:
    """Return the milliseconds per job of a request that submits BATCH_JOBS. `number`: makes their names unique."""
    began = time.perf_counter()
    ours.submit_waiting([f"batch-{number}-{place}" for place in range(BATCH_JOBS)])
    return 1000 * (time.perf_counter() - began) / BATCH_JOBS


@contextmanager
def our_server(state_dir: Path) -> Iterator[Ours]:
    """Context manager with a control plane that has one project, whose jobs request one GPU each. The context
    manager, and the functions that it yields, raise RuntimeError if the server refuses a request."""
    with servers.control_plane(state_dir) as running:
        status, answer = running.call("POST", "/api/v1/projects", {"name": "bench", "gpu_quota": 16})
        if status != 201:
            raise RuntimeError(f"the project was not created: {answer}")

        def job(name: str, command: str) -> dict[str, object]:
            return {"name": name, "kind": "train", "gpus": 1, "command": ["/bin/sh", "-c", command]}

        def send(path: str, body: dict[str, object]) -> None:
            status, answer = running.call("POST", f"/api/v1/projects/bench/{path}", body)
            if status != 201:
                raise RuntimeError(f"what was submitted was not accepted: {answer}")

        def submit_waiting(names: list[str]) -> None:
            send("jobs/batch", {"jobs": [job(name, "true") | {"node_pool": "nowhere"} for name in names]})

        yield Ours(lambda name, command: send("jobs", job(name, command)), submit_waiting)


@contextmanager
def ray_server(directory: Path) -> Iterator[tuple[Submit | None, str]]:
    """Context manager: run a one-node Ray with its jobs API. Yields (submit, ""), or (None, the reason)."""
    ray, absence = install_ray()
    if ray is None:
        print(f"Ray is not compared: {absence}")
        yield None, absence
        return
    port = servers.free_port()
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": str(directory)}
    options = ["--head", "--num-cpus=2", "--include-dashboard=true", f"--dashboard-port={port}"]
    options += [f"--port={servers.free_port()}", f"--temp-dir={directory / 'ray'}", "--disable-usage-stats"]
    log = (directory / "ray.log").open("wb")
    server = subprocess.Popen([ray, "start", "--block", *options], env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}/api/jobs/"
        wait_until(lambda: takes_jobs(address), timeout=120, what="Ray's jobs API")
        yield lambda name, command: post(address, {"submission_id": name, "entrypoint": command}), ""
    finally:
        server.terminate()
        server.wait(30)
        log.close()


def install_ray() -> tuple[str | None, str]:
    """Return (path of Ray's command, ""), or (None, the reason); installs Ray on first use."""
    home = CACHE / RAY
    program = home / "bin" / "ray"
    uv = shutil.which("uv")
    if not program.exists():
        if uv is None:
            return None, "there is no uv to install it with"
        steps = (
            [uv, "venv", "-q", "-p", "3.11", str(home)],
            [uv, "pip", "install", "-q", "-p", str(home), RAY],
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return None, f"{RAY} could not be installed ({done.stderr.strip().splitlines()[-1:]})"
    return str(program), ""


def takes_jobs(address: str) -> bool:
    """Return whether a job is accepted: the API answers 500 for a while after its port opens."""
    try:
        return bool(post(address, {"entrypoint": "true"}))
    except OSError:
        return False


def post(address: str, body: dict[str, str]) -> bytes:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: bytes = answer.read()
        return content


if __name__ == "__main__":
    main()
