"""The periodic work of jobs, declared for the loop (see controlplane.loop.steps)."""

from controlplane.loop.steps import LoopStep
from jobs.allocation import record_allocation

STEPS = (LoopStep("allocation", record_allocation, every_seconds=60),)
