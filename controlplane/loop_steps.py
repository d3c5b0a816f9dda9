"""The control plane's own periodic work."""

from controlplane.loop.steps import LoopStep
from controlplane.telemetry.rollup import roll_up

STEPS = (LoopStep("rollup", roll_up, every_seconds=60),)
