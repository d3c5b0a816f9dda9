"""End a training whose loss is no number: what follows would be saved, reported and called done."""

from __future__ import annotations

import math


class LossNotFinite(SystemExit):
    """Ends the program with exit code 1 and its text on standard error; an MPI launcher notes the text as the rank's
    failure."""


def check_loss(loss: float, step: int) -> None:
    """Raise LossNotFinite unless a step's loss is a number. `step`: completed steps, this one included. Every rank must
    check the same value, so that all end here and none waits for the others."""
    if not math.isfinite(loss):
        raise not_finite(f"loss is {loss}", step)


def not_finite(what: str, step: int) -> LossNotFinite:
    """Return the error of a step whose loss or gradients are no numbers."""
    return LossNotFinite(
        f"LossNotFinite: at step {step} the {what}. The weights are lost; checkpoints of earlier steps are kept."
        " Use a lower LEARNING_RATE or a larger BATCH_SIZE, and look at the samples of that step."
    )
