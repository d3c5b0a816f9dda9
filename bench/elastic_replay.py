"""Drive the scheduler through a list of elastic jobs in virtual time, as the loop does.

Jobs are started by `decide`, shrunk where it preempts, grown into what a plan leaves free, and workers move between
jobs of a project. No project has a quota. Sizes are powers of two: a job that would start or stay with 7 workers has
4, and frees the others. A resize stops the training for RESIZE_SECONDS.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from controlplane.scheduling.division import Claim, after_moves, in_turn
from controlplane.scheduling.fit import request_of
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.plan import Plan, Preempt
from controlplane.scheduling.scale_down import PendingJob, ShrinkableJob, workers_to_remove
from controlplane.scheduling.spare import free_gpus, room_after, spare_placements
from controlplane.scheduling.view import (
    ClusterView,
    JobView,
    NodeView,
    PodPlacement,
    ProjectView,
    placements_from_lists,
)

RESIZE_SECONDS = 30
# As in controlplane/loop/balance.py.
REST_SECONDS = 60
# A plan that shrinks jobs needs another cycle to start their successors, and growth is one job a cycle.
MOST_CYCLES = 500


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """One job of a trace; times in seconds. `curve`: iterations per second by number of GPUs; the job asked for
    `asked` GPUs and can use 1 to `most`. `is_declared`: whether the scheduler gets the curve."""

    id: str
    submitted: int
    iterations: float
    asked: int
    deadline: int
    curve: dict[int, float]
    most: int
    project: str = "team"
    is_declared: bool = True

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the powers of two up to `most`."""
        return tuple(1 << power for power in range(self.most.bit_length()))


@dataclass(slots=True)
class _Run:
    """The state of one job: `left` iterations at the time `at`. Before `at` the job makes no progress, because of a
    resize or in the queue."""

    job: ElasticJob
    view: JobView
    left: float
    at: float
    resized_at: float = -REST_SECONDS
    # How often it gave workers to other jobs; its rest before the next time doubles with each.
    moves: int = 0

    @property
    def rate(self) -> float:
        return self.job.curve[len(self.view.placements)] if self.view.placements else 0.0

    @property
    def end(self) -> float:
        return self.at + self.left / self.rate if self.rate else float("inf")

    @property
    def rests_until(self) -> float:
        """Return the time, in seconds, before which no worker is moved from this job to another running job. The pause
        after a resize is REST_SECONDS, doubled with each earlier move. For waiting jobs it is always REST_SECONDS."""
        return self.resized_at + REST_SECONDS * (1 << self.moves)

    def claim(self, now: float, *, is_move: bool = True) -> Claim:
        """Return the job's claim on GPUs of its project. `is_move`: for a move between running jobs."""
        job, has = self.job, len(self.view.placements)
        speeds = tuple(sorted(job.curve.items())) if job.is_declared else ()
        left = self.left / self.rate if has else None
        may_shrink = now >= (self.rests_until if is_move else self.resized_at + REST_SECONDS)
        return Claim(
            job.id, has, 1, job.most, job.sizes, speeds, left, project=job.project, may_shrink=may_shrink
        )

    def advance(self, now: float) -> None:
        if now > self.at:
            self.left, self.at = max(0.0, self.left - (now - self.at) * self.rate), now


@dataclass(slots=True)
class ElasticReplay:
    """One replay. `decide`: the scheduler's by default; tests may give another. `resizes`: by job; `cycles`: how many
    decisions were made, `cpu_seconds`: of them all."""

    nodes: tuple[NodeView, ...]
    decide: Callable[[ClusterView], Plan] = field(default_factory=lambda: Scheduler().decide)
    resizes: Counter[str] = field(default_factory=Counter)
    cycles: int = 0
    cpu_seconds: float = 0.0
    _runs: dict[str, _Run] = field(default_factory=dict)
    _now: float = 0.0

    def run(self, jobs: Sequence[ElasticJob]) -> dict[str, float]:
        """Replay until the last job has ended. Return the end of each job in seconds."""
        began, ends, at = time.process_time(), dict[str, float](), 0
        while at < len(jobs) or self._runs:
            now = min((run.end for run in self._runs.values()), default=float("inf"))
            now = min(now, jobs[at].submitted) if at < len(jobs) else now
            # Once a job has rested after a change of its workers it may give workers to others, so each end
            # of a rest is decided at, too.
            rests = (
                rest
                for run in self._runs.values()
                for rest in (run.resized_at + REST_SECONDS, run.rests_until)
            )
            now = min([now, *(rest for rest in rests if rest > self._now)])
            self._now = now
            for run in self._runs.values():
                run.advance(now)
            done = [name for name, run in self._runs.items() if run.end <= now]
            ends |= {name: self._runs.pop(name).end for name in done}
            while at < len(jobs) and jobs[at].submitted <= now:
                self._runs[jobs[at].id] = _Run(
                    jobs[at], _queued(jobs[at], at), jobs[at].iterations, jobs[at].submitted
                )
                at += 1
            self._settle(now)
        self.cpu_seconds = time.process_time() - began
        return ends

    def _settle(self, now: float) -> None:
        for _ in range(MOST_CYCLES):
            self.cycles += 1
            view = self._view(int(now))
            plan = self.decide(view)
            if not self._apply(view, plan, now):
                return
        raise RuntimeError(f"the plan at {now:.0f} s does not settle")

    def _view(self, now: int) -> ClusterView:
        jobs = tuple(run.view for run in self._runs.values())
        first = {job.project: job.submit_rank for job in reversed(jobs)}
        projects = tuple(ProjectView(name, 0, 1, created_rank=rank) for name, rank in first.items())
        return ClusterView("trace", now, self.nodes, projects, jobs=jobs)

    def _apply(self, view: ClusterView, plan: Plan, now: float) -> bool:
        """Carry out the plan that was decided on `view`. Return whether anything changed, so that another cycle
        is needed."""
        promised = {
            hold.job: placements_from_lists(hold.details["promised"])
            for hold in plan.holds
            if hold.is_promised
        }
        for preempt in plan.preempts:
            self._shrink(preempt, promised.get(preempt.beneficiary, ()), now)
        for start in plan.starts:
            self._resize(self._runs[start.job], start.placements, now)
        for name, run in self._runs.items():
            places = promised.get(name, ())
            if run.view.state == "queued" and run.view.promised != places:
                run.view = replace(run.view, promised=places)
        if plan.preempts or plan.starts:
            return True
        # As in controlplane/loop/growth: running jobs do not grow while a waiting job could use the free
        # devices.
        if not plan.holds and self._grow(view, plan, now):
            return True
        return self._balance(view, plan, now)

    def _shrink(self, preempt: Preempt, places: Sequence[PodPlacement], now: float) -> None:
        """Remove those of the preempted job's workers that are on devices of `places`, which are promised to
        another job; it stops if none is left."""
        run = self._runs[preempt.job]
        wanted = {(place.node, index) for place in places for index, _ in place.devices}
        stay = tuple(
            pod
            for pod in run.view.placements
            if wanted.isdisjoint((pod.node, index) for index, _ in pod.devices)
        )
        if stay != run.view.placements:
            self._resize(run, stay, now)

    def _grow(self, view: ClusterView, plan: Plan, now: float) -> bool:
        """Grow the first job that can use capacity which the plan leaves free, as loop/growth does. Return
        whether one did."""
        claims = [run.claim(now) for run in self._runs.values() if run.view.placements]
        for claim, to in in_turn(claims, self._free(view, plan)):
            run = self._runs[claim.job]
            rank = 1 + max(pod.rank for pod in run.view.placements)
            found = spare_placements(view, plan, run.view, to - claim.workers, rank)
            if _power_of_two(claim.workers + len(found)) > claim.workers:
                self._resize(run, (*run.view.placements, *found), now)
                return True
        return False

    def _balance(self, view: ClusterView, plan: Plan, now: float) -> bool:
        """Shrink jobs in favour of others of their project, as loop/balance does: for waiting jobs, unless jobs of
        several projects wait; for running ones if no job waits. Needs a plan without starts and preemptions. Return
        whether one shrank."""
        lacking = [self._runs[hold.job] for hold in plan.holds]
        running = [run for run in self._runs.values() if run.view.placements]
        if not lacking:
            sizes = after_moves([run.claim(now) for run in running], self._free(view, plan))
            stay = {name: self._runs[name].view.placements[:size] for name, size in sizes.items()}
            return self._give(stay, is_move=True, now=now)
        if len(projects := {run.job.project for run in lacking}) > 1:
            return False
        ours = [run for run in running if run.job.project in projects]
        claims = [run.claim(now, is_move=False) for run in ours]
        shrinkable = [
            ShrinkableJob(claim, run.view, run.view.placements[::-1])
            for claim, run in zip(claims, ours, strict=True)
            if claim.may_shrink
        ]
        queue = [PendingJob(run.view, request_of(run.view, ())) for run in lacking]
        leaving = workers_to_remove(claims, shrinkable, [queue], room_after(view, plan))
        stay = {
            name: tuple(pod for pod in self._runs[name].view.placements if pod.rank not in ranks)
            for name, ranks in leaving.items()
        }
        return self._give(stay, is_move=False, now=now)

    def _free(self, view: ClusterView, plan: Plan) -> int:
        # All nodes are of one pool, so any job sees them all.
        return free_gpus(view, plan, view.jobs[0]) if view.jobs else 0

    def _give(self, stay: Mapping[str, tuple[PodPlacement, ...]], *, is_move: bool, now: float) -> bool:
        shrunk = [name for name, pods in stay.items() if len(pods) < len(self._runs[name].view.placements)]
        for name in shrunk:
            self._resize(self._runs[name], stay[name], now)
            self._runs[name].moves += is_move
        return bool(shrunk)

    def _resize(self, run: _Run, placements: tuple[PodPlacement, ...], now: float) -> None:
        kept = placements[: _power_of_two(len(placements))]
        is_first = run.left == run.job.iterations and not run.view.placements
        run.view = replace(
            run.view, state="active" if kept else "queued", placements=kept, promised=(),
            started_at=run.view.started_at if run.view.placements else int(now),
        )  # fmt: skip
        run.resized_at = now
        if not is_first:
            self.resizes[run.job.id] += 1
            run.at = now + RESIZE_SECONDS


def _queued(job: ElasticJob, rank: int) -> JobView:
    return JobView(
        job.id, job.project, rank, kind="elastic", milli_gpus=1000, pods=job.most, min_pods=1, sizes=job.sizes,
        milli_cpus=1, memory_mib=1,
    )  # fmt: skip


def _power_of_two(count: int) -> int:
    """Return the largest power of two up to `count`, 0 for 0."""
    return 1 << (count.bit_length() - 1) if count else 0
