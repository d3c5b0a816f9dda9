"""The scheduler at 10,000 GPUs, 200 projects and 100,000 queued jobs: cold, steady, and reclaim. No database.

Run: python -m bench.scheduling [--profile ROW]

The goals are for a machine on which `python -c pass` takes 8 ms; the first row measures it here, and the other goals
are scaled by the ratio. The peer is parsing the same view from JSON, in the same run. All figures are CPU time of
this process, so that other programs on the machine count as little as possible.
"""

import cProfile
import gc
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bench.decide import FLOOR, NOW, SIZES, active_job, cluster_nodes, queued
from bench.harness import Row, report
from bench.traces import GARBAGE_THRESHOLDS
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.view import ClusterView, JobView, PodPlacement, ProjectView, view_to_dict

NODES, PROJECTS, QUEUED = 1250, 200, 100_000
REFERENCE_MS = 8.0
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Work:
    """One row to measure. `prepare` gets `view` and returns the function that is timed. `limit_ms` is for the
    reference machine. `beside_json`: it must also be as fast as the peer."""

    name: str
    limit_ms: float
    view: ClusterView
    prepare: Callable[[ClusterView], Callable[[], Plan]]
    beside_json: bool = False


def main() -> None:
    """Measure all rows and report; with --profile TEXT, print profiles of the rows whose name contains TEXT."""
    if "--profile" in sys.argv:
        wanted = sys.argv[sys.argv.index("--profile") + 1]
        for work in works():
            if wanted in work.name:
                run = work.prepare(work.view)
                cProfile.runctx("run()", {"run": run}, {}, sort="tottime")
        return
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    start_ms = python_ms()
    scale = max(1.0, sorted(start_ms)[len(start_ms) // 2] / REFERENCE_MS)
    rows = [Row("python -c pass, CPU", "8 ms on the reference", "ms", start_ms, note=f"scale {scale:.2f}")]
    rows += [measure(work, scale) for work in works()]
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows.append(Row("RSS of this process at most", "<= 1,024 MB", "MB", [rss], limit=1024))
    report("scheduling", rows)


def works() -> Iterator[Work]:
    """Yield the rows to measure; only one view is kept in memory at a time."""
    yield Work("cold plan, empty cluster, 100,000 queued", 400, crowded([]), cold, beside_json=True)
    quotas = even()
    full = crowded(quotas)
    yield Work("cold plan, full cluster, each project at its quota", 400, full, cold, beside_json=True)
    yield Work("steady: nothing changed", 5, full, unchanged)
    yield Work("steady: one job ended", 10, full, one_ended)
    yield Work("steady: 1 % of the jobs changed", 100, full, one_percent_changed)
    del full
    uneven = crowded(held_by(range(PROJECTS), random.Random(5)))
    yield Work("cold plan, full cluster, quotas missed by chance", 400, uneven, cold, beside_json=True)
    del uneven
    half = crowded(held_by(range(PROJECTS // 2), random.Random(5)))
    yield Work("cold plan, full cluster, half of the projects hold it", 400, half, cold, beside_json=True)
    del half
    yield Work("reclaim of one GPU, 10,000 running, cold", 20, owed((1000,)), cold)
    yield Work("reclaim of one GPU, 10,000 running, state kept", 20, owed((1000,)), submitted)
    yield Work("reclaim of 400 GPUs at once, state kept", 200, owed((1000,) * 400), submitted)
    yield Work("reclaim of 2,000 GPUs for a gang, state kept", 500, owed((8000,), pods=250), submitted)
    yield Work("a gang that cannot fit, with its reason", 10, owed((8000,), pods=2000), submitted_and_read)
    yield Work(
        "a gang that must wait, with its reason", 10, owed((8000,), pods=250, quota=0), submitted_and_read
    )


def measure(work: Work, scale: float) -> Row:
    """Return the row of one work; each repetition has new scheduler state. `scale`: factor for the goal on this
    machine."""
    plan = Plan()
    samples = []
    for _ in range(REPEATS):
        # The state of the last repetition is freed here, not in the time that is measured.
        del plan
        run = work.prepare(work.view)
        began = time.process_time()
        plan = run()
        samples.append((time.process_time() - began) * 1000)
    limit = work.limit_ms * scale
    kept = json.dumps(view_to_dict(work.view))
    return Row(
        work.name,
        f"<= {work.limit_ms:g} ms x scale" + (", <= 1x json.loads" if work.beside_json else ""),
        "ms",
        samples,
        limit=limit,
        peer=FLOOR,
        peer_samples=cpu_ms(lambda: json.loads(kept)),
        ratio_limit=1 if work.beside_json else None,
        note=f"{len(plan.starts)} started, {len(plan.preempts)} preempted; limit {limit:.0f} ms",
    )


def cold(view: ClusterView) -> Callable[[], Plan]:
    """Return a function that decides on the view without cached state."""
    return lambda: decide(view)


def unchanged(view: ClusterView) -> Callable[[], Plan]:
    """Return a function that decides on the view a second after a first decision, with equal jobs in another
    tuple."""
    return after_first(view, lambda jobs: (*jobs[:1], *jobs[1:]))


def one_ended(view: ClusterView) -> Callable[[], Plan]:
    """Return a function that decides on the view after a first decision and the end of a running job."""
    return after_first(view, lambda jobs: jobs[1:])


def one_percent_changed(view: ClusterView) -> Callable[[], Plan]:
    """Return a function that decides on the view after a first decision and a change of a hundredth of its jobs:
    half of them ended, half were submitted."""
    count = len(view.jobs) // 100
    names = [project.name for project in view.projects]
    added = [queued(f"z{rank}", names[rank % PROJECTS], 9_000_000 + rank, 1000) for rank in range(count // 2)]
    return after_first(view, lambda jobs: (*jobs[count // 2 :], *added))


def submitted(view: ClusterView) -> Callable[[], Plan]:
    """Return a function that decides after the view's queued jobs were submitted to a cluster that had none."""
    running = tuple(job for job in view.jobs if job.state == "active")
    return after_first(replace(view, jobs=running), lambda _: view.jobs)


def submitted_and_read(view: ClusterView) -> Callable[[], Plan]:
    """Return a function that decides as that of `submitted`, and reads the reason of every held job."""
    run = submitted(view)

    def read() -> Plan:
        plan = run()
        list(plan.holds)
        return plan

    return read


def after_first(
    view: ClusterView, change: Callable[[tuple[JobView, ...]], tuple[JobView, ...]]
) -> Callable[[], Plan]:
    scheduler = Scheduler()
    scheduler.decide(view)
    later = replace(view, now=view.now + 1, jobs=change(view.jobs))
    return lambda: scheduler.decide(later)


def crowded(running: list[JobView]) -> ClusterView:
    """Return a view with these running jobs and 100,000 queued ones of five sizes from 200 projects with quotas of 50
    GPUs."""
    dice = random.Random(3)
    asks = [
        queued(f"q{rank}", f"p{dice.randrange(PROJECTS)}", 1_000_000 + rank, dice.choice(SIZES))
        for rank in range(QUEUED)
    ]
    return ClusterView("crowded", NOW, cluster_nodes(NODES), projects(), jobs=(*running, *asks))


def projects() -> tuple[ProjectView, ...]:
    return tuple(ProjectView(f"p{rank}", 50_000, 50_000, created_rank=rank) for rank in range(PROJECTS))


def even() -> list[JobView]:
    """Return a one-GPU job on every device, round robin over the projects."""
    return [running(rank, f"p{rank % PROJECTS}") for rank in range(NODES * 8)]


def held_by(holders: range, dice: random.Random) -> list[JobView]:
    """Return a one-GPU job on every device, each of a project among `holders` that `dice` draws."""
    return [running(rank, f"p{dice.choice(holders)}") for rank in range(NODES * 8)]


def running(rank: int, project: str) -> JobView:
    job = queued(f"r{rank}", project, rank, 1000)
    placement = PodPlacement(0, f"n{rank // 8:04}", ((rank % 8, 1000),))
    return active_job(job, (placement,), started_at=NOW - rank * 7919 % 86_400)


def owed(sizes: tuple[int, ...], pods: int = 1, quota: int = 2_000_000) -> ClusterView:
    """Return a cluster filled by four projects, and a fifth project with this `quota` (milli-GPUs) that has a queued
    job of `pods` pods for each of `sizes` (milli-GPUs per pod)."""
    borrowers = tuple(ProjectView(f"p{rank}", 1_000_000, 1_000_000, created_rank=rank) for rank in range(4))
    owner = ProjectView("owner", quota, quota, created_rank=9)
    jobs = [running(rank, f"p{rank % 4}") for rank in range(NODES * 8)]
    asks = [
        replace(queued(f"q{rank}", "owner", 1_000_000 + rank, size), pods=pods)
        for rank, size in enumerate(sizes)
    ]
    return ClusterView("owed", NOW, cluster_nodes(NODES), (*borrowers, owner), jobs=(*jobs, *asks))


def cpu_ms(work: Callable[[], object]) -> list[float]:
    samples = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        samples.append((time.process_time() - began) * 1000)
    return samples


def python_ms() -> list[float]:
    """Return the CPU milliseconds of interpreters that do nothing."""
    samples = []
    for _ in range(15):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        samples.append(1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return samples


if __name__ == "__main__":
    main()
