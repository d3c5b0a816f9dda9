"""The quickstart: a real training, small enough for one core, that shows everything a job can show."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from workloads.common import checkpoint
from workloads.common.devices import DeviceUse, take_device
from workloads.common.progress import report
from workloads.common.stopping import EXIT_CODE, StopRequest

REPORT_EVERY_SECONDS = 1.0
HELD_OUT = 297  # of 1,797 pictures
SEED = 1797


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user may choose."""

    epochs: int
    batch_size: int
    learning_rate: float
    checkpoints: Path


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures as (n, 1, 8, 8) floats from 0 to 1 and their digits as (n,) integers."""

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

    def __init__(self, settings: Settings, data: Digits, use: DeviceUse) -> None:
        torch.manual_seed(SEED)
        self.settings = settings
        self.use = use
        self.data = Digits(
            *(t.to(use.device) for t in (data.train_x, data.train_y, data.test_x, data.test_y))
        )
        self.net = DigitNet().to(use.device)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=settings.learning_rate)
        self.steps_per_epoch = -(-len(data.train_y) // settings.batch_size)
        self.total_steps = self.steps_per_epoch * settings.epochs
        self.step = 0
        self.accuracy = 0.0

    def resume(self) -> bool:
        """Go on from the newest checkpoint; False when there is none."""
        found = checkpoint.load_latest(self.settings.checkpoints)
        if found is None:
            return False
        self.step, state = found
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
        return checkpoint.save(self.settings.checkpoints, self.step, state)

    def run(self, stop: StopRequest) -> int:
        """Train to the end, or to the step after a stop was asked for. The exit code."""
        pace = _Pace(self)
        for batch in self._batches():
            loss = self._train_step(batch)
            is_epoch_end = self.step % self.steps_per_epoch == 0
            if is_epoch_end:
                self.accuracy = self._test()
                self.save()
            if stop and self.step < self.total_steps:
                print(f"stopping: saved {self.save().name}", flush=True)
                return EXIT_CODE
            pace.report(loss, is_due=self.step == self.total_steps)
        print(f"done: accuracy {self.accuracy:.4f} on {HELD_OUT} held out pictures", flush=True)
        return 0

    def _batches(self) -> Iterator[Tensor]:
        """Yield indexes of what is left to train, in an order that depends on seed and epoch alone."""
        while self.step < self.total_steps:
            epoch, position = divmod(self.step, self.steps_per_epoch)
            generator = torch.Generator().manual_seed(SEED + epoch)
            order = torch.randperm(len(self.data.train_y), generator=generator)
            size = self.settings.batch_size
            yield from (order[at : at + size] for at in range(position * size, len(order), size))

    def _train_step(self, batch: Tensor) -> float:
        self.net.train()
        batch = batch.to(self.use.device)
        loss = nn.functional.cross_entropy(
            self.net(_shifted(self.data.train_x[batch])), self.data.train_y[batch]
        )
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.step += 1
        return float(loss.item())

    @torch.no_grad()
    def _test(self) -> float:
        self.net.eval()
        guesses = self.net(self.data.test_x).argmax(dim=1)
        return float((guesses == self.data.test_y).float().mean())


class _Pace:
    """Progress lines at a steady rhythm, with the pace since the last one."""

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
        )


def main(arguments: Sequence[str] | None = None) -> int:
    settings = read_settings(arguments)
    stop = StopRequest()
    use = take_device()
    training = Training(settings, load_digits(), use)
    start = "resumed" if training.resume() else "started"
    print(f"{start} at step {training.step} of {training.total_steps} on {use.device}", flush=True)
    return training.run(stop)


def read_settings(arguments: Sequence[str] | None) -> Settings:
    """Arguments win over the environment. Ends the program with words on a bad value."""
    parser = argparse.ArgumentParser(prog="train.py", description="Train on handwritten digits.")
    env = os.environ
    parser.add_argument("--epochs", type=_positive, default=env.get("EPOCHS", "80"))
    parser.add_argument("--batch-size", type=_positive, default=env.get("BATCH_SIZE", "64"))
    parser.add_argument("--learning-rate", type=float, default=env.get("LEARNING_RATE", "0.001"))
    options = parser.parse_args(arguments)
    return Settings(options.epochs, options.batch_size, options.learning_rate, checkpoint.checkpoint_dir())


def load_digits() -> Digits:
    """Return the digits of scikit-learn, shuffled once, the last HELD_OUT for testing."""
    from sklearn.datasets import load_digits as load

    bunch = load()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(SEED))
    pictures = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1)[order] / 16
    digits = torch.tensor(bunch.target, dtype=torch.long)[order]
    return Digits(pictures[:-HELD_OUT], digits[:-HELD_OUT], pictures[-HELD_OUT:], digits[-HELD_OUT:])


def _shifted(pictures: Tensor) -> Tensor:
    """Each batch moved by up to a pixel, so that the network does not learn places by heart."""
    down, right = (int(shift) for shift in torch.randint(-1, 2, (2,)))
    return torch.roll(pictures, (down, right), dims=(2, 3))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
