"""Workers of elastic jobs leave where that makes room for a waiting job of their project."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.division import Claim
from controlplane.scheduling.fit import request_of
from controlplane.scheduling.scale_down import PendingJob, ShrinkableJob, workers_to_remove
from controlplane.scheduling.spare import free_gpus, room_after
from controlplane.scheduling.view import ClusterView, JobView
from tests.pure.scheduling.builders import apply, job, names, node, nodes, project, running, view

FLAT, LINEAR = ((1, 1.0), (8, 1.2)), ((1, 1.0), (8, 8.0))
Speeds = tuple[tuple[int, float], ...]


def elastic(name: str, *places: tuple[str, list[int]], fewest: int = 1, **more) -> JobView:
    """A running elastic job: a worker per ("node", device indexes)."""
    gpus = len(places[0][1])
    return running(job(name, "p", gpus, kind="elastic", min_pods=fewest, **more), *places)


def left(seen: ClusterView, speeds: Mapping[str, Speeds] | None = None, **more) -> dict[str, tuple[int, ...]]:
    """Which ranks leave, by job. In doubt the newest worker of a job leaves first."""
    plan, by_id = decide(seen), {one.id: one for one in seen.jobs}
    assert not plan.starts
    runs = [one for one in seen.jobs if one.min_pods is not None and one.state == "active"]
    claims = [
        Claim(
            one.id, len(one.placements), one.min_pods or 1, 100, one.sizes, (speeds or {}).get(one.id, ()),
            3_600.0, (one.milli_gpus // 1000,), one.project, one.priority, **more,
        )
        for one in runs
    ]  # fmt: skip
    shrinkable = [
        ShrinkableJob(claim, one, one.placements[::-1])
        for claim, one in zip(claims, runs, strict=True)
        if claim.may_shrink
    ]
    queue = [PendingJob(by_id[hold.job], request_of(by_id[hold.job], ())) for hold in plan.holds]
    return dict(workers_to_remove(claims, shrinkable, [queue], room_after(seen, plan)))


def shrunk(seen: ClusterView, leaving: Mapping[str, tuple[int, ...]]) -> ClusterView:
    def after(one: JobView) -> JobView:
        gone = leaving.get(one.id, ())
        return replace(one, placements=tuple(pod for pod in one.placements if pod.rank not in gone))

    return replace(seen, jobs=tuple(map(after, seen.jobs)))


PROJECTS = [project("p", 100), project("other", 0)]


def test_scattered_free_gpus_are_no_room_for_a_pod_of_two():
    """One free GPU on each of two nodes, and a worker beside each."""
    one = elastic("a", ("n0", [0]), ("n0", [1]), ("n1", [0]), ("n1", [1]))
    seen = view(nodes(2, 3), PROJECTS, [one, job("w9", "p", 2)])
    assert left(seen) == {"a": (3,)}
    after = shrunk(seen, {"a": (3,)})
    assert names(decide(after).starts) == ["w9"]
    assert left(apply(after, decide(after))) == {}


def test_small_workers_make_room_for_a_larger_pod_on_one_node():
    jobs = [elastic(name, *[(at, [index]) for index in range(4)]) for name, at in (("a", "n0"), ("b", "n1"))]
    seen = view(nodes(2, 4), PROJECTS, [*jobs, job("w9", "p", 3)])
    assert left(seen, {"a": LINEAR, "b": FLAT}) == {"b": (1, 2, 3)}
    # Each could give three, but not four.
    assert left(replace(seen, jobs=(*jobs, job("w9", "p", 4)))) == {}


def test_a_large_worker_goes_instead_of_several_small_ones():
    small = elastic("a", *[("n0", [index]) for index in range(4)])
    large = elastic("b", ("n0", [4, 5]), ("n0", [6, 7]))
    seen = view([node("n0", 8)], PROJECTS, [small, large, job("w9", "p", 2)])
    assert left(seen, {"b": FLAT}) == {"b": (1,)}
    assert left(replace(seen, jobs=(small, large, job("w9", "p", 1)))) == {"a": (3,)}


def test_a_gang_gets_nodes_one_by_one_and_no_worker_leaves_in_vain():
    one = elastic("a", *[(f"n{at}", [index]) for at in range(3) for index in range(2)])
    seen = view(nodes(3, 2), PROJECTS, [one, job("w9", "p", 2, pods=2)])
    assert left(seen) == {"a": (2, 3, 4, 5)}
    # The minimum needs one node more.
    assert left(replace(seen, jobs=(replace(one, min_pods=3), seen.jobs[1]))) == {}


def test_processors_count_as_well_as_gpus():
    one = elastic("a", *[("n0", [index]) for index in range(4)], milli_cpus=1_000)
    seen = view([node("n0", 8, milli_cpus=4_500)], PROJECTS, [one, job("w9", "p", 1, milli_cpus=1_500)])
    assert left(seen) == {"a": (3,)}


def test_a_job_that_shrinks_to_an_allowed_size_frees_the_rest_too():
    one = elastic("a", *[("n0", [index]) for index in range(8)], sizes=(2, 4, 8))
    seen = view([node("n0", 8)], PROJECTS, [one, job("w8", "p", 1), job("w9", "p", 3)])
    assert left(seen) == {"a": (4, 5, 6, 7)}


def test_waiting_jobs_are_admitted_in_their_order_up_to_the_first_that_cannot_be():
    one = elastic("a", *[("n0", [index]) for index in range(4)])
    large, small = job("w7", "p", 4), job("w8", "p", 1)
    assert left(view([node("n0", 4)], PROJECTS, [one, small, replace(large, submit_rank=9)])) == {"a": (3,)}
    # What is freed for the second could be given to the first.
    assert left(view([node("n0", 4)], PROJECTS, [one, small, large])) == {}


def test_a_job_that_may_not_shrink_keeps_its_workers():
    one = elastic("a", *[("n0", [index]) for index in range(4)])
    seen = view([node("n0", 4)], PROJECTS, [one, job("w9", "p", 1)])
    assert left(seen) == {"a": (3,)}
    assert left(seen, may_shrink=False) == {}
    assert left(replace(seen, jobs=(replace(one, priority=60), seen.jobs[1]))) == {}
    assert left(replace(seen, jobs=(replace(one, project="other"), seen.jobs[1]))) == {}
    assert left(replace(seen, nodes=(node("n0", 4, is_schedulable=False), node("n1", 0)))) == {}


def test_in_named_pools_a_gang_gets_one_of_them():
    one = elastic("a", *[(f"n{at}", [index]) for at in range(2) for index in range(4)])
    pools = (node("n0", 4, pool="x"), node("n1", 4, pool="y"))
    waits = job("w9", "p", 2, pods=2, node_pool="x")
    seen = view(pools, PROJECTS, [one, waits])
    claims = [Claim("a", 8, 1, 8, project="p", priority=50)]
    pending = PendingJob(waits, request_of(waits, ("x",)))
    found = workers_to_remove(
        claims,
        [ShrinkableJob(claims[0], one, one.placements[::-1])],
        [[pending]],
        room_after(seen, decide(seen)),
    )
    assert found == {"a": (0, 1, 2, 3)}


@pytest.mark.parametrize("seed", range(100))
def test_every_serving_holds_the_bounds_helps_and_comes_to_rest(seed: int):
    """Applied again and again: who leaves lets a job start, none leaves in vain, and then nothing changes."""
    seen = _drawn(random.Random(seed))
    for _ in range(40):
        plan = decide(seen)
        if plan.starts or plan.preempts:
            seen = apply(seen, plan)
            continue
        leaving = left(seen)
        if not leaving:
            break
        after = shrunk(seen, leaving)
        for one in after.jobs:
            if one.id in leaving:
                assert len(one.placements) >= (one.min_pods or 0)
                assert not one.sizes or len(one.placements) in one.sizes
        assert decide(after).starts
        if len(plan.holds) == 1:
            _check_all_needed(seen, leaving)
        seen = after
    assert not leaving


def _check_all_needed(seen: ClusterView, leaving: Mapping[str, tuple[int, ...]]) -> None:
    # Workers that leave only for an allowed size free GPUs that nobody asked for: another's can then be too many.
    if any(one.sizes for one in seen.jobs if one.id in leaving):
        return
    for name, ranks in leaving.items():
        for rank in ranks:
            fewer = {**leaving, name: tuple(other for other in ranks if other != rank)}
            assert not decide(shrunk(seen, fewer)).starts


def _drawn(draw: random.Random) -> ClusterView:
    """Full or nearly full nodes of fixed and elastic jobs of one project, and up to three jobs that wait."""
    the_nodes = nodes(draw.randint(1, 4), draw.choice((2, 4, 8)))
    free = [(one.name, device.index) for one in the_nodes for device in one.devices]
    free = [at for at in free if draw.random() < 0.9]
    jobs: list[JobView] = []
    while free:
        gpus, wanted = draw.choice((1, 1, 2)), draw.randint(1, 6)
        places: list[tuple[str, list[int]]] = []
        for name in draw.sample(on := sorted({name for name, _ in free}), len(on)):
            here = [index for at, index in free if at == name]
            while len(here) >= gpus and len(places) < wanted:
                places.append((name, here[:gpus]))
                here = here[gpus:]
        if not places:
            break
        taken = {(name, index) for name, indexes in places for index in indexes}
        free = [at for at in free if at not in taken]
        jobs.append(_running(draw, f"r{len(jobs)}", places))
    waiting = [
        job(f"w{100 + at}", "p", draw.randint(1, 4), pods=draw.choice((1, 1, 2, 3)))
        for at in range(draw.randint(1, 3))
    ]
    return view(the_nodes, PROJECTS, [*jobs, *waiting])


def _running(draw: random.Random, name: str, places: list[tuple[str, list[int]]]) -> JobView:
    if draw.random() < 0.3:
        return running(job(name, "p", len(places[0][1])), *places)
    powers = len(places) in (1, 2, 4) and draw.random() < 0.5
    return elastic(name, *places, fewest=1, sizes=(1, 2, 4, 8) if powers else ())


def test_free_gpus_count_for_workers_that_fit_on_one_node():
    one = elastic("a", ("n0", [0, 1]), ("n1", [0, 1]))
    seen = view(nodes(3, 3), PROJECTS, [one])
    assert free_gpus(seen, decide(seen), one) == 2
    assert free_gpus(seen, decide(seen), replace(one, milli_gpus=1000)) == 5
