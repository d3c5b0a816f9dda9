"""Small programs for tests of trainings, and a function that runs another on several ranks of a process group."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.utils.data import Dataset

from workloads.common.rank_info import RankInfo
from workloads.common.training import Batch

DIE_WITH_PARENT = 1  # prctl's PR_SET_PDEATHSIG


class Numbers(Dataset[tuple[Tensor, Tensor]]):
    """A dataset of points on the line y = 2x; `read`: the indexes that were read."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.read: list[int] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(index)
        return torch.tensor([float(index) / self._count]), torch.tensor([2.0 * index / self._count])


class Line:
    """A Program (workloads.common.training) that learns y = 2x."""

    def __init__(self, rank_info: RankInfo, samples: int = 12, model: str = "line") -> None:
        torch.manual_seed(0)
        self.model = model
        self.net: nn.Module = nn.Linear(1, 1)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.data = Numbers(samples)

    def loss(self, net: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = nn.functional.mse_loss(net(batch[0]), batch[1])
        return loss, torch.zeros(())

    def learning_rate(self, step: int, total_steps: int, ranks: int) -> float:
        return 0.1

    def validate(self, rank_info: RankInfo, device: torch.device) -> float | None:
        return None


def run_ranks(
    folder: Path, count: int, work: Callable[[int], Any], *, is_store_hosted: bool = False
) -> list[Any]:
    """Fork `count` ranks and return what `work` returned on each, which must be JSON values. The calling process
    must have no threads. `is_store_hosted`: a further process has the store, as torchrun's agent does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    host = _host(port) if is_store_hosted else 0
    pids = []
    for rank in range(count):
        pid = os.fork()
        if pid == 0:
            env = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "MASTER_PORT": port}
            env |= {"TORCHELASTIC_USE_AGENT_STORE": is_store_hosted}
            os.environ.update({name: str(value) for name, value in env.items()})
            _run(folder / f"{rank}.json", lambda rank=rank: work(rank))
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    if host:
        os.kill(host, signal.SIGKILL)
        os.waitpid(host, 0)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def _host(port: int) -> int:
    """Fork the process that has the store; return its pid."""
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        kept = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        signal.pause()
        del kept
    return pid


def _run(file: Path, work: Callable[[], Any]) -> None:
    """Write the result of `work` to `file` as JSON and end the process; never returns."""
    try:
        file.write_text(json.dumps(work()))
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
