"""The quickstart: a real training, small enough for one core, that uses all features of a job."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

from workloads.common import checkpoint
from workloads.common.devices import DeviceUse, take_device
from workloads.common.distributed import joined_ranks
from workloads.common.finite import check_loss
from workloads.common.finite_weights import check_weights
from workloads.common.optimizers import PlainAdamW
from workloads.common.progress import REPORT_EVERY_SECONDS, report
from workloads.common.quiesce import answering
from workloads.common.rank_info import RankInfo
from workloads.common.stopping import EXIT_CODE, StopRequest
from workloads.quickstart.settings import HELD_OUT, Settings

SEED = 1797
MODEL = "quickstart"


@dataclass(frozen=True, slots=True)
class Digits:
    """Images as (n, 1, 8, 8) floats from 0 to 1, and their digits as (n,) integers."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


class DigitNet(nn.Module):
    """Two convolutions and two dense layers: (n, 1, 8, 8) -> (n, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 4 * 4, 128),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(128, 10),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.layers(pictures)
        return logits


class Training:
    """The state of one run, and how to save and resume it."""

    def __init__(self, settings: Settings, data: Digits, use: DeviceUse, rank_info: RankInfo) -> None:
        torch.manual_seed(SEED)
        self.settings, self.checkpoints = settings, checkpoint.checkpoint_dir()
        self.use, self.rank_info = use, rank_info
        self.data = Digits(
            *(t.to(use.device) for t in (data.train_x, data.train_y, data.test_x, data.test_y))
        )
        self.net = DigitNet().to(use.device)
        self.optimizer = PlainAdamW(self.net.parameters(), lr=settings.learning_rate)
        self.steps_per_epoch = -(-len(data.train_y) // settings.batch_size)
        self.total_steps = self.steps_per_epoch * settings.epochs
        self.step = 0
        self.accuracy = 0.0

    def resume(self) -> bool:
        """Resume from the newest checkpoint, which the first worker reads for all. Return False if there is none.
        Raises OtherModel on every worker if it belongs to another model."""
        read = checkpoint.load_for_all(self.checkpoints, MODEL, self.rank_info)
        if read is None:
            return False
        self.step, state = read
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.accuracy = float(state["accuracy"])
        return True

    def save(self) -> Path:
        state = {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "accuracy": self.accuracy,
        }
        return checkpoint.save(self.checkpoints, self.step, state, MODEL)

    def run(self, stop: StopRequest) -> int:
        """Train to the end, or to the step after SIGTERM, which `stop` notes. Return 0, or 143 after SIGTERM.
        Raises LossNotFinite if a loss or a weight is NaN or infinite."""
        pace = _Pace(self)
        for batch in self._batches():
            loss, is_asked = self._train_step(batch, stop)
            check_loss(loss, self.step)
            is_epoch_end = self.step % self.steps_per_epoch == 0
            if is_epoch_end or is_asked:
                check_weights(self.net, self.step)
            if is_epoch_end and self.rank_info.is_first:
                self.accuracy = self._test()
                self.save()
            if is_asked and self.step < self.total_steps:
                if self.rank_info.is_first:
                    print(f"stopping: saved {self.save().name}", flush=True)
                return EXIT_CODE
            if self.rank_info.is_first:
                pace.report(loss, is_due=self.step == self.total_steps)
        if self.rank_info.is_first:
            print(f"done: accuracy {self.accuracy:.4f} on {HELD_OUT} held out pictures", flush=True)
        return 0

    def _batches(self) -> Iterator[Tensor]:
        """Yield the sample indexes of each remaining batch, in an order that depends only on seed and epoch."""
        while self.step < self.total_steps:
            epoch, position = divmod(self.step, self.steps_per_epoch)
            generator = torch.Generator().manual_seed(SEED + epoch)
            order = torch.randperm(len(self.data.train_y), generator=generator)
            size = self.settings.batch_size
            yield from (order[at : at + size] for at in range(position * size, len(order), size))

    def _train_step(self, batch: Tensor, stop: StopRequest) -> tuple[float, bool]:
        """Train on this worker's part of a batch. Return the loss over all workers, and whether any of them
        was asked to stop."""
        self.net.train()
        mine = batch.to(self.use.device)[self.rank_info.rank :: self.rank_info.world_size]
        pictures, digits = _shifted(self.data.train_x[mine]), self.data.train_y[mine]
        loss = nn.functional.cross_entropy(self.net(pictures), digits, reduction="sum") / len(batch)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self._sum_over_workers([one.grad for one in self.net.parameters() if one.grad is not None])
        self.optimizer.step()
        self.step += 1
        sums = torch.stack([loss.detach(), loss.new_tensor(float(bool(stop)))])
        self._sum_over_workers([sums])
        return float(sums[0]), bool(sums[1])

    def _sum_over_workers(self, tensors: Sequence[Tensor]) -> None:
        if self.rank_info.world_size > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)

    @torch.no_grad()
    def _test(self) -> float:
        self.net.eval()
        guesses = self.net(self.data.test_x).argmax(dim=1)
        return float((guesses == self.data.test_y).float().mean())


class _Pace:
    """When a progress line is due, and the seconds per step since the last one."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._at, self._step = time.monotonic(), training.step

    def report(self, loss: float, is_due: bool) -> None:
        training, now = self._training, time.monotonic()
        if not is_due and now - self._at < REPORT_EVERY_SECONDS:
            return
        seconds_per_step = (now - self._at) / max(1, training.step - self._step)
        self._at, self._step = now, training.step
        report(
            epoch=(training.step - 1) // training.steps_per_epoch + 1,
            epochs=training.settings.epochs,
            step=training.step,
            total_steps=training.total_steps,
            seconds_per_step=seconds_per_step,
            gpu_utilization=training.use.utilization(),
            gpu_memory_mib=training.use.memory_mib(),
            loss=loss,
            accuracy=training.accuracy,
            samples_per_second=training.settings.batch_size / seconds_per_step,
            workers=training.rank_info.world_size,
        )


def train(settings: Settings) -> int:
    """Train as one rank of a job, or alone. Return the exit code: 0, 143 after SIGTERM, or 1, after a message, if
    the checkpoint cannot be used."""
    stop = StopRequest()
    use = take_device()
    with joined_ranks(use.device) as rank_info:
        training = Training(settings, load_digits(), use, rank_info)
        try:
            start = "resumed" if training.resume() else "started"
        except checkpoint.CheckpointRefused as refusal:
            print(refusal, flush=True)
            return 1
        if rank_info.is_first:
            print(f"{start} at step {training.step} of {training.total_steps} on {use.device}", flush=True)
        with answering(rank_info.is_first):
            return training.run(stop)


def load_digits() -> Digits:
    """Return scikit-learn's digits, shuffled with a fixed seed; the last HELD_OUT are for testing. Raises
    ModuleNotFoundError if scikit-learn is not installed."""
    rows = _rows()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED))
    pictures = rows[order, :-1].reshape(-1, 1, 8, 8) / 16
    digits = rows[order, -1].long()
    return Digits(pictures[:-HELD_OUT], digits[:-HELD_OUT], pictures[-HELD_OUT:], digits[-HELD_OUT:])


def _rows() -> Tensor:
    """Return scikit-learn's file of digits: (1797, 65), 64 pixels of 0 to 16 and the digit. Raises
    ModuleNotFoundError if scikit-learn is not installed."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("scikit-learn, which brings the digits, is not installed.")
    # Importing it to read one file would take half as long as importing torch.
    file = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(file, "rt") as lines:
        return torch.tensor([[float(number) for number in line.split(",")] for line in lines])


def _shifted(pictures: Tensor) -> Tensor:
    """Return the images of a batch shifted together by a random offset of up to one pixel in both directions, so
    that the network does not memorise positions."""
    down, right = (int(shift) for shift in torch.randint(-1, 2, (2,)))
    return torch.roll(pictures, (down, right), dims=(2, 3))
