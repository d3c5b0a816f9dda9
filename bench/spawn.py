"""Time from the start of a pod on the local engine until its command runs, beside this machine's floors in the same
run.

A pod's command is one process after the Python process of its shim, so `python -c pass` is the floor for comparison;
a bare subprocess is printed too. Run: python -m bench.spawn
"""

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from bench.harness import Row, report
from controlplane.engines.base import DeviceShare, PodReport, PodSpec, pod_name
from controlplane.engines.local.engine import LocalEngine
from tests.waiting import wait_until

REPEATS, WARM_UP = 40, 3
SETTINGS = {"nodes": {"node": {"devices": 8, "memory_mib": 32768}}}


def main() -> None:
    """Measure pods and floors in turn, so that other load affects all of them alike; report."""
    starts: list[float] = []
    ends: list[float] = []
    pythons: list[float] = []
    bare: list[float] = []
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        engine = LocalEngine(SETTINGS, Path(directory))
        for number in range(WARM_UP + REPEATS):
            started, ended = pod(engine, Path(directory) / f"stamp-{number}")
            samples = (started, ended, timed(python_pass), timed(true))
            if number >= WARM_UP:
                for kept, sample in zip((starts, ends, pythons, bare), samples, strict=True):
                    kept.append(sample)
    report("spawn", rows(starts, ends, pythons, bare))


def rows(starts: list[float], ends: list[float], pythons: list[float], bare: list[float]) -> list[Row]:
    return [
        Row(
            "engine.start until the command runs",
            "<= 2.5x python -c pass",
            "ms",
            starts,
            peer="python -c pass",
            peer_samples=pythons,
            ratio_limit=2.5,
        ),
        Row(
            "the same, p95",
            "<= 4x python -c pass, p95",
            "ms",
            starts,
            quantile=0.95,
            peer="python -c pass",
            peer_samples=pythons,
            ratio_limit=4,
        ),
        Row("subprocess floor (true)", "-", "ms", bare),
        Row("end of the command until it is recorded", "<= 50 ms", "ms", ends, limit=50),
    ]


def pod(engine: LocalEngine, stamp: Path) -> tuple[float, float]:
    """Start a pod that writes the time to the file `stamp`. Return the milliseconds from the start call until its
    command runs, and from the command's end to the engine's report of it."""
    job_id = str(uuid.uuid4())
    spec = PodSpec(
        name=pod_name(job_id, 1, 0),
        job_id=job_id,
        job_name="bench",
        project="bench",
        attempt=1,
        rank=0,
        node="node",
        command=("/bin/sh", "-c", f"date +%s.%N > {stamp}.part; mv {stamp}.part {stamp}"),
        devices=(DeviceShare(0, 1000, 32768),),
    )
    asked = time.time()
    engine.start(spec)
    wait_until(stamp.exists, what="the command")
    ran = float(stamp.read_text())

    def final() -> PodReport | None:
        return next((found for found in engine.pods() if found.is_proven_gone), None)

    ended = wait_until(final, what="the end")
    assert ended is not None
    assert ended.finished_at is not None
    engine.forget(spec.name)
    return (ran - asked) * 1000, (ended.finished_at.timestamp() - ran) * 1000


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def python_pass() -> None:
    subprocess.run([sys.executable, "-c", "pass"], check=True, env={"PATH": os.defpath})


def true() -> None:
    subprocess.run(["/bin/true"], check=True)


if __name__ == "__main__":
    main()
