"""Kueue's own performance scenario through `decide`: 15,000 workloads of 30 queues in 5 cohorts, in real time.

Run: python -m bench.kueue [--large]. A cohort is a department with one node as large as its quotas, since Kueue divides
quotas and places nothing. The clock advances by the CPU time of each cycle and, if there is nothing to decide, to the
next submission or end, so that other programs on the machine do not count. Kueue's figures are published and include
writes to an API server; ours are the scheduler's core alone, without a database.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import NamedTuple

from bench.harness import Row, report
from bench.traces import GARBAGE_THRESHOLDS
from controlplane.scheduling.course import requeued, started
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import (
    ClusterView,
    DepartmentView,
    DeviceView,
    JobView,
    NodeView,
    ProjectView,
)

COHORTS, QUOTA, BORROWED = 5, 20, 100


class Workloads(NamedTuple):
    """A class of workloads: `jobs` of each queue with `units` GPUs and `seconds` run time, submitted every `every`
    seconds."""

    name: str
    jobs: int
    units: int
    seconds: float
    every: float
    priority: int


class Scenario(NamedTuple):
    """One of Kueue's configurations. `published`: Kueue's seconds; `limit`: our goal in seconds."""

    name: str
    queues: int
    classes: tuple[Workloads, ...]
    published: float
    limit: float


BASE = Scenario(
    "Kueue's generator, 15,000 workloads",
    30,
    (
        Workloads("small", 350, 1, 0.2, 0.1, 50),
        Workloads("medium", 100, 5, 0.5, 0.5, 100),
        Workloads("large", 50, 20, 1.0, 1.2, 200),
    ),
    351,
    90,
)
LARGE = Scenario(
    "Kueue's large generator, 50,000 workloads",
    1000,
    (
        Workloads("small", 35, 1, 0.15, 0.1, 50),
        Workloads("medium", 11, 5, 0.35, 0.5, 100),
        Workloads("large", 4, 20, 0.7, 1.2, 200),
    ),
    1179,
    60,
)


class Submission(NamedTuple):
    """A workload: the time of its submission, its class and run time, and its queued job."""

    at: float
    name: str
    seconds: float
    job: JobView


@dataclass(slots=True)
class Run:
    """Results of a run; times in seconds. `seconds`: from the first submission to the last end; `longest_cycle`: CPU
    time; `admitted`: waits until the first start, by class."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    cycles: int = 0
    longest_cycle: float = 0.0
    preemptions: int = 0
    admitted: dict[str, list[float]] = field(default_factory=dict)


def main() -> None:
    """Run the scenario and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="50,000 workloads of 1,000 queues in 10 cohorts")
    options = parser.parse_args()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    scenario = LARGE if options.large else BASE
    run = play(scenario)
    waits = ", ".join(f"{name} {mean(found):.2f} s" for name, found in sorted(run.admitted.items()))
    note = (
        f"{run.cycles} cycles, the longest {run.longest_cycle * 1000:.0f} ms, {run.cpu_seconds:.1f} s of CPU;"
        f" {run.preemptions} preemptions; mean wait: {waits}; the core alone"
    )
    jobs = sum(one.jobs for one in scenario.classes) * scenario.queues
    report(
        "kueue",
        [
            Row(f"{scenario.name}, submitted to all finished", f"<= {scenario.limit:g} s", "s", [run.seconds],
                limit=scenario.limit, peer="Kueue, published, with an API server",
                peer_samples=[scenario.published], note=note),
            Row("the same, admitted", "-", "/s", [jobs / run.seconds], peer="Kueue, published",
                peer_samples=[jobs / scenario.published]),
        ],
    )  # fmt: skip


def play(scenario: Scenario) -> Run:
    """Run a scenario: submit, decide and finish until no workload is left. Return the results."""
    return _Play(scenario).run()


class _Play:
    """The running and queued workloads of one run, and its results so far."""

    def __init__(self, scenario: Scenario) -> None:
        self._arrivals = submissions(scenario)
        self._known = {one.job.id: one for one in self._arrivals}
        self._view = empty(scenario)
        self._scheduler = Scheduler()
        self._queued: dict[str, JobView] = {}
        self._active: dict[str, JobView] = {}
        self._starts: dict[str, int] = {}
        # (time, job id, number of the job's start): an end whose number is no longer the job's in `_starts`
        # is of a run that was preempted.
        self._ends: list[tuple[float, str, int]] = []
        self._run = Run()

    def run(self) -> Run:
        """Play the scenario until no workload is left. Return the measurements of the whole run."""
        now, at = 0.0, 0
        while at < len(self._arrivals) or self._ends:
            began = time.process_time()
            while at < len(self._arrivals) and self._arrivals[at].at <= now:
                job = self._arrivals[at].job
                self._queued[job.id], at = job, at + 1
            self._finish(now)
            is_more = bool(self._queued) and self._decide(now)
            spent = time.process_time() - began
            self._run.cpu_seconds += spent
            now += spent
            due = [self._arrivals[at].at] if at < len(self._arrivals) else []
            due += [self._ends[0][0]] if self._ends else []
            if due and not is_more:
                now = max(now, min(due))
        self._run.seconds = now
        return self._run

    def _finish(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, name, start = heapq.heappop(self._ends)
            if name in self._active and self._starts[name] == start:
                del self._active[name]

    def _decide(self, now: float) -> bool:
        """Run one cycle; return whether another is needed at once, because the plan preempted jobs."""
        began = time.process_time()
        jobs = (*self._active.values(), *self._queued.values())
        plan = self._scheduler.decide(replace(self._view, now=int(now), jobs=jobs))
        self._run.longest_cycle = max(self._run.longest_cycle, time.process_time() - began)
        self._run.cycles += 1
        self._apply(plan, now)
        return bool(plan.preempts)

    def _apply(self, plan: Plan, now: float) -> None:
        self._run.preemptions += len(plan.preempts)
        for taken in plan.preempts:
            job = self._active.pop(taken.job)
            self._queued[job.id] = requeued(job, (taken.beneficiary, taken.beneficiary_project), self._view)
        for start in plan.starts:
            known = self._known[start.job]
            if start.job not in self._starts:
                self._run.admitted.setdefault(known.name, []).append(now - known.at)
            count = self._starts[start.job] = self._starts.get(start.job, 0) + 1
            self._active[start.job] = started(self._queued.pop(start.job), start.placements, int(now))
            heapq.heappush(self._ends, (now + known.seconds, start.job, count))
        for name, job in self._queued.items():
            promised = plan.promised.get(name, ())
            if promised != job.promised:
                self._queued[name] = replace(job, promised=promised)


def submissions(scenario: Scenario) -> Sequence[Submission]:
    """Return the workloads of all queues of a scenario, in order of submission."""
    cohorts = _cohorts(scenario)
    found = [
        (number * kind.every, queue, place, kind)
        for queue in range(scenario.queues)
        for place, kind in enumerate(scenario.classes)
        for number in range(1, kind.jobs + 1)
    ]
    found.sort(key=lambda one: one[:3])
    return [
        Submission(at, kind.name, kind.seconds, JobView(
            f"w{rank:05}", f"queue-{queue:03}", rank, priority=kind.priority, milli_gpus=kind.units * 1000,
            milli_cpus=1, memory_mib=1, node_pool=f"cohort-{queue % cohorts}",
        ))
        for rank, (at, queue, _, kind) in enumerate(found)
    ]  # fmt: skip


def empty(scenario: Scenario) -> ClusterView:
    """Return the cluster of a scenario without workloads: one node for the quotas of each cohort."""
    cohorts = _cohorts(scenario)
    quota = QUOTA * scenario.queues // cohorts
    devices = tuple(DeviceView(index, 1024) for index in range(quota))
    names = [f"cohort-{place}" for place in range(cohorts)]
    nodes = tuple(NodeView(name, name, devices, 1_000_000, 1_000_000) for name in names)
    departments = tuple(
        DepartmentView(name, quota * 1000, quota, created_rank=rank) for rank, name in enumerate(names)
    )
    projects = tuple(
        ProjectView(
            f"queue-{queue:03}", QUOTA * 1000, QUOTA, (QUOTA + BORROWED) * 1000, created_rank=queue,
            department=f"cohort-{queue % cohorts}",
        )
        for queue in range(scenario.queues)
    )  # fmt: skip
    return ClusterView("kueue", 0, nodes, projects, departments)


def _cohorts(scenario: Scenario) -> int:
    return COHORTS if scenario.queues < 100 else 2 * COHORTS


if __name__ == "__main__":
    main()
