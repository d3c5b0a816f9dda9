"""Runs of several ranks for test_training.py and test_allreduce.py; prints the results as JSON. A process of its
own, since ranks are forked from it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  the first optimizer imports it, in 2 s: here once for all ranks

from tests.waiting import slowness
from tests.workloads.ranks import Line, run_ranks
from workloads.allreduce import sweep
from workloads.common.checkpoint import OtherModel
from workloads.common.devices import take_device
from workloads.common.distributed import RanksMissing, joined_ranks
from workloads.common.stopping import StopRequest
from workloads.common.training import Plan, Training

EPOCHS = 2


def trained(folder: Path) -> dict[str, Any]:
    """Train EPOCHS epochs of 12 samples as one of the ranks, 3 samples a step. Return this rank's exit code,
    weights, indexes of read samples, and last step."""
    use = take_device()
    with joined_ranks(use.device) as rank_info:
        program = Line(rank_info)
        training = Training(program, Plan(EPOCHS, 3, folder / "checkpoints"), use, rank_info)
        training.resume()
        code = training.run(StopRequest())
        weights = [
            value for tensor in program.net.state_dict().values() for value in tensor.flatten().tolist()
        ]
        return {"code": code, "weights": weights, "read": program.data.read, "step": training.at.step}


def alone(rank: int) -> str:
    """Join ranks of which rank 1 is missing; return the error's text."""
    if rank == 1:
        return ""
    os.environ["JOIN_SECONDS"] = str(0.2 * slowness())
    try:
        with joined_ranks(take_device().device):
            return "joined"
    except RanksMissing as error:
        return str(error)


def of_another_model(folder: Path) -> str:
    """The checkpoints of `trained`, read by a program with another model."""
    use = take_device()
    with joined_ranks(use.device) as rank_info:
        program = Line(rank_info, model="curve")
        training = Training(program, Plan(EPOCHS, 3, folder / "checkpoints"), use, rank_info)
        try:
            training.resume()
        except OtherModel as error:
            return str(error)
    return "resumed"


def swept() -> list[str]:
    """Return what the all-reduce sweep prints on this rank, line by line, then its exit code."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = sweep.main(["--json", "--to", "64B"])
    return [*printed.getvalue().splitlines(), f"exit code {code}"]


def main(folder: Path) -> None:
    story = {
        "trained": run_ranks(folder, 2, lambda _rank: trained(folder)),
        "of_another_model": run_ranks(folder, 2, lambda _rank: of_another_model(folder)),
        "swept": run_ranks(folder, 3, lambda _rank: swept(), is_store_hosted=True),
        "alone": run_ranks(folder, 3, lambda rank: alone(1 if rank == 2 else rank)),
    }
    sys.stdout.write(json.dumps(story) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
