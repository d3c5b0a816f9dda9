"""Reasons for the waits of a replay's gangs, sampled once per hour of virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from bench.trace_replay import TraceJob
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import ClusterView

LOOK_SECONDS = 3600
LEAST_GPUS = 16


class GangReasons:
    """Counts the hours for which each waiting gang had each reason; `on_plan` is a hook of the replay."""

    def __init__(self) -> None:
        self.hours: dict[str, Counter[str]] = {}
        self._next_look = 0

    def on_plan(self, view: ClusterView, plan: Plan) -> None:
        """Count the reasons of the plan's waiting gangs if an hour of virtual time has passed since the last
        count: explaining them costs more than a decision."""
        if view.now < self._next_look:
            return
        self._next_look = view.now + LOOK_SECONDS
        gangs = {job.id for job in view.jobs if job.milli_gpus * job.pods >= LEAST_GPUS * 1000}
        for hold in plan.holds:
            if hold.job in gangs:
                has_reservation = "reserved" in hold.details
                reason = f"{hold.reason}, has the reservation" if has_reservation else hold.reason
                self.hours.setdefault(hold.job, Counter())[reason] += 1

    def lines(self, jobs: Iterable[TraceJob], most: int) -> Iterator[str]:
        """Yield a line for each of the `most` gangs that waited longest."""
        gangs = sorted((job for job in jobs if job.gpus >= LEAST_GPUS), key=lambda job: -job.wait)
        for job in gangs[:most]:
            reasons = ", ".join(f"{reason} {hours} h" for reason, hours in self._of(job).most_common())
            yield (
                f"{job.id} {job.project}: {job.gpus} GPUs, submitted on day {job.submitted / 86_400:.2f}, runs for"
                f" {job.seconds} s, waited {job.wait} s: {reasons or 'never looked at'}"
            )

    def _of(self, job: TraceJob) -> Counter[str]:
        return self.hours.get(job.id, Counter())
