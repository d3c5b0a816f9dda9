"""The user's settings, and the number of workers that the job has resources for. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workloads.common.settings import Settings as Parser
from workloads.common.settings import positive

HELD_OUT, TRAINED = 297, 1500  # pictures


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's settings, described in docs/howto/first-job.md. `workers`: processes that share each batch."""

    epochs: int
    batch_size: int
    learning_rate: float
    workers: int = 1


def read_settings(arguments: Sequence[str] | None) -> Settings:
    """Return the settings; arguments take precedence over the environment. Ends the program with a message
    for an invalid value."""
    parser = Parser(prog="train.py", description="Train on handwritten digits.")
    parser.add("epochs", "80", positive)
    parser.add("batch-size", "64", positive)
    parser.add("learning-rate", "0.001", float)
    parser.add("workers", "1", positive)
    options = parser.parse_args(arguments)
    if options.batch_size < options.workers or 0 < TRAINED % options.batch_size < options.workers:
        parser.error(
            f"argument --batch-size: a batch must have a picture for each of {options.workers} workers"
        )
    most, what = most_workers(os.environ)
    if options.workers > most:
        parser.error(f"argument --workers: {options.workers} workers need as many {what}; there are {most}")
    return Settings(options.epochs, options.batch_size, options.learning_rate, options.workers)


def most_workers(env: Mapping[str, str]) -> tuple[int, str]:
    """Return the largest number of workers that this process may start, and the plural noun of what limits it:
    the job's GPUs, else the cores."""
    gpus = env.get("TRAINYARD_GPU_DEVICES", "")
    if gpus:
        return len(gpus.split(",")), "GPUs in the job"
    return len(os.sched_getaffinity(0)), "cores of this machine"
