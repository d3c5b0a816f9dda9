"""Divide the samples of each epoch among workers, whose number may change from one step to the next, and count
the epochs in which every sample was used exactly once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

CONSTANT_GLOBAL_BATCH = "constant_global_batch"
LINEAR_LEARNING_RATE = "linear_learning_rate"
POLICIES = (CONSTANT_GLOBAL_BATCH, LINEAR_LEARNING_RATE)
RAMP_STEPS = 20

# 2**64 / golden ratio as a signed number: multiplying by it spreads neighbouring indexes over all bits.
_GOLDEN = -7046029254386353131


@dataclass(frozen=True, slots=True)
class Policy:
    """How batch size and learning rate depend on the number of workers. `batch_size`: the batch of one worker if
    there are `reference_workers`, in samples.

    `constant_global_batch`: the workers divide the same global batch; the learning rate is constant.
    `linear_learning_rate`: each worker keeps its batch; the learning rate grows with the global batch, over
    RAMP_STEPS steps after a switch.
    """

    batch_size: int
    reference_workers: int = 1
    name: str = CONSTANT_GLOBAL_BATCH

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise ValueError(f"{self.name!r} is not one of {', '.join(POLICIES)}.")
        if self.batch_size < 1 or self.reference_workers < 1:
            raise ValueError("batch_size and reference_workers must be 1 or more.")

    def global_batch(self, workers: int) -> int:
        """Return the number of samples in one step, over all `workers`."""
        return self.batch_size * (self.reference_workers if self.name == CONSTANT_GLOBAL_BATCH else workers)

    def learning_rate_factor(self, workers: int, before: int, steps_since_switch: int) -> float:
        """Return the factor by which to multiply the configured learning rate: 1 with a constant global batch, else
        workers / reference_workers. After a switch from `before` workers, `steps_since_switch` steps ago, it changes
        linearly over RAMP_STEPS steps."""
        if self.name == CONSTANT_GLOBAL_BATCH:
            return 1.0
        ramp = min(1.0, (steps_since_switch + 1) / RAMP_STEPS)
        return (before + (workers - before) * ramp) / self.reference_workers


@dataclass(slots=True)
class Epochs:
    """The position of a run in its data: the same on all workers after every step. `samples`: in the data set;
    `position`: in the present epoch. `seen` and `digest` are computed from the samples that workers really trained
    on, independently of `position`. `done`: completed epochs, of which `exact` used every sample exactly once."""

    samples: int
    epochs: int
    seed: int = 0
    epoch: int = 0
    position: int = 0
    seen: int = 0
    digest: int = 0
    done: int = 0
    exact: int = 0
    _order: tuple[int, Tensor] | None = field(default=None, repr=False)

    @property
    def is_over(self) -> bool:
        return self.epoch >= self.epochs

    def share(self, rank: int, workers: int, global_batch: int) -> Tensor:
        """Return the sample indexes of this worker's part of the next step of `global_batch` samples. Parts differ
        by at most one sample, and may be empty at the end of an epoch."""
        batch = self._epoch_order()[self.position : self.position + global_batch]
        return batch[rank::workers]

    def advance(self, seen: int, digest: int, global_batch: int) -> None:
        """Move on by a step of `global_batch` samples. `seen`: the number of samples that all workers together
        trained on; `digest`: the sum of their `digest_of`."""
        self.position += global_batch
        self.seen += seen
        self.digest = _wrapped(self.digest + digest)
        if self.position >= self.samples:
            self._close_epoch()

    def state(self) -> dict[str, int]:
        """Return the state from which a joining worker, or a checkpoint, continues; see `load`."""
        names = ("epoch", "position", "seen", "digest", "done", "exact")
        return {name: getattr(self, name) for name in names}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the values that `state` returned, from another worker or a checkpoint."""
        for name, value in state.items():
            setattr(self, name, int(value))

    def _close_epoch(self) -> None:
        self.done += 1
        self.exact += self.seen == self.samples and self.digest == digest_of(torch.arange(self.samples))
        self.epoch, self.position, self.seen, self.digest = self.epoch + 1, 0, 0, 0

    def _epoch_order(self) -> Tensor:
        if self._order is None or self._order[0] != self.epoch:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            self._order = (self.epoch, torch.randperm(self.samples, generator=generator))
        return self._order[1]


def digest_of(indexes: Tensor) -> int:
    """Return a 64-bit digest of the sample `indexes`, independent of their order: the sum of their hashes. Two
    different multisets of the same size practically never have equal digests."""
    mixed = (indexes.long() + 1) * _GOLDEN
    mixed = (mixed ^ (mixed >> 29)) * _GOLDEN
    return int((mixed ^ (mixed >> 32)).sum())


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63
