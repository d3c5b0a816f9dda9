"""DECIDE: hands the view to the pure scheduler and times it, nothing else."""

import time

from controlplane.scheduling.cycle import decide as decide_purely
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import ClusterView


def decide(view: ClusterView) -> tuple[Plan, float]:
    """Return the plan for a view and the milliseconds that deciding took."""
    began = time.perf_counter()
    plan = decide_purely(view)
    return plan, (time.perf_counter() - began) * 1000
