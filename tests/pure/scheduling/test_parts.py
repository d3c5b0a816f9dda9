"""GPUs that are given out in parts: shares are rounded up to them, and what no device gives is impossible, in words."""

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.view import ClusterView, DeviceView, JobView, NodeView, ProjectView


def cluster(*jobs: JobView, parts: int = 1000, is_single: bool = False, gpus: int = 2) -> ClusterView:
    devices = tuple(DeviceView(index, 40_000, 0, parts, is_single) for index in range(gpus))
    node = NodeView("dgx", "default", devices, 64_000, 512_000)
    return ClusterView("c", 0, (node,), (ProjectView("a", 2000, 2000),), (), jobs)


def share(number: int, milli_gpus: int = 0, memory_mib: int | None = None) -> JobView:
    return JobView(f"job-{number}", "a", number, milli_gpus=milli_gpus, gpu_memory_mib=memory_mib)


def taken(plan: Plan) -> list[tuple[tuple[int, int], ...]]:
    return [placement.devices for start in plan.starts for placement in start.placements]


@pytest.mark.parametrize(
    ("parts", "asked", "given"),
    [(4, 250, 250), (4, 251, 500), (4, 1, 250), (3, 333, 333), (3, 334, 666), (10, 500, 500), (1000, 7, 7)],
)
def test_a_share_takes_whole_parts(parts: int, asked: int, given: int):
    assert taken(decide(cluster(share(0, asked), parts=parts))) == [((0, given),)]


def test_as_many_shares_fit_a_device_as_it_has_parts():
    jobs = [share(number, 300) for number in range(7)]
    starts = taken(decide(cluster(*jobs, parts=3)))
    assert sorted(starts) == [((0, 333),)] * 3 + [((1, 333),)] * 3


def test_a_share_by_memory_takes_whole_parts_too():
    assert taken(decide(cluster(share(0, memory_mib=12_000), parts=4))) == [((0, 500),)]


def test_whole_gpus_go_to_nodes_that_share_by_time():
    assert taken(decide(cluster(share(0, 2000), parts=4))) == [((0, 1000), (1, 1000))]


@pytest.mark.parametrize(
    ("parts", "is_single", "asked", "words"),
    [
        (1, False, 500, "No node of this cluster shares its GPUs. Ask for a whole one"),
        (4, True, 300, "A pod gets at most 0.25 of a GPU"),
        (4, True, 1000, "No node of this cluster has 1 GPU. The largest that fits is 0 GPUs."),
    ],
)
def test_what_no_device_gives_is_impossible(parts: int, is_single: bool, asked: int, words: str):
    (hold,) = decide(cluster(share(0, asked), parts=parts, is_single=is_single)).holds
    assert hold.reason == "spec_impossible"
    assert words in describe(hold.reason, hold.details)


def test_memory_that_no_gpu_has_is_said_before_sharing():
    (hold,) = decide(cluster(share(0, memory_mib=50_000), parts=1)).holds
    assert "50000 MiB of GPU memory" in describe(hold.reason, hold.details)


def test_a_single_part_is_given():
    assert taken(decide(cluster(share(0, 200), parts=4, is_single=True))) == [((0, 250),)]


def test_nobody_is_stopped_for_a_whole_gpu_of_a_divided_node():
    victim = JobView(
        "old", "b", 0, state="active", milli_gpus=250,
        placements=decide(cluster(share(0, 250), parts=4, is_single=True)).starts[0].placements,
    )  # fmt: skip
    view = cluster(victim, share(1, 1000), parts=4, is_single=True)
    plan = decide(ClusterView("c", 0, view.nodes, (*view.projects, ProjectView("b", 0, 0)), (), view.jobs))
    assert plan.preempts == ()
