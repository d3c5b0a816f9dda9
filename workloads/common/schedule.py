"""Learning rate factors over a training: warm-up, then a decrease to nearly 0 at the last step."""

from __future__ import annotations

import math

WARM_UP_STEPS = 20
POWER = 0.9
LEAST = 1e-6


def polynomial(step: int, total_steps: int) -> float:
    """Return the factor of `step` (from 0): (1 - step / total_steps) ** 0.9, after a warm-up."""
    return max(LEAST, math.pow(1 - step / max(1, total_steps), POWER)) * _warm_up(step, total_steps)


def cosine(step: int, total_steps: int) -> float:
    """Return the factor of `step` (from 0): a half cosine from 1 to 0 over `total_steps`, after a warm-up."""
    return max(LEAST, (1 + math.cos(math.pi * step / max(1, total_steps))) / 2) * _warm_up(step, total_steps)


def _warm_up(step: int, total_steps: int) -> float:
    """Return the warm-up factor, up to 1. Short trainings warm up over half of their steps: with fewer, lane
    detection diverges on a few small batches."""
    return min(1.0, (step + 1) / max(1, min(WARM_UP_STEPS, total_steps // 2)))
