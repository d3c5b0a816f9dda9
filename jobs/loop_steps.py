"""The periodic work of jobs, declared for the loop (see controlplane.loop.steps)."""

from controlplane.loop.steps import LoopStep
from jobs.allocation import record_allocation
from jobs.change_list import forget_changes

STEPS = (
    LoopStep("allocation", record_allocation, every_seconds=60),
    LoopStep("job_changes", forget_changes, every_seconds=60),
)
