"""Report a job's progress: one JSON line on standard output per call.

The job page, `yard describe` and the API show the last line; simulated GPUs take their utilisation from it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The shortest time between two reports of a training loop, so that fast steps do not fill the log.
REPORT_EVERY_SECONDS = 1.0
# The newest checkpoint that this process saved or loaded, because every report names it.
_checkpoint: dict[str, int] = {}


class Meter:
    """Measures this process's own use between two readings, reported as `gpu_utilization` on a machine
    without GPU.

    The CPU does the work of a simulated GPU: utilisation is the process's CPU time per second and available
    CPU, memory is the process's resident memory.
    """

    def __init__(self, cpus: int = 1) -> None:
        self._cpus = max(1, cpus)
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def utilization(self) -> float:
        """Return the utilisation, 0 to 1, since the last call or the start."""
        wall, cpu = time.monotonic(), time.process_time()
        elapsed, used = wall - self._wall, cpu - self._cpu
        self._wall, self._cpu = wall, cpu
        return round(min(1.0, used / (elapsed * self._cpus)), 3) if elapsed > 0 else 0.0

    @staticmethod
    def memory_mib() -> int:
        """Return the resident memory of this process in MiB."""
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return resident_pages * os.sysconf("SC_PAGE_SIZE") // (1024 * 1024)


def report(
    *,
    epoch: int,
    epochs: int,
    step: int,
    total_steps: int,
    seconds_per_step: float,
    gpu_utilization: float | None = None,
    gpu_memory_mib: int | None = None,
    **metrics: float,
) -> None:
    """Print one progress line. `step` counts from 1 over all epochs to `total_steps`; `seconds_per_step` gives
    the remaining time. `gpu_utilization`: 0 to 1, since the last line; None: not reported, as for
    `gpu_memory_mib`. `metrics`: values such as loss and accuracy."""
    fields = {
        "trainyard": 1,
        "epoch": epoch,
        "epochs": epochs,
        "step": step,
        "total_steps": total_steps,
        "eta_seconds": round((total_steps - step) * seconds_per_step, 1),
        **{name: round(value, 5) for name, value in metrics.items()},
        "seconds_per_step": round(seconds_per_step, 6),
        "gpu_utilization": gpu_utilization,
        "gpu_memory_mib": gpu_memory_mib,
        **_checkpoint,
    }
    _print({name: value for name, value in fields.items() if value is not None})


def report_checkpoint(step: int, at: float) -> None:
    """Print a progress line that a checkpoint of `step` completed steps was saved `at` a time (Unix seconds);
    later progress lines repeat both."""
    _checkpoint.update(checkpoint_at=int(at), checkpoint_step=step)
    _print({"trainyard": 1, **_checkpoint})


def _print(fields: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()
