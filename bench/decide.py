"""`decide` on the four teams and on 1,000 nodes with 8,000 GPUs: the pure core in one process, without a database.

Run: python -m bench.decide [--profile]

The peer is the least that any scheduler has to do with such a cluster: parse the same view from JSON.
"""

import cProfile
import json
import random
import sys

from bench.harness import Row, report, time_ms
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.view import (
    ClusterView,
    DeviceView,
    JobView,
    NodeView,
    PodPlacement,
    ProjectView,
    view_to_dict,
)

NODES, DEVICES, PROJECTS, QUEUED = 1000, 8, 20, 2000
SIZES = (500, 1000, 2000, 4000, 8000)
NOW = 1_000_000
FLOOR = "json.loads of the view"


def main() -> None:
    """Measure and report; with --profile, print a profile of the plan for the large full cluster."""
    full = large(is_full=True)
    if "--profile" in sys.argv:
        cProfile.runctx("decide(full)", {"decide": decide, "full": full}, {}, sort="tottime")
        return
    report(
        "decide",
        [
            row("decide, four teams, 13 running and 6 queued", four_teams(), 5, repeats=200),
            row("decide, 1,000 idle nodes, 2,000 queued", large(is_full=False), 250),
            row("decide, 1,000 full nodes, 8,000 running, 2,000 queued", full, 250),
            row("decide, reclaim one GPU of 8,000 running jobs", one_is_owed(), 100),
            row("decide, reclaim for 20 jobs at once, 75 GPUs", many_are_owed(), 1000),
            row("decide, reclaim for 400 jobs of one GPU at once", owed((1000,) * 400), 1000),
            *crowded(),
        ],
    )


def row(work: str, view: ClusterView, limit_ms: float, repeats: int = 9) -> Row:
    """Return the row `work`: `repeats` decisions on a view, beside parsing the same view in the same run.
    `limit_ms`: the goal."""
    kept = json.dumps(view_to_dict(view))
    return Row(
        work,
        f"<= {limit_ms:.0f} ms",
        "ms",
        time_ms(lambda: decide(view), repeats),
        limit=limit_ms,
        peer=FLOOR,
        peer_samples=time_ms(lambda: json.loads(kept), repeats),
        note=found(view),
    )


def crowded() -> list[Row]:
    """Return two rows for 10,000 idle GPUs, 200 projects and 100,000 queued jobs: the plan, and the plan with all
    holds read."""
    projects = tuple(ProjectView(f"p{rank}", 50_000, 50_000, created_rank=rank) for rank in range(200))
    dice = random.Random(3)
    jobs = tuple(
        queued(f"q{rank}", projects[dice.randrange(200)].name, rank, dice.choice(SIZES))
        for rank in range(100_000)
    )
    view = ClusterView("crowded", NOW, cluster_nodes(1250), projects, jobs=jobs)
    kept = json.dumps(view_to_dict(view))
    works = {
        "decide, 10,000 idle GPUs, 200 projects, 100,000 queued": lambda: decide(view),
        "the same, with every Hold read": lambda: list(decide(view).holds),
    }
    return [
        Row(
            work,
            "<= 1x json.loads",
            "ms",
            time_ms(run, 3),
            peer=FLOOR,
            peer_samples=time_ms(lambda: json.loads(kept), 3),
            note=found(view),
        )
        for work, run in works.items()
    ]


def found(view: ClusterView) -> str:
    """Return the counts of the plan for a view as text, so that a fast but wrong answer shows."""
    plan = decide(view)
    return f"{len(plan.starts)} started, {len(plan.preempts)} preempted, {len(plan.holds)} held"


def large(*, is_full: bool) -> ClusterView:
    """Return 1,000 nodes and 2,000 queued jobs of five sizes from 20 projects. `is_full`: a one-GPU job runs on
    every device; otherwise all are idle."""
    dice = random.Random(1)
    projects = tuple(ProjectView(f"p{rank}", 300_000, 300_000, created_rank=rank) for rank in range(PROJECTS))
    jobs = running(projects, dice) if is_full else []
    for rank in range(QUEUED):
        name = projects[dice.randrange(PROJECTS)].name
        jobs.append(queued(f"q{rank}", name, 1_000_000 + rank, dice.choice(SIZES)))
    return ClusterView("large", NOW, cluster_nodes(), projects, jobs=tuple(jobs))


def one_is_owed() -> ClusterView:
    """Return a cluster filled by other projects on which a project requests the first GPU of its quota."""
    return owed((1000,))


def many_are_owed() -> ClusterView:
    """Return the cluster of `one_is_owed`, with twenty queued jobs of one to eight GPUs instead of one."""
    return owed((1000, 2000, 4000, 8000) * 5)


def owed(sizes: tuple[int, ...]) -> ClusterView:
    borrowers = tuple(ProjectView(f"p{rank}", 300_000, 300_000, created_rank=rank) for rank in range(4))
    owner = ProjectView("owner", 100_000, 100_000, created_rank=9)
    asks = [queued(f"q{rank}", "owner", 1_000_000 + rank, size) for rank, size in enumerate(sizes)]
    jobs = (*running(borrowers, random.Random(2)), *asks)
    return ClusterView("large", NOW, cluster_nodes(), (*borrowers, owner), jobs=jobs)


def four_teams() -> ClusterView:
    """Return the cluster of tests/scenarios/four_teams before its last step: 13 running jobs hold all 16 GPUs, and 6
    jobs of three teams are queued."""
    quotas = {"team-a": 4, "team-b": 2, "team-c": 2, "team-d": 8}
    projects = tuple(
        ProjectView(name, quota * 1000, quota * 1000, created_rank=rank)
        for rank, (name, quota) in enumerate(quotas.items())
    )
    nodes = tuple(NodeView(name, "default", devices(), 64_000, 512_000) for name in ("dgx1-1", "dgx1-2"))
    shares = {
        "team-a": (1, 1, 2),
        "team-b": (0.6, 0.4, 1),
        "team-c": (0.5, 0.3, 0.2, 1),
        "team-d": (4, 2, 2),
    }
    waiting = [
        queued(f"{team}-{rank}", team, 100 + rank, 2000)
        for rank, team in enumerate(("team-b", "team-c", "team-a", "team-a", "team-b", "team-c"))
    ]
    asks = tuple(
        queued(f"{team}-{rank}", team, rank, round(gpus * 1000))
        for team, sizes in shares.items()
        for rank, gpus in enumerate(sizes)
    )
    active: tuple[JobView, ...] = ()
    for ask in asks:  # one by one, as they were submitted
        start = decide(ClusterView("four-teams", NOW, nodes, projects, jobs=(*active, ask))).starts[0]
        active = (*active, active_job(ask, start.placements))
    return ClusterView("four-teams", NOW, nodes, projects, jobs=(*active, *waiting))


def cluster_nodes(count: int = NODES) -> tuple[NodeView, ...]:
    return tuple(NodeView(f"n{place:04}", "default", devices(), 128_000, 1_000_000) for place in range(count))


def devices() -> tuple[DeviceView, ...]:
    return tuple(DeviceView(index, 81_920) for index in range(DEVICES))


def running(projects: tuple[ProjectView, ...], dice: random.Random) -> list[JobView]:
    """Return a one-GPU job on every device, round robin over the projects, with start times drawn by `dice`."""
    jobs = []
    for rank in range(NODES * DEVICES):
        job = queued(f"r{rank}", projects[rank % len(projects)].name, rank, 1000)
        placement = PodPlacement(0, f"n{rank // DEVICES:04}", ((rank % DEVICES, 1000),))
        jobs.append(active_job(job, (placement,), started_at=NOW - dice.randrange(86_400)))
    return jobs


def queued(name: str, project: str, rank: int, milli_gpus: int) -> JobView:
    return JobView(name, project, rank, milli_gpus=milli_gpus, milli_cpus=4000, memory_mib=16_384)


def active_job(job: JobView, placements: tuple[PodPlacement, ...], started_at: int = NOW) -> JobView:
    return JobView(
        job.id,
        job.project,
        job.submit_rank,
        state="active",
        milli_gpus=job.milli_gpus,
        milli_cpus=job.milli_cpus,
        memory_mib=job.memory_mib,
        started_at=started_at,
        placements=placements,
    )


if __name__ == "__main__":
    main()
