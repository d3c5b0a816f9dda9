"""End a training whose loss is NaN or infinite, instead of saving and reporting useless results."""

from __future__ import annotations

import math


class LossNotFinite(SystemExit):
    """Ends the program with exit code 1 and the message on standard error; an MPI launcher records the
    message as the rank's failure."""


def check_loss(loss: float, step: int) -> None:
    """Raise LossNotFinite if a step's loss is NaN or infinite. `step`: completed steps, including this one.
    All ranks must check the same value, so that all end here and none waits for the others."""
    if not math.isfinite(loss):
        raise not_finite(f"loss is {loss}", step)


def not_finite(what: str, step: int) -> LossNotFinite:
    """Return the error for a step whose values are not finite. `what`: a clause for the message, such as "loss is
    nan"."""
    return LossNotFinite(
        f"LossNotFinite: at step {step} the {what}. The weights are lost; checkpoints of earlier steps are kept."
        " Use a lower LEARNING_RATE or a larger BATCH_SIZE, and look at the samples of that step."
    )
