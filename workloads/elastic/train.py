"""Train a small network for some minutes on a number of workers that may change at any step.

Settings are arguments or variables: EPOCHS, SAMPLES, BATCH_SIZE (of one worker), POLICY
(constant_global_batch or linear_learning_rate), LEARNING_RATE, WORK_MS (simulated GPU time of a sample, so
that more workers are faster even if they share a CPU), CHECKPOINT_STEPS (0: only when stopped).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workloads.common import checkpoint
from workloads.common.devices import take_device
from workloads.common.elastic import Step, World
from workloads.common.optimizers import PlainSGD
from workloads.common.progress import REPORT_EVERY_SECONDS, report
from workloads.common.quiesce import answering
from workloads.common.sampling import CONSTANT_GLOBAL_BATCH, POLICIES, Epochs, Policy
from workloads.common.stopping import EXIT_CODE

FEATURES, HIDDEN, CLASSES = 32, 64, 8
SEED = 1414
MODEL = "elastic"


@dataclass(frozen=True, slots=True)
class Settings:
    """The user's settings. `policy`: how batch and learning rate follow the number of workers (POLICIES); `work_ms`:
    the simulated work per sample, in milliseconds; `checkpoints`: the directory."""

    epochs: int
    samples: int
    batch_size: int
    policy: str
    learning_rate: float
    work_ms: float
    checkpoint_steps: int
    checkpoints: Path


class Replica:
    """Weights and optimizer, equal on all workers."""

    def __init__(self, learning_rate: float, device: torch.device) -> None:
        torch.manual_seed(SEED)
        layers = nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        self.net = nn.Sequential(*layers).to(device)
        self.optimizer = PlainSGD(self.net.parameters(), lr=learning_rate, momentum=0.9)

    def state(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])


class Training:
    """One worker's part of the training."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._use = take_device()
        self._replica = Replica(settings.learning_rate, self._use.device)
        self._epochs = Epochs(settings.samples, settings.epochs, SEED)
        self._inputs, self._labels = (part.to(self._use.device) for part in _samples(settings.samples))
        self._started_at, self._reported_at, self._reported_step = 0.0, 0.0, 0

    def run(self) -> int:
        """Train until the end, a stop, or until this worker is no longer a member. Return the exit code: 0, 143
        after SIGTERM, or 1, after a message, if the checkpoint cannot be used."""
        settings = self._settings
        try:
            first_step, workers = self._resume()
        except checkpoint.CheckpointRefused as refusal:
            print(refusal, flush=True)
            return 1
        policy = Policy(settings.batch_size, workers, settings.policy)
        with World.joined(self._use.device, self._replica, self._epochs, policy, first_step) as world:
            self._started_at, self._reported_step = time.monotonic(), world.step
            for step in world.steps():
                self._save_if_due(world)
                loss = self._train(step)
                if step.is_complete:
                    self._note(world, step, loss)
            if world.is_stopped:
                return self._stopped(world)
        return 0 if self._epochs.is_over or not world.is_asked_to_stop else EXIT_CODE

    def _train(self, step: Step) -> float:
        indexes = step.indexes.to(self._use.device)
        time.sleep(self._settings.work_ms * len(indexes) / 1000)
        self._replica.optimizer.zero_grad()
        loss = torch.zeros((), device=self._use.device)
        if len(indexes):
            loss = nn.functional.cross_entropy(
                self._replica.net(self._inputs[indexes]), self._labels[indexes]
            )
            torch.autograd.backward(loss)
        if step.average(self._replica.net.parameters()):
            for group in self._replica.optimizer.param_groups:
                group["lr"] = self._settings.learning_rate * step.learning_rate_factor
            self._replica.optimizer.step()
        return float(loss.detach())

    def _save_if_due(self, world: World) -> None:
        every = self._settings.checkpoint_steps
        if every and world.is_first and world.step and world.step % every == 0:
            self._save(world)

    def _note(self, world: World, step: Step, loss: float) -> None:
        now = time.monotonic()
        if not world.is_first or now - self._reported_at < REPORT_EVERY_SECONDS:
            return
        since = self._reported_at or self._started_at
        seconds_per_step = (now - since) / max(1, step.number - self._reported_step)
        self._reported_at, self._reported_step = now, step.number
        batch = world.policy.global_batch(world.size)
        steps_per_epoch = -(-self._settings.samples // batch)
        left = steps_per_epoch * (self._settings.epochs - self._epochs.epoch)
        report(
            epoch=min(self._epochs.epoch + 1, self._settings.epochs),
            epochs=self._settings.epochs,
            step=step.number,
            total_steps=step.number + max(0, left - self._epochs.position // batch),
            seconds_per_step=seconds_per_step,
            gpu_utilization=self._use.utilization(),
            gpu_memory_mib=self._use.memory_mib(),
            loss=loss,
            workers=world.size,
            at=time.time(),
            generation=world.generation,
            samples_per_second=batch / seconds_per_step,
            epochs_exact=self._epochs.exact,
        )

    def _resume(self) -> tuple[int, int]:
        """Load the newest checkpoint, if there is one. Return (completed steps, reference workers); batch size and
        learning rate refer to the number of workers of the first attempt, whatever the current one is."""
        workers = int(os.environ.get("TRAINYARD_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
        found = checkpoint.load_latest(self._settings.checkpoints, MODEL)
        if found is None:
            return 0, workers
        step, state = found
        self._replica.load(state["replica"])
        self._epochs.load(state["epochs"])
        print(f"resumed at step {step}", flush=True)
        return step, int(state.get("reference_workers", workers))

    def _save(self, world: World) -> None:
        state = {
            "replica": self._replica.state(),
            "epochs": self._epochs.state(),
            "reference_workers": world.policy.reference_workers,
        }
        checkpoint.save(self._settings.checkpoints, world.step, state, MODEL)

    def _stopped(self, world: World) -> int:
        if world.is_first:
            self._save(world)
            print(f"stopping: saved step {world.step}", flush=True)
        return EXIT_CODE


def main(arguments: Sequence[str] | None = None) -> int:
    with answering():
        return Training(read_settings(arguments)).run()


def read_settings(arguments: Sequence[str] | None) -> Settings:
    """Return the settings; arguments take precedence over the environment. Ends the program with a message
    for an invalid value."""
    parser = argparse.ArgumentParser(prog="workloads.elastic.train", description="Elastic training.")
    env = os.environ
    parser.add_argument("--epochs", type=int, default=env.get("EPOCHS", "40"))
    parser.add_argument("--samples", type=int, default=env.get("SAMPLES", "4096"))
    parser.add_argument("--batch-size", type=int, default=env.get("BATCH_SIZE", "16"))
    parser.add_argument("--policy", choices=POLICIES, default=env.get("POLICY", CONSTANT_GLOBAL_BATCH))
    parser.add_argument("--learning-rate", type=float, default=env.get("LEARNING_RATE", "0.02"))
    parser.add_argument("--work-ms", type=float, default=env.get("WORK_MS", "4"))
    parser.add_argument("--checkpoint-steps", type=int, default=env.get("CHECKPOINT_STEPS", "100"))
    options = parser.parse_args(arguments)
    return Settings(**vars(options), checkpoints=checkpoint.shared_dir())


def _samples(count: int) -> tuple[Tensor, Tensor]:
    """Return `count` random points and their classes, which a fixed random network computes."""
    generator = torch.Generator().manual_seed(SEED)
    inputs = torch.randn(count, FEATURES, generator=generator)
    teacher = torch.randn(FEATURES, CLASSES, generator=generator)
    return inputs, (inputs @ teacher).argmax(dim=1)


if __name__ == "__main__":
    raise SystemExit(main())
