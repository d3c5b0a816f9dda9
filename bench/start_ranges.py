"""The share of jobs that start inside the estimated range that was shown when they began to wait, on the ITP replay.

Run: python -m bench.start_ranges [--days 28] [--every 100] [--only declared|learned]. Ranges are computed once with the
run times that the trace declares, and once with run times learned from the jobs that had ended by then, which the
scheduler then uses too. The peer is the naive range: from now until twice the median wait so far. A range costs seconds
if hundreds of jobs wait, so only every n-th job gets one; the two replays run side by side.
"""

from __future__ import annotations

import argparse
import gc
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from bench.harness import Row, report
from bench.trace_replay import Replay, TraceJob
from bench.traces import (
    DAY,
    DEVICES,
    GARBAGE_THRESHOLDS,
    NODES,
    TRACES,
    quotas_by_gpu_hours,
    read_jobs,
    with_policies,
)
from controlplane.scheduling.estimates import LearnedRunTimes, start_range
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.run_times import Run, RunTimes
from controlplane.scheduling.view import ClusterView, DeviceView, NodeView, ProjectView

# As many of the last ended jobs as a server learns run times from.
HISTORY = 5000
# Run times are learned anew only after as many more jobs have ended, because it is slow.
RENEWED_EVERY = 50
NAIVE = "from now to twice the median wait so far"


@dataclass(slots=True)
class Ranges:
    """Estimates start ranges for every n-th job (`every`) that begins to wait in one replay, with learned run
    times if `is_learned`. `judged`: the jobs with a range; `naive`: the end of their naive range, by job;
    `open_ended`: how many got none; `ended`, `waits`: run times and waits of ended jobs."""

    every: int
    is_learned: bool
    waiting: int = 0
    open_ended: int = 0
    judged: list[TraceJob] = field(default_factory=list)
    naive: dict[str, int] = field(default_factory=dict)
    ended: deque[Run] = field(default_factory=lambda: deque(maxlen=HISTORY))
    waits: list[int] = field(default_factory=list)
    known: RunTimes | None = None
    finished: int = 0
    known_at: int = 0

    def on_queue(self, view: ClusterView, job: TraceJob) -> None:
        """Store a range for the job, which begins to wait in `view`, if it is an n-th one."""
        self.waiting += 1
        if self.waiting % self.every:
            return
        found = start_range(view, job.id, learned=self._learned(view) if self.is_learned else None)
        if found is None or found.latest is None:
            self.open_ended += 1
            return
        job.estimate = found.earliest, found.latest
        self.judged.append(job)
        self.naive[job.id] = view.now + 2 * int(median(self.waits or [0]))

    def on_submit(self, job: TraceJob) -> None:
        """Give the scheduler the run time learned up to the job's submission."""
        if self.is_learned:
            found = self._known().learned(_run_of(job))
            job.expected = None if found is None else found.expected

    def on_finish(self, job: TraceJob) -> None:
        """Add an ended job to the history."""
        self.ended.appendleft(_run_of(job)._replace(seconds=job.seconds))
        self.finished += 1
        if job.wait > 0:
            self.waits.append(job.wait)

    def _known(self) -> RunTimes:
        """Return the run times learned from ended jobs, renewed after every RENEWED_EVERY of them."""
        if self.known is None or self.finished - self.known_at >= RENEWED_EVERY:
            self.known, self.known_at = RunTimes(self.ended), self.finished
        return self.known

    def _learned(self, view: ClusterView) -> LearnedRunTimes:
        known = self._known()
        learned = LearnedRunTimes(early := {}, expected := {}, late := {})
        for job in view.jobs:
            found = known.learned(Run(job.project, "", "", job.milli_gpus * job.pods // 1000))
            if found is not None:
                early[job.id], expected[job.id], late[job.id] = found.early, found.expected, found.late
        return learned


def main() -> None:
    """Replay with declared and with learned run times, and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=28)
    parser.add_argument("--every", type=int, default=100, help="every n-th job that waits has a range")
    parser.add_argument("--only", choices=("declared", "learned"))
    options = parser.parse_args()
    sources = [False, True] if options.only is None else [options.only == "learned"]
    with ProcessPoolExecutor(len(sources)) as pool:
        report("start_ranges", list(pool.map(partial(_measure, options), sources)))


def _run_of(job: TraceJob) -> Run:
    return Run(job.project, "", "", job.gpus)


def _measure(options: argparse.Namespace, is_learned: bool) -> Row:
    trace = read_jobs(TRACES / "itp" / "itp_jobs.csv")
    quotas = quotas_by_gpu_hours(trace, NODES * DEVICES)
    # A declared run time would be used instead of the learned one, which is to be measured.
    jobs = [
        replace(job, expected=None if is_learned else job.expected)
        for job in trace
        if job.submitted < options.days * DAY
    ]
    ranges = Ranges(options.every, is_learned)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    _replay(jobs, quotas, ranges)
    inside = [_is_inside(job, job.estimate) for job in ranges.judged]
    naive = [_is_inside(job, (job.submitted, ranges.naive[job.id])) for job in ranges.judged]
    source = "learned from earlier jobs" if is_learned else "declared"
    widths = sorted(late - early for early, late in (job.estimate or (0, 0) for job in ranges.judged))
    note = (
        f"{len(inside)} of {ranges.waiting} jobs that waited; {ranges.open_ended} without a late end;"
        f" median width {median(widths or [0]):.0f} s"
    )
    return Row(
        f"ITP replay, first {options.days:g} days: started inside the range, run times {source}", ">= 80 %", "%",
        [_percent(inside)], limit=80, at_least=True, peer=NAIVE, peer_samples=[_percent(naive)], note=note,
    )  # fmt: skip


def _replay(jobs: Sequence[TraceJob], quotas: dict[str, int], ranges: Ranges) -> None:
    devices = tuple(DeviceView(index, 32_768) for index in range(DEVICES))
    nodes = tuple(NodeView(f"n{at:03}", "default", devices, 1_000_000, 1_000_000) for at in range(NODES))
    projects = tuple(
        ProjectView(name, quota * 1000, quota * 1000, created_rank=rank)
        for rank, (name, quota) in enumerate(sorted(quotas.items()))
    )
    Replay(
        nodes, projects, Scheduler().decide, prepare=with_policies, on_queue=ranges.on_queue,
        on_finish=ranges.on_finish, on_submit=ranges.on_submit,
    ).run(jobs)  # fmt: skip


def _is_inside(job: TraceJob, shown: tuple[int, int] | None) -> bool:
    assert shown is not None
    assert job.first_start is not None
    return shown[0] <= job.first_start <= shown[1]


def _percent(found: Sequence[bool]) -> float:
    return 100 * sum(found) / max(1, len(found))


if __name__ == "__main__":
    main()
