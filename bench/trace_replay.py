"""Drive a scheduler through a list of jobs in virtual time: no database, no clock, no processes.

A preempted job continues from its last checkpoint and pays RESTART_SECONDS when it starts again. Preempted capacity is
free at once, so that the next cycle of the same second starts the job for which it was freed.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from controlplane.scheduling.course import requeued, started
from controlplane.scheduling.order import rank_at
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import ClusterView, JobView, NodeView, ProjectView

CHECKPOINT_SECONDS = 1800
RESTART_SECONDS = 120
_NAMES = [field.name for field in fields(JobView)]
_PLACE = _NAMES.index("last_checkpoint_at")
_AROUND_CHECKPOINT = attrgetter(*_NAMES[:_PLACE]), attrgetter(*_NAMES[_PLACE + 1 :])
# A plan that stops jobs needs one more cycle to start their successors; more would be a plan that never settles.
MOST_CYCLES = 20


@dataclass(slots=True)
class TraceJob:
    """One job of a trace and its results. Times are seconds of virtual time; `gpus`: over all pods; `expected`: the
    declared run time. `done`: run time saved in checkpoints; `overhead`: of the present attempt's start; `estimate`:
    the range in which it was expected to start."""

    id: str
    project: str
    submitted: int
    seconds: int
    gpus: int
    expected: int | None = None
    first_start: int | None = None
    finished: int | None = None
    is_inside_quota: bool = False
    done: int = 0
    attempt: int = 0
    overhead: int = 0
    estimate: tuple[int, int] | None = None

    @property
    def wait(self) -> int:
        """Return the seconds from submission to the first start."""
        assert self.first_start is not None, f"{self.id} never started"
        return self.first_start - self.submitted


@dataclass(slots=True)
class Outcome:
    """Results of a replay. `most_preemptions`: of one job; `lost_gpu_seconds`: work that preempted jobs repeat, and
    their restarts; `cpu_seconds`: of all decisions."""

    jobs: Sequence[TraceJob]
    preemptions: int = 0
    most_preemptions: int = 0
    lost_gpu_seconds: int = 0
    cycles: int = 0
    cpu_seconds: float = 0.0

    @property
    def in_quota_within_a_minute(self) -> float:
        """Return the share of jobs started within 60 s, among those that arrived inside their project's quota."""
        inside = [job for job in self.jobs if job.is_inside_quota]
        return sum(job.wait <= 60 for job in inside) / len(inside) if inside else 1.0

    @property
    def mean_wait(self) -> float:
        """Return the mean seconds from submission to the first start."""
        return sum(job.wait for job in self.jobs) / len(self.jobs)

    @property
    def mean_delay(self) -> float:
        """Return the mean seconds from submission to the end, less the run time: all waits, restarts and lost
        work."""
        return sum((job.finished or 0) - job.submitted - job.seconds for job in self.jobs) / len(self.jobs)

    def gang_waits(self, least_gpus: int = 16) -> list[int]:
        """Return the waits, in seconds, of jobs with at least this many GPUs, ascending."""
        return sorted(job.wait for job in self.jobs if job.gpus >= least_gpus)

    @property
    def lost_gpu_hours(self) -> float:
        """Return the GPU hours lost since the last checkpoints of preempted jobs, and by their restarts."""
        return self.lost_gpu_seconds / 3600


@dataclass(slots=True)
class Replay:
    """One replay of a trace; `decide` is the scheduler. `prepare` may change the view before a cycle, for
    policies. `on_submit` and `on_finish` get each job; `on_queue` each that still waits after its first cycle,
    with the view, to set its estimate; `on_plan` each cycle's view and plan."""

    nodes: tuple[NodeView, ...]
    projects: tuple[ProjectView, ...]
    decide: Callable[[ClusterView], Plan]
    prepare: Callable[[ClusterView], ClusterView] = lambda view: view
    on_queue: Callable[[ClusterView, TraceJob], None] | None = None
    on_finish: Callable[[TraceJob], None] | None = None
    on_submit: Callable[[TraceJob], None] | None = None
    on_plan: Callable[[ClusterView, Plan], None] | None = None
    _jobs: dict[str, TraceJob] = field(default_factory=dict)
    _active: dict[str, JobView] = field(default_factory=dict)
    _queued: dict[str, JobView] = field(default_factory=dict)
    _ends: list[tuple[int, str, int]] = field(default_factory=list)
    # (when a running job writes its next checkpoint, its id, its attempt)
    _checkpoints: list[tuple[int, str, int]] = field(default_factory=list)
    _demand: dict[str, int] = field(default_factory=dict)
    _stops: dict[str, int] = field(default_factory=dict)
    _ranks: dict[str, int] = field(default_factory=dict)

    def run(self, jobs: Sequence[TraceJob]) -> Outcome:
        """Replay until the last job has finished. Return the results."""
        outcome, began = Outcome(jobs), time.process_time()
        self._jobs = {job.id: job for job in jobs}
        self._demand = {project.name: 0 for project in self.projects}
        quotas = {project.name: project.quota_milli_gpus or 0 for project in self.projects}
        arrivals, at = sorted(jobs, key=lambda job: job.submitted), 0
        while at < len(arrivals) or self._ends:
            now = self._ends[0][0] if self._ends else arrivals[at].submitted
            if at < len(arrivals):
                now = min(now, arrivals[at].submitted)
            self._finish(now)
            fresh: list[TraceJob] = []
            while at < len(arrivals) and arrivals[at].submitted == now:
                fresh.append(arrivals[at])
                self._submit(arrivals[at], at, quotas)
                at += 1
            if self._queued:
                self._cycle(now, outcome)
                if self.on_queue is not None:
                    for job in fresh:
                        if job.id in self._queued:
                            self.on_queue(self.view(now), job)
        outcome.most_preemptions = max(self._stops.values(), default=0)
        outcome.cpu_seconds = time.process_time() - began
        return outcome

    def view(self, now: int) -> ClusterView:
        """Return the cluster at the time `now`."""
        self._write_checkpoints(now)
        jobs = (*self._active.values(), *self._queued.values())
        return self.prepare(ClusterView("trace", now, self.nodes, self.projects, jobs=jobs))

    def _write_checkpoints(self, now: int) -> None:
        while self._checkpoints and self._checkpoints[0][0] <= now:
            _, name, attempt = heapq.heappop(self._checkpoints)
            job = self._jobs[name]
            if job.attempt == attempt and name in self._active:
                began = (self._active[name].started_at or 0) + job.overhead
                at = began + (now - began) // CHECKPOINT_SECONDS * CHECKPOINT_SECONDS
                self._active[name] = _with_checkpoint(self._active[name], at)
                heapq.heappush(self._checkpoints, (at + CHECKPOINT_SECONDS, name, attempt))

    def _submit(self, job: TraceJob, rank: int, quotas: Mapping[str, int]) -> None:
        if self.on_submit is not None:
            self.on_submit(job)
        self._demand[job.project] += job.gpus
        job.is_inside_quota = self._demand[job.project] * 1000 <= quotas[job.project]
        # In the order of submission also within a second.
        self._ranks[job.id] = rank_at(job.submitted) + rank
        self._queued[job.id] = queued(job, self._ranks[job.id])

    def _finish(self, now: int) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, name, attempt = heapq.heappop(self._ends)
            job = self._jobs[name]
            if job.attempt == attempt and name in self._active:
                del self._active[name]
                job.finished = now
                self._demand[job.project] -= job.gpus
                if self.on_finish is not None:
                    self.on_finish(job)

    def _cycle(self, now: int, outcome: Outcome) -> None:
        for _ in range(MOST_CYCLES):
            view = self.view(now)
            plan = self.decide(view)
            if self.on_plan is not None:
                self.on_plan(view, plan)
            outcome.cycles += 1
            self._apply(view, plan, outcome)
            if not plan.preempts:
                return
        raise RuntimeError(f"the plan at {now} s does not settle")

    def _apply(self, view: ClusterView, plan: Plan, outcome: Outcome) -> None:
        now = view.now
        for preempt in plan.preempts:
            self._preempt(view, preempt.job, (preempt.beneficiary, preempt.beneficiary_project), outcome)
        for start in plan.starts:
            job, waiting = self._jobs[start.job], self._queued.pop(start.job)
            if job.first_start is None:
                job.first_start = now
            job.attempt += 1
            job.overhead = RESTART_SECONDS if job.attempt > 1 else 0
            heapq.heappush(self._checkpoints, (now + job.overhead + CHECKPOINT_SECONDS, job.id, job.attempt))
            heapq.heappush(self._ends, (now + job.overhead + job.seconds - job.done, job.id, job.attempt))
            self._active[start.job] = replace(
                started(waiting, start.placements, now),
                last_checkpoint_at=now if job.attempt > 1 else None,
                submit_rank=self._ranks[start.job],
            )
        if not plan.preempts and not any(job.promised for job in self._queued.values()):
            return
        for name, waiting in self._queued.items():
            places = plan.promised.get(name, ())
            if places != waiting.promised:
                self._queued[name] = replace(waiting, promised=places)

    def _preempt(self, view: ClusterView, name: str, by: tuple[str, str], outcome: Outcome) -> None:
        job, running, now = self._jobs[name], self._active.pop(name), view.now
        assert running.started_at is not None
        worked = max(0, now - running.started_at - job.overhead)
        kept = worked // CHECKPOINT_SECONDS * CHECKPOINT_SECONDS
        job.done += kept
        job.attempt += 1
        outcome.preemptions += 1
        self._stops[name] = self._stops.get(name, 0) + 1
        outcome.lost_gpu_seconds += job.gpus * (worked - kept + RESTART_SECONDS)
        expected = None if job.expected is None else max(1, job.expected - job.done)
        self._queued[name] = replace(requeued(running, by, view), expected_runtime_seconds=expected)


def _with_checkpoint(job: JobView, at: int) -> JobView:
    """Return the job with a checkpoint saved at the time `at`. `dataclasses.replace` takes three times as long,
    and every job writes a checkpoint each half hour of virtual time."""
    before, after = _AROUND_CHECKPOINT
    values: tuple[Any, ...] = (*before(job), at, *after(job))
    return JobView(*values)


def queued(job: TraceJob, rank: int) -> JobView:
    """Return the queued job: up to 8 GPUs in one pod, more as a gang of whole nodes."""
    pods = max(1, -(-job.gpus // 8))
    return JobView(
        job.id, job.project, rank, milli_gpus=job.gpus * 1000 // pods, pods=pods, milli_cpus=1, memory_mib=1,
        expected_runtime_seconds=job.expected, waiting_since=job.submitted,
    )  # fmt: skip


def easy(jobs: Iterable[TraceJob], nodes: int, devices: int = 8) -> Outcome:
    """Return the outcome of EASY backfill on `nodes` nodes of `devices` GPUs: in order of submission, with one
    reservation for the oldest and backfill that does not delay it, on exact run times; no quotas, so no job is
    preempted."""
    return _Easy(list(jobs), nodes, devices).run()


class _Easy:
    def __init__(self, jobs: list[TraceJob], nodes: int, devices: int) -> None:
        self._jobs = sorted(jobs, key=lambda job: job.submitted)
        self._free = [devices] * nodes
        self._devices = devices
        self._queue: list[TraceJob] = []
        # (end, sequence, nodes with what is held there)
        self._running: list[tuple[int, int, dict[int, int]]] = []

    def run(self) -> Outcome:
        outcome, began, at = Outcome(self._jobs), time.process_time(), 0
        while at < len(self._jobs) or self._running:
            now = self._running[0][0] if self._running else self._jobs[at].submitted
            if at < len(self._jobs):
                now = min(now, self._jobs[at].submitted)
            while self._running and self._running[0][0] <= now:
                _, _, held = heapq.heappop(self._running)
                _give(self._free, held)
            while at < len(self._jobs) and self._jobs[at].submitted == now:
                self._queue.append(self._jobs[at])
                at += 1
            outcome.cycles += 1
            self._serve(now)
        outcome.cpu_seconds = time.process_time() - began
        return outcome

    def _serve(self, now: int) -> None:
        while self._queue and (held := self._place(self._queue[0].gpus, self._free)) is not None:
            self._start(self._queue.pop(0), held, now)
        if not self._queue or not any(self._free):
            return
        shadow, later = self._reserve(self._queue[0].gpus)
        failed: set[int] = set()
        left = [self._queue[0]]
        for job in self._queue[1:]:
            held = None
            if job.gpus not in failed:
                held = self._place(job.gpus, self._free)
            if held is None:
                failed.add(job.gpus)
            elif now + job.seconds > shadow:
                bounded = [min(pair) for pair in zip(self._free, later, strict=True)]
                held = self._place(job.gpus, bounded)
                if held is not None:
                    _take(later, held)
            if held is None:
                left.append(job)
            else:
                self._start(job, held, now)
        self._queue = left

    def _reserve(self, gpus: int) -> tuple[int, list[int]]:
        """Return when a job of this number of GPUs, the oldest in the queue, can start, and the GPUs that are free
        beside it then, by node. Raises ValueError if it never fits."""
        later = self._free.copy()
        for end, _, held in sorted(self._running):
            _give(later, held)
            place = self._place(gpus, later)
            if place is not None:
                _take(later, place)
                return end, later
        raise ValueError(f"{gpus} GPUs never fit")

    def _start(self, job: TraceJob, held: dict[int, int], now: int) -> None:
        job.first_start, job.finished = now, now + job.seconds
        _take(self._free, held)
        heapq.heappush(self._running, (job.finished, id(job), held))

    def _place(self, gpus: int, free: Sequence[int]) -> dict[int, int] | None:
        """Return the GPUs by node that a job of `gpus` GPUs gets of `free` (GPUs by node): on the fullest node
        that fits, or whole nodes for a gang; None if they do not fit."""
        if gpus > self._devices:
            count = -(-gpus // self._devices)
            whole = [node for node, here in enumerate(free) if here == self._devices][:count]
            return dict.fromkeys(whole, self._devices) if len(whole) == count else None
        fitting = [(here, node) for node, here in enumerate(free) if here >= gpus]
        return {min(fitting)[1]: gpus} if fitting else None


def _take(free: list[int], held: Mapping[int, int]) -> None:
    for node, gpus in held.items():
        free[node] -= gpus


def _give(free: list[int], held: Mapping[int, int]) -> None:
    for node, gpus in held.items():
        free[node] += gpus
