"""A month of a real trace through `decide` in virtual time, beside EASY backfill; and the packing of openb.

Run: python -m bench.traces [--days 28] [--only itp|openb] [--policy submission|shortest|ageing|ageing-shortest]
[--min-runtime 86400] [--worst 50]. Without --policy the replay runs once with each of them. --worst prints the gangs
that waited longest, and why. The traces are beside the repository in ../shared/traces, or in the folder
TRAINYARD_TRACES.
"""

from __future__ import annotations

import argparse
import csv
import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import Row, quantile, report
from bench.openb import SEEDS, allocation
from bench.trace_replay import Outcome, Replay, TraceJob, easy
from bench.trace_waits import GangReasons
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import ClusterView, DeviceView, NodeView, ProjectView

TRACES = Path(os.environ.get("TRAINYARD_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))
NODES, DEVICES = 160, 8
DAY = 86_400
# For this time after its start no job is preempted for a project above its quota.
MIN_RUNTIME_SECONDS = DAY
# Views of a cycle by policy. With ageing a gang of several pods takes others' GPUs after 11 hours, a preempted job
# queues as if submitted six hours after its stop, and projects above their quotas take nothing from each other.
_AGEING = {"gang_ageing_seconds": 39_600, "requeue_rank_seconds": 21_600, "min_runtime_seconds": 365 * DAY}
POLICIES: Mapping[str, dict[str, Any]] = {
    "submission": {},
    "shortest": {"queue_order": "shortest"},
    "ageing": _AGEING,
    "ageing-shortest": {**_AGEING, "queue_order": "shortest"},
}
# As in the loop's process.
GARBAGE_THRESHOLDS = (50_000, 20, 50)
EASY = "EASY backfill, first come, no quotas"


def main() -> None:
    """Replay and report."""
    options = _options()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    found = [] if options.only == "openb" else itp(options)
    report("traces", found if options.only == "itp" else [*found, *packing()])


def itp(options: argparse.Namespace) -> list[Row]:
    """Replay the jobs of the first days until the last of them has finished, with each policy. Return the rows."""
    trace = read_jobs(TRACES / "itp" / "itp_jobs.csv")
    quotas = quotas_by_gpu_hours(trace, NODES * DEVICES)
    jobs = [job for job in trace if job.submitted < options.days * DAY]
    peer = easy([replace(job) for job in jobs], NODES)
    count_inside_quota(peer.jobs, quotas)
    found: list[Row] = []
    for name in [options.policy] if options.policy else POLICIES:
        policy = {"min_runtime_seconds": options.min_runtime, **POLICIES[name]}
        reasons = GangReasons()
        ours = replay(
            jobs, quotas, partial(with_policies, **policy), reasons.on_plan if options.worst else None
        )
        for line in reasons.lines(ours.jobs, options.worst):
            sys.stdout.write(f"{line}\n")
        found += rows(name, ours, peer)
    return found


def packing() -> list[Row]:
    """Return rows with allocation and fragmentation of openb, mean of ten seeds, beside the figures published by
    FGD's authors."""
    found = [allocation(TRACES / "openb", seed) for seed in SEEDS]
    packed = [allocation(TRACES / "openb", seed, is_packed=True) for seed in SEEDS]
    allocated = [pair[0] for pair in found]
    peer = "FGD, published"
    return [
        Row("openb, allocation at 100 % arrived, mean of seeds 42-51", "> 95.23 %", "%", [_mean(allocated)],
            limit=95.23, at_least=True, peer=peer, peer_samples=[95.23],
            note=f"{min(allocated):.2f} to {max(allocated):.2f} over the seeds"),
        Row("the same, fragmented", "<= 4.9 %", "%", [_mean([pair[1] for pair in found])], limit=4.9, peer=peer,
            peer_samples=[4.73]),
        Row("openb by the tightest fit, allocation", "-", "%", [_mean([pair[0] for pair in packed])], peer=peer,
            peer_samples=[95.23]),
    ]  # fmt: skip


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=float, default=28)
    parser.add_argument("--only", choices=("itp", "openb"))
    parser.add_argument("--worst", type=int, default=0, help="print so many gangs of 16 GPUs and more")
    parser.add_argument("--policy", choices=tuple(POLICIES))
    parser.add_argument(
        "--min-runtime", type=int, default=MIN_RUNTIME_SECONDS, help="seconds; the product's is 28800"
    )
    return parser.parse_args()


def read_jobs(path: Path) -> list[TraceJob]:
    """Return the jobs of an ITP trace, in order of submission."""
    with path.open() as lines:
        rows = [
            (int(row["submit_s"]), row["tenant"], int(row["duration_s"]), int(row["num_gpu"]))
            for row in csv.DictReader(lines)
        ]
    return [
        TraceJob(f"j{rank:05}", tenant, submitted, max(1, seconds), gpus, expected=max(1, seconds))
        for rank, (submitted, tenant, seconds, gpus) in enumerate(rows)
    ]


def quotas_by_gpu_hours(jobs: Sequence[TraceJob], gpus: int) -> dict[str, int]:
    """Divide `gpus` whole GPUs among tenants in proportion to their GPU hours; the rest goes to the largest
    remainders. Return GPUs by tenant."""
    used: dict[str, int] = {}
    for job in jobs:
        used[job.project] = used.get(job.project, 0) + job.seconds * job.gpus
    total = sum(used.values())
    quotas = {name: gpus * seconds // total for name, seconds in used.items()}
    by_remainder = sorted(used, key=lambda name: (-(gpus * used[name] % total), name))
    for name in by_remainder[: gpus - sum(quotas.values())]:
        quotas[name] += 1
    return quotas


def with_policies(view: ClusterView, **policy: Any) -> ClusterView:
    """Return the view with the replay's policies. `policy`: fields of ClusterView."""
    return replace(view, **{"min_runtime_seconds": MIN_RUNTIME_SECONDS, **policy})


def replay(
    jobs: Sequence[TraceJob],
    quotas: dict[str, int],
    policies: Callable[[ClusterView], ClusterView] = with_policies,
    on_plan: Callable[[ClusterView, Plan], None] | None = None,
) -> Outcome:
    """Replay copies of the jobs with our scheduler. `quotas`: GPUs by project; `policies`: changes the view before
    each cycle; `on_plan`: gets the view and the plan of each cycle. Return the results."""
    devices = tuple(DeviceView(index, 32_768) for index in range(DEVICES))
    nodes = tuple(
        NodeView(f"n{place:03}", "default", devices, 1_000_000, 1_000_000) for place in range(NODES)
    )
    projects = tuple(
        ProjectView(name, quota * 1000, quota * 1000, created_rank=rank)
        for rank, (name, quota) in enumerate(sorted(quotas.items()))
    )
    driver = Replay(nodes, projects, Scheduler().decide, prepare=policies, on_plan=on_plan)
    return driver.run([replace(job) for job in jobs])


def count_inside_quota(jobs: Sequence[TraceJob], quotas: dict[str, int]) -> None:
    """Mark the jobs that arrived inside their project's quota (`quotas`: GPUs by project), counting the project's
    running and queued jobs and the job itself."""
    demand = dict.fromkeys(quotas, 0)
    events = [(job.finished or 0, 0, rank, -job.gpus) for rank, job in enumerate(jobs)]
    events += [(job.submitted, 1, rank, job.gpus) for rank, job in enumerate(jobs)]
    for _, is_arrival, rank, gpus in sorted(events):
        job = jobs[rank]
        demand[job.project] += gpus
        if is_arrival:
            job.is_inside_quota = demand[job.project] <= quotas[job.project]


def rows(policy: str, ours: Outcome, peer: Outcome) -> list[Row]:
    """Return the rows of one policy, each beside the same figure of EASY backfill."""
    title, wait = f"ITP replay, {policy}", 1200 if "shortest" in policy else 1600
    gangs, their_gangs = ours.gang_waits(), peer.gang_waits()
    beside = (
        f"{len(ours.jobs)} jobs, {ours.cycles} cycles; at most {ours.most_preemptions} preemptions of one job"
    )
    return [
        _row(f"{title}: in quota and started within 60 s", ">= 0.999", "", 0.999, ours.in_quota_within_a_minute,
             peer.in_quota_within_a_minute, at_least=True, note=beside),
        _row(f"{title}: mean wait", f"<= {wait:,} s", "s", wait, ours.mean_wait, peer.mean_wait),
        _row(f"{title}: gangs of 16 GPUs or more, mean wait", "-", "s", None, _mean(gangs), _mean(their_gangs)),
        _row(f"{title}: the same, p95", "<= 45,000 s", "s", 45_000, quantile(gangs, 0.95), quantile(their_gangs, 0.95)),
        _row(f"{title}: preemptions", "<= 3,000", "jobs", 3000, ours.preemptions, peer.preemptions),
        _row(f"{title}: work lost to preemptions", "<= 700 GPU-h", "GPU-h", 700, ours.lost_gpu_hours, 0),
        _row(f"{title}: mean time beyond the run time", "-", "s", None, ours.mean_delay, peer.mean_delay),
        _row(f"{title}: CPU", "<= 60 s", "s", 60, ours.cpu_seconds, peer.cpu_seconds),
    ]  # fmt: skip


def _row(
    work: str,
    goal: str,
    unit: str,
    limit: float | None,
    ours: float,
    peer: float,
    *,
    at_least: bool = False,
    note: str = "",
) -> Row:
    return Row(
        work, goal, unit, [ours], limit=limit, at_least=at_least, peer=EASY, peer_samples=[peer], note=note
    )  # fmt: skip


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


if __name__ == "__main__":
    main()
