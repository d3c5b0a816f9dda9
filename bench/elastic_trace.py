"""591 jobs of a real trace on 128 GPUs in virtual time: elastic jobs through the scheduler beside rigid ones.

The jobs and their scaling curves, measured on A100 GPUs, are in ../shared/traces/elastic, or in the folder that
TRAINYARD_TRACES names. Run: python -m bench.elastic_trace
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.elastic_replay import ElasticJob, ElasticReplay
from bench.harness import Row, report
from bench.traces import TRACES
from controlplane.scheduling.view import DeviceView, NodeView

NODES, DEVICES = 16, 8
# A user who declares no speeds is assumed to take, from a scaling report, the largest size at which the last
# doubling of the GPUs still raised the speed by this factor.
LEAST_GAIN = 1.1
RULE = "a rule that doubles the best speed-up per GPU"
# Of the same trace, computed once outside of this repository.
SIMPLE = {"completion": 31_491.0, "makespan": 1_397_355.0, "deadlines": 0.431, "resizes": 2.7}


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of one policy: mean seconds from submission to the end, share of deadlines met (0 to 1), end of the
    last job in seconds."""

    completion: float
    deadlines: float
    makespan: float


def main() -> None:
    """Replay all policies and report."""
    folder = TRACES / "elastic"
    jobs = list(read_jobs(folder / "jobs.csv", read_curves(folder / "throughput_a100_iter_per_s.csv")))
    rigid = measured(jobs, rigid_ends(jobs))
    replay = ElasticReplay(nodes())
    ours = measured(jobs, replay.run(jobs))
    apart = [replace(job, project=job.id) for job in jobs]
    unknown = [replace(job, is_declared=False, most=largest_worthwhile(job.curve)) for job in jobs]
    others = {
        "each job in a project of its own": measured(apart, ElasticReplay(nodes()).run(apart)),
        "no speeds declared": measured(unknown, ElasticReplay(nodes()).run(unknown)),
        "each job alone on the cluster": measured(jobs, alone_ends(jobs)),
    }
    report("elastic_trace", [*rows(ours, rigid, replay, len(jobs)), *other_rows(others, rigid)])


def nodes() -> tuple[NodeView, ...]:
    devices = tuple(DeviceView(index, 32_768) for index in range(DEVICES))
    return tuple(NodeView(f"n{place:02}", "default", devices, 1_000_000, 1_000_000) for place in range(NODES))


def read_curves(path: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Return iterations per second by number of GPUs, for each (model, global batch)."""
    with path.open() as lines:
        return {
            (row.pop("model"), int(row.pop("global_batch"))): {
                int(size.removeprefix("g")): float(rate) for size, rate in row.items() if rate
            }
            for row in csv.DictReader(lines)
        }


def read_jobs(path: Path, curves: dict[tuple[str, int], dict[int, float]]) -> Iterator[ElasticJob]:
    """Yield the jobs in order of submission. `curves`: see `read_curves`."""
    with path.open() as lines:
        for rank, row in enumerate(csv.DictReader(lines)):
            curve = curves[row["model_name"], int(row["batch_size"])]
            yield ElasticJob(
                f"j{rank:03}", int(row["submit_s"]), float(row["num_iteration"]), int(row["num_gpu"]),
                int(row["deadline_s"]), curve, max(curve),
            )  # fmt: skip


def largest_worthwhile(curve: dict[int, float]) -> int:
    """Return the number of GPUs up to which each doubling gains at least LEAST_GAIN in the iterations per second of
    `curve`."""
    size = 1
    while 2 * size in curve and curve[2 * size] >= LEAST_GAIN * curve[size]:
        size *= 2
    return size


def rigid_ends(jobs: Sequence[ElasticJob], gpus: int = NODES * DEVICES) -> dict[str, float]:
    """Return when each job ends on a cluster of `gpus` with its requested number of GPUs: in order of submission,
    with any later job that fits."""
    ends: dict[str, float] = {}
    queue: list[ElasticJob] = []
    running: list[tuple[float, int]] = []
    at, free = 0, gpus
    while at < len(jobs) or running:
        now = min([*(end for end, _ in running[:1]), *(job.submitted for job in jobs[at : at + 1])])
        while running and running[0][0] <= now:
            free += heapq.heappop(running)[1]
        while at < len(jobs) and jobs[at].submitted <= now:
            queue.append(jobs[at])
            at += 1
        for job in list(queue):
            if job.asked <= free:
                queue.remove(job)
                free -= job.asked
                ends[job.id] = now + job.iterations / job.curve[job.asked]
                heapq.heappush(running, (ends[job.id], job.asked))
    return ends


def measured(jobs: Sequence[ElasticJob], ends: dict[str, float]) -> Measured:
    met = sum(ends[job.id] <= job.deadline for job in jobs)
    completion = sum(ends[job.id] - job.submitted for job in jobs) / len(jobs)
    return Measured(completion, met / len(jobs), max(ends.values()))


def rows(ours: Measured, rigid: Measured, replay: ElasticReplay, jobs: int) -> list[Row]:
    beside = f"{RULE}: {SIMPLE['completion']:,.0f} s"
    resizes, peer = sum(replay.resizes.values()) / jobs, "rigid, first come with backfill"
    return [
        Row(f"{jobs} elastic jobs on 128 GPUs, mean completion", "<= 0.56x rigid", "s", [ours.completion],
            peer=peer, peer_samples=[rigid.completion], ratio_limit=0.56, note=beside),
        Row("the same, deadlines met", ">= 0.45", "", [ours.deadlines], limit=0.45, at_least=True, peer=peer,
            peer_samples=[rigid.deadlines], note=f"{RULE}: {SIMPLE['deadlines']}"),
        Row("the same, end of the last job", "-", "s", [ours.makespan], peer=peer, peer_samples=[rigid.makespan],
            note=f"{RULE}: {SIMPLE['makespan']:,.0f} s"),
        Row("the same, resizes of a job, mean", "<= 4", "", [resizes], limit=4,
            note=f"{RULE}: {SIMPLE['resizes']}; at most {max(replay.resizes.values())} of one job"),
        Row("the same, CPU of the scheduler", "-", "s", [replay.cpu_seconds], note=f"{replay.cycles} cycles"),
    ]  # fmt: skip


def alone_ends(jobs: Sequence[ElasticJob]) -> dict[str, float]:
    """Return when each job would end if it ran at its fastest size from its submission, a bound for any scheduler."""
    return {job.id: job.submitted + job.iterations / max(job.curve.values()) for job in jobs}


def other_rows(others: dict[str, Measured], rigid: Measured) -> list[Row]:
    """Return rows for the same jobs under other conditions (`others`, by text), each beside the rigid jobs."""
    peer = "rigid, first come with backfill"
    found = []
    for what, reached in others.items():
        found += [
            Row(f"the same, {what}: mean completion", "-", "s", [reached.completion], peer=peer,
                peer_samples=[rigid.completion]),
            Row(f"the same, {what}: deadlines met", "-", "", [reached.deadlines], peer=peer,
                peer_samples=[rigid.deadlines]),
        ]  # fmt: skip
    return found


if __name__ == "__main__":
    main()
