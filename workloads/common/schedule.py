"""Factors for the learning rate over a training: warm-up, then a fall to nearly nothing at the last step."""

from __future__ import annotations

import math

WARM_UP_STEPS = 20
POWER = 0.9
LEAST = 1e-6


def polynomial(step: int, total_steps: int) -> float:
    """(1 - progress) ** 0.9, after a warm-up."""
    return max(LEAST, math.pow(1 - step / max(1, total_steps), POWER)) * _warm_up(step, total_steps)


def cosine(step: int, total_steps: int) -> float:
    """Half a cosine, after a warm-up."""
    return max(LEAST, (1 + math.cos(math.pi * step / max(1, total_steps))) / 2) * _warm_up(step, total_steps)


def _warm_up(step: int, total_steps: int) -> float:
    """Short trainings warm up over half of their steps: with less, lane detection diverges on a few small batches."""
    return min(1.0, (step + 1) / max(1, min(WARM_UP_STEPS, total_steps // 2)))
