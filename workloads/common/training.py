"""Train a network on a fixed number of ranks: data-parallel, resumable at any step, stopped by SIGTERM.

`train(make, plan)` joins the ranks and runs the loop; a `Program` defines what differs between workloads.
Every rank takes an equal part of each step's samples, in an order that depends only on seed and epoch;
samples at the end of an epoch that do not fill a step are omitted. Rank 0 writes checkpoints and progress
lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from workloads.common import checkpoint
from workloads.common.allreduce_time import AllReduceTime
from workloads.common.devices import DeviceUse, take_device
from workloads.common.distributed import joined_ranks
from workloads.common.finite import check_loss
from workloads.common.finite_weights import check_weights
from workloads.common.progress import REPORT_EVERY_SECONDS, report
from workloads.common.quiesce import answering
from workloads.common.rank_info import RankInfo
from workloads.common.records import BadRecord, NoData, TooManyBadRecords
from workloads.common.stopping import EXIT_CODE, StopRequest, ignore_in_loader

SEED = 2021

Batch = Sequence[Tensor]


class Program(Protocol):
    """The parts that differ between workloads. `model`: name of network and size, stored in checkpoints."""

    model: str
    net: nn.Module
    optimizer: torch.optim.Optimizer
    data: Dataset[Any]

    def loss(self, net: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return loss and accuracy (0 to 1) of a batch."""

    def learning_rate(self, step: int, total_steps: int, ranks: int) -> float:
        """Return the learning rate of a step, counted from 0, of a training of `total_steps` on this number of
        ranks."""

    def validate(self, rank_info: RankInfo, device: torch.device) -> float | None:
        """Return the accuracy (0 to 1) on the validation data, which the ranks share; None if there is none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Length and batches of a training. `batch_size`: samples per step of one rank. `checkpoints`: the checkpoint
    directory. `loaders`: the number of processes that read data, 0 for none. `checkpoint_steps`: completed steps
    between checkpoints, 0 for checkpoints at the end of epochs only."""

    epochs: int
    batch_size: int
    checkpoints: Path
    loaders: int = 0
    checkpoint_steps: int = 0


@dataclass(slots=True)
class Position:
    """Position of a training: completed steps, completed epochs, and samples used in the current epoch."""

    step: int = 0
    epoch: int = 0
    samples: int = 0


def train(make: Callable[[RankInfo], Program], plan: Plan) -> int:
    """Train the Program that `make` returns on all ranks of this job. Return the exit code: 0, 143 after SIGTERM,
    or 1, after a message, if its data or a checkpoint cannot be used."""
    stop = StopRequest()
    use = take_device()
    try:
        with joined_ranks(use.device) as rank_info:
            training = Training(make(rank_info), plan, use, rank_info)
            training.resume()
            with answering(rank_info.is_first):
                return training.run(stop)
    except (NoData, BadRecord, TooManyBadRecords, checkpoint.CheckpointRefused) as error:
        print(error, flush=True)
        return 1


class Training:
    """One rank's part of a training. Creating it raises ValueError if the samples do not fill one step of all ranks."""

    def __init__(self, program: Program, plan: Plan, use: DeviceUse, rank_info: RankInfo) -> None:
        torch.manual_seed(SEED + rank_info.rank)
        self._program, self._plan, self._use, self._rank_info = program, plan, use, rank_info
        self._samples = len(cast(Sized, program.data))
        ranks, self._global_batch = rank_info.world_size, plan.batch_size * rank_info.world_size
        if self._samples < self._global_batch:
            raise ValueError(
                f"{self._samples} samples do not fill a step of {ranks} ranks with {plan.batch_size} each."
            )
        program.net.to(use.device)
        self.at = Position()
        self._accuracy: float | None = None
        self._saved_step = -1
        self._allreduce = AllReduceTime(use.device)
        self._is_bf16 = use.device.type == "cuda" and torch.cuda.is_bf16_supported()

    def resume(self) -> None:
        """Resume from the newest checkpoint, which rank 0 reads for all ranks; do nothing if there is none.
        Raises OtherModel on every rank if it belongs to another model."""
        found = checkpoint.load_for_all(self._plan.checkpoints, self._program.model, self._rank_info)
        if found is None:
            return
        step, state = found
        self.at = Position(step, int(state["epoch"]), int(state["samples"]))
        if self.at.samples + self._global_batch > self._samples:
            # If ranks, batches or data have changed, the rest of the epoch may not fill a step.
            self.at = Position(step, self.at.epoch + 1)
        self._accuracy, self._saved_step = state["accuracy"], step
        self._program.net.load_state_dict(state["net"])
        self._program.optimizer.load_state_dict(state["optimizer"])

    def run(self, stop: StopRequest) -> int:
        """Train to the end, or to the step after any rank received SIGTERM. Return 0, or 143 after SIGTERM.
        Raises LossNotFinite if a loss or a weight is NaN or infinite."""
        start = "resumed" if self.at.step else "started"
        self._print(
            f"{start} at step {self.at.step} of {self.total_steps()} on {self._use.device}, {self._ranks}"
        )
        net = self._parallel()
        pace = _Pace(self.at.step)
        while self.at.epoch < self._plan.epochs:
            for batch in self._batches():
                loss, accuracy, is_asked = self._step(net, batch, stop)
                check_loss(loss, self.at.step + 1)
                self._advance()
                is_over = self.at.epoch >= self._plan.epochs
                if is_asked and not is_over:
                    self._save()
                    self._print(f"stopping: saved step {self.at.step}")
                    return EXIT_CODE
                self._report(pace, loss, accuracy, is_due=is_over)
        words = "" if self._accuracy is None else f", validated accuracy {self._accuracy:.4f}"
        self._print(f"done: {self.at.step} steps{words}")
        return 0

    def total_steps(self) -> int:
        """Return the number of steps of the whole training: those completed, and those left with this number
        of ranks."""
        per_epoch = self._samples // self._global_batch
        left = (self._plan.epochs - self.at.epoch) * per_epoch - self.at.samples // self._global_batch
        return self.at.step + max(0, left)

    @property
    def _ranks(self) -> str:
        return f"{self._rank_info.world_size} rank{'s' if self._rank_info.world_size > 1 else ''}"

    def _parallel(self) -> nn.Module:
        if self._rank_info.world_size == 1:
            return self._program.net
        device_ids = [self._use.device.index] if self._use.device.type == "cuda" else None
        # Batch norm statistics are averaged before they are used, so they need not be sent at every step.
        net = DistributedDataParallel(
            self._program.net, device_ids=device_ids, forward_sync_buffers=False, gradient_as_bucket_view=True
        )
        self._allreduce.watch(net)
        return net

    def _batches(self) -> Iterator[Batch]:
        """Yield this rank's batches of the samples that remain in the epoch."""
        # The same order in every run, so that a resumed training continues in the middle of an epoch.
        generator = torch.Generator().manual_seed(SEED + self.at.epoch)
        order = torch.randperm(self._samples, generator=generator).tolist()
        starts = range(self.at.samples, self._samples - self._global_batch + 1, self._global_batch)
        mine = [
            order[at + self._rank_info.rank : at + self._global_batch : self._rank_info.world_size]
            for at in starts
        ]
        is_cuda = self._use.device.type == "cuda"
        loader = DataLoader(
            self._program.data,
            batch_sampler=mine,
            num_workers=self._plan.loaders,
            pin_memory=is_cuda,
            worker_init_fn=ignore_in_loader,
        )
        for batch in loader:
            yield [part.to(self._use.device, non_blocking=True) for part in batch]

    def _step(self, net: nn.Module, batch: Batch, stop: StopRequest) -> tuple[float, float, bool]:
        """Train on one batch and update the weights. A collective call: every rank must make it. Return the means of
        loss and accuracy over all ranks, and whether any rank was asked to stop."""
        program = self._program
        net.train()
        for group in program.optimizer.param_groups:
            group["lr"] = program.learning_rate(self.at.step, self.total_steps(), self._rank_info.world_size)
        program.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._use.device.type, torch.bfloat16, enabled=self._is_bf16):
            loss, accuracy = program.loss(net, batch)
        torch.autograd.backward(loss)
        program.optimizer.step()
        # One call for all three values, since each costs a round trip. The stop request is shared, so that
        # all ranks end after the same step: the others would wait for one that has ended.
        sums = torch.stack([loss.detach(), accuracy.detach(), loss.new_tensor(float(bool(stop)))]).float()
        distributed.all_reduce(sums)
        mean_loss, mean_accuracy, asked = sums.tolist()
        return mean_loss / self._rank_info.world_size, mean_accuracy / self._rank_info.world_size, asked > 0

    def _advance(self) -> None:
        """Count a completed step. At the end of an epoch validate and save a checkpoint, else save one if it is due."""
        at = self.at
        at.step, at.samples = at.step + 1, at.samples + self._global_batch
        if at.samples + self._global_batch > self._samples:
            at.epoch, at.samples = at.epoch + 1, 0
            self._validate()
            self._save()
        elif self._plan.checkpoint_steps and at.step % self._plan.checkpoint_steps == 0:
            self._save()

    def _validate(self) -> None:
        self._average_statistics()
        self._program.net.eval()
        with torch.no_grad():
            self._accuracy = self._program.validate(self._rank_info, self._use.device)

    def _average_statistics(self) -> None:
        for buffer in self._program.net.buffers():
            if buffer.is_floating_point():
                distributed.all_reduce(buffer)
                buffer /= self._rank_info.world_size

    def _save(self) -> None:
        """Write this step's checkpoint on rank 0, unless it exists. Raises LossNotFinite on all ranks if a weight is
        NaN or infinite."""
        check_weights(self._program.net, self.at.step)
        if not self._rank_info.is_first or self._saved_step == self.at.step:
            return
        program, at = self._program, self.at
        state = {
            "net": program.net.state_dict(),
            "optimizer": program.optimizer.state_dict(),
            "epoch": at.epoch,
            "samples": at.samples,
            "accuracy": self._accuracy,
        }
        checkpoint.save(self._plan.checkpoints, at.step, state, program.model)
        self._saved_step = at.step

    def _report(self, pace: _Pace, loss: float, accuracy: float, *, is_due: bool) -> None:
        allreduce_seconds = pace.add(self._allreduce.take_seconds())
        seconds_per_step = pace.seconds_per_step(self.at.step, is_due=is_due)
        if seconds_per_step is None or not self._rank_info.is_first:
            return
        workers = self._rank_info.world_size
        share = {} if workers == 1 else {"allreduce_share": min(1.0, allreduce_seconds / pace.seconds)}
        report(
            epoch=min(self.at.epoch + 1, self._plan.epochs),
            epochs=self._plan.epochs,
            step=self.at.step,
            total_steps=self.total_steps(),
            seconds_per_step=seconds_per_step,
            gpu_utilization=self._use.utilization(),
            gpu_memory_mib=self._use.memory_mib(),
            loss=loss,
            accuracy=accuracy if self._accuracy is None else self._accuracy,
            samples_per_second=self._global_batch / seconds_per_step,
            workers=workers,
            **share,
        )

    def _print(self, text: str) -> None:
        if self._rank_info.is_first:
            print(text, flush=True)


class _Pace:
    """Decides when a progress line is due, and measures the steps since the last one."""

    def __init__(self, step: int) -> None:
        self._at, self._step, self._allreduce = time.monotonic(), step, 0.0
        self._is_next_new = False
        self.seconds = 0.0

    def add(self, allreduce_seconds: float) -> float:
        """Add the seconds of a step's all-reduces; return their sum since the last progress line."""
        if self._is_next_new:
            self._allreduce, self._is_next_new = 0.0, False
        self._allreduce += allreduce_seconds
        return self._allreduce

    def seconds_per_step(self, step: int, *, is_due: bool) -> float | None:
        """Return the seconds per step since the last progress line, None if no line is due. `is_due`: one is due in
        any case, even if the last is recent."""
        now = time.monotonic()
        if step == self._step or (not is_due and now - self._at < REPORT_EVERY_SECONDS):
            return None
        self.seconds = max(now - self._at, 1e-9)
        per_step = self.seconds / (step - self._step)
        self._at, self._step, self._is_next_new = now, step, True
        return per_step
