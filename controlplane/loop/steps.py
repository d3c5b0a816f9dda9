"""Periodic work that apps declare as `STEPS` in their module `loop_steps`. A step must be short and safe to
repeat.

Work that takes more than a second or two belongs in a command; a step may write one.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from controlplane.loop.claims import claim, is_fresh, release
from controlplane.registration import app_modules

logger = logging.getLogger(__name__)

LEASE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class LoopStep:
    """Work to do about once per period, by the first of several loops that claims it."""

    name: str
    run: Callable[[datetime], object]
    every_seconds: float


@cache
def declared_steps() -> Sequence[LoopStep]:
    """Return the steps of all apps."""
    return [step for module in app_modules("loop_steps") for step in module.STEPS]


class StepRunner:
    """Runs the due steps. Called by one thread."""

    def __init__(self) -> None:
        self._ran_at = {step.name: time.monotonic() for step in declared_steps()}

    def run_due(self, now: datetime) -> None:
        """Run the steps that are due. A failure is logged, and the step runs again at its next period."""
        for step in declared_steps():
            if time.monotonic() - self._ran_at[step.name] >= step.every_seconds:
                self._ran_at[step.name] = time.monotonic()
                _run(step, now)


def _run(step: LoopStep, now: datetime) -> None:
    lease = f"step:{step.name}"
    if is_fresh(lease, step.every_seconds / 2):
        return
    token = claim(lease, LEASE_SECONDS)
    if token is None:
        return
    is_complete = False
    try:
        step.run(now)
        is_complete = True
    except Exception:
        logger.exception("the loop's step %s failed; it runs again in %g s", step.name, step.every_seconds)
    finally:
        release(lease, token, is_complete=is_complete)
