"""The cost of cache locations for the scheduler: 1,000 full or idle nodes, 2,000 queued jobs, pure core, CPU time.

Run: python -m bench.locality

The peer of each row is the same cluster with one location, decided in turn with it.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from bench.decide import large
from bench.harness import Row, report
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.view import ClusterView

PLACES = ("east", "north", "south", "west")
PEER = "the same with one location"
REPEATS = 9


def main() -> None:
    """Measure and report."""
    rows = []
    for name, is_full in (("full", True), ("idle", False)):
        plain = large(is_full=is_full)
        divided = over_places(plain)
        rows.append(beside(f"{name}, 4 locations, no job with data", plain, divided, 1.1))
        rows.append(
            beside(f"{name}, 4 locations, every 10th job has its data in one", plain, with_data(divided), 2.0)
        )
    report("locality", rows)


def beside(work: str, plain: ClusterView, view: ClusterView, limit: float) -> Row:
    """Return a row with `decide` of `view`, measured in turn with the peer, `decide` of `plain`. `limit`: the most
    that the first may take, as a multiple of the second."""
    ours, theirs = [], []
    for _ in range(REPEATS):
        theirs.append(cpu_ms(lambda: decide(plain)))
        ours.append(cpu_ms(lambda: decide(view)))
    plan = decide(view)
    note = f"{len(plan.starts)} started, {len(plan.holds)} held"
    return Row(work, f"<= {limit}x", "ms", ours, peer=PEER, peer_samples=theirs, ratio_limit=limit, note=note)


def cpu_ms(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def over_places(view: ClusterView) -> ClusterView:
    """Return the view with a quarter of its nodes at each of four locations."""
    nodes = [replace(node, location=PLACES[at % 4]) for at, node in enumerate(view.nodes)]
    return replace(view, nodes=tuple(nodes))


def with_data(view: ClusterView) -> ClusterView:
    """Return the view in which every tenth queued job mounts a dataset that is ready at one location."""
    jobs = [
        replace(job, locations=PLACES[at % 4 : at % 4 + 1], fillable=(PLACES[(at + 1) % 4],))
        if at % 10 == 0 and job.state == "queued"
        else job
        for at, job in enumerate(view.jobs)
    ]
    return replace(view, jobs=tuple(jobs))


if __name__ == "__main__":
    main()
