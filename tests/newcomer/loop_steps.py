"""Registers a step of the loop."""

from controlplane.loop.steps import LoopStep

STEPS = (LoopStep("newcomer-aging", lambda now: None, every_seconds=60),)
