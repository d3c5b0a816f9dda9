"""The periodic work of the control plane itself, declared for the loop (see controlplane.loop.steps)."""

from controlplane.loop.steps import LoopStep
from controlplane.telemetry.rollup import roll_up

STEPS = (LoopStep("rollup", roll_up, every_seconds=60),)
