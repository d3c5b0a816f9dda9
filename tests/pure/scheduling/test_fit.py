"""Where jobs stand: packing, fractions, gangs, pools, host room."""

from __future__ import annotations

import json
from dataclasses import replace

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.feasibility import FeasibilityCheck, _surely_fits
from controlplane.scheduling.fit import place
from controlplane.scheduling.initial_capacity import open_empty
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.view import DeviceView, view_from_dict, view_to_dict
from tests.pure.scheduling.builders import hold_of, job, node, nodes, project, running, view
from tests.pure.scheduling.random_views import random_view

ONE_PROJECT = [project("a", 8, node_pools=())]


def places(plan, name):
    start = next(start for start in plan.starts if start.job == name)
    return [(pod.node, *pod.devices) for pod in start.placements]


def test_small_jobs_pack_so_that_a_whole_node_stays_free():
    jobs = [*[job(f"a{rank}", "a", 1, rank=rank) for rank in range(8)], job("a9", "a", 8)]
    plan = decide(view(nodes(2), ONE_PROJECT, jobs))
    assert places(plan, "a9") == [("n1", *((index, 1000) for index in range(8)))]


def test_a_share_fills_the_fullest_shared_device_that_has_room():
    jobs = [
        running(job("a1", "a", 0.3), ("n0", [0]), share=300),
        running(job("a2", "a", 0.6), ("n0", [1]), share=600),
        running(job("a3", "a", 0.8), ("n1", [0]), share=800),
    ]
    the_nodes = nodes(2, 2)
    assert places(decide(view(the_nodes, ONE_PROJECT, [*jobs, job("a4", "a", 0.2)])), "a4") == [
        ("n1", (0, 200))
    ]
    assert places(decide(view(the_nodes, ONE_PROJECT, [*jobs, job("a4", "a", 0.4)])), "a4") == [
        ("n0", (1, 400))
    ]
    assert places(decide(view(the_nodes, ONE_PROJECT, [*jobs, job("a4", "a", 0.7)])), "a4") == [
        ("n0", (0, 700))
    ]
    assert places(decide(view(the_nodes, ONE_PROJECT, [*jobs, job("a4", "a", 0.75)])), "a4") == [
        ("n1", (1, 750))
    ]


def test_a_share_by_memory_is_rounded_up_on_the_device_at_hand():
    plan = decide(
        view([node("n0", 1, memory_mib=3000)], ONE_PROJECT, [job("a1", "a", 0, gpu_memory_mib=1000)])
    )
    assert places(plan, "a1") == [("n0", (0, 334))]
    mixed = [node("n0", 1, memory_mib=1000), node("n1", 1, memory_mib=8000)]
    plan = decide(view(mixed, ONE_PROJECT, [job("a1", "a", 0, gpu_memory_mib=2000)]))
    assert places(plan, "a1") == [("n1", (0, 250))]


def test_two_shares_by_memory_stand_on_one_device():
    jobs = [job("a1", "a", 0, gpu_memory_mib=1500), job("a2", "a", 0, gpu_memory_mib=1500)]
    plan = decide(view([node("n0", 2, memory_mib=3000)], ONE_PROJECT, jobs))
    assert places(plan, "a1") == places(plan, "a2") == [("n0", (0, 500))]


def test_a_gang_starts_whole_or_not_at_all():
    jobs = [running(job("a1", "a", 3), ("n0", [0, 1, 2])), job("a2", "a", 2, pods=4), job("a3", "a", 1)]
    plan = decide(view(nodes(2, 4), ONE_PROJECT, jobs))
    assert [start.job for start in plan.starts] == ["a3"]
    hold = hold_of(plan, "a2")
    assert (hold.reason, hold.details["pods_that_fit"]) == ("gang_does_not_fit", 2)
    plan = decide(view(nodes(2, 4), ONE_PROJECT, [job("a2", "a", 2, pods=4)]))
    assert [(pod.rank, pod.node) for pod in plan.starts[0].placements] == [
        (0, "n0"),
        (1, "n0"),
        (2, "n1"),
        (3, "n1"),
    ]


def test_pools_are_tried_in_order_and_a_gang_stays_in_one():
    the_nodes = [node("x0", 2, pool="x"), node("y0", 4, pool="y")]
    projects = [project("a", 8, node_pools=(("train", ("x", "y")),))]
    assert places(decide(view(the_nodes, projects, [job("a1", "a", 2)])), "a1")[0][0] == "x0"
    gang = decide(view(the_nodes, projects, [job("a1", "a", 2, pods=2)]))
    assert {pod.node for pod in gang.starts[0].placements} == {"y0"}
    too_wide = decide(view(the_nodes, projects, [job("a1", "a", 2, pods=3)]))
    assert hold_of(too_wide, "a1").reason == "spec_impossible"
    anywhere = decide(view(the_nodes, [project("a", 8)], [job("a1", "a", 2, pods=3)]))
    assert len(anywhere.starts) == 1


def test_a_job_names_one_pool_of_its_projects():
    the_nodes = [node("x0", 2, pool="x"), node("y0", 2, pool="y")]
    projects = [project("a", 8, node_pools=(("train", ("x",)),))]
    assert (
        places(decide(view(the_nodes, [project("a", 8)], [job("a1", "a", node_pool="y")])), "a1")[0][0]
        == "y0"
    )
    not_allowed = hold_of(decide(view(the_nodes, projects, [job("a1", "a", node_pool="y")])), "a1")
    assert (not_allowed.reason, not_allowed.details["allowed"]) == ("no_such_node_pool", ["x"])
    unknown = hold_of(decide(view(the_nodes, projects, [job("a1", "a", node_pool="z")])), "a1")
    assert (unknown.reason, unknown.details["existing"]) == ("no_such_node_pool", ["x", "y"])


def test_processors_and_memory_bound_too():
    jobs = [job("a1", "a", 1, milli_cpus=3000), job("a2", "a", 1, milli_cpus=3000)]
    plan = decide(view([node("n0", 2, milli_cpus=5000)], ONE_PROJECT, jobs))
    assert [start.job for start in plan.starts] == ["a1"]
    assert hold_of(plan, "a2").details["resource"] == "cpus"
    plan = decide(
        view(nodes(1, 2), ONE_PROJECT, [replace(one, milli_cpus=0, memory_mib=300_000) for one in jobs])
    )
    assert hold_of(plan, "a2").details["resource"] == "memory"


def test_what_nobody_counted_is_not_said_to_be_free():
    said = describe("gang_does_not_fit", {"pods": 8, "pods_that_fit": 5})
    assert "only 5 fit now. It waits" in said
    assert "(3 GPUs free)" in describe(
        "gang_does_not_fit", {"pods": 8, "pods_that_fit": 3, "free_milli_gpus": 3000}
    )


def test_who_fits_on_closed_nodes_alone_is_told_so():
    """No job's end would help: the open node is too small for it, however empty."""
    the_nodes = [node("n0", 2, milli_cpus=2000), node("n1", 4, is_schedulable=False)]
    hold = hold_of(decide(view(the_nodes, ONE_PROJECT, [job("a1", "a", 1, milli_cpus=4000)])), "a1")
    assert (hold.reason, hold.details["resource"], hold.details["is_shut_out"]) == (
        "cluster_full",
        "cpus",
        True,
    )
    assert describe(hold.reason, hold.details) == (
        "No node that takes pods has as much cpus as it needs; others are cordoned or not ready. "
        "It waits for one of those, or ask for less."
    )
    the_nodes = [node("n0", 2, milli_cpus=2000, pool="x"), node("n1", 4, is_schedulable=False, pool="y")]
    asks = [job("a1", "a", 1, milli_cpus=4000, node_pool="y")]
    hold = hold_of(decide(view(the_nodes, ONE_PROJECT, asks)), "a1")
    assert "resource" not in hold.details  # nothing is open there, whatever it asks for


def test_a_job_without_gpus_goes_where_fewest_whole_devices_are_lost():
    the_nodes = [node("cpu", 0), node("n0", 8)]
    plan = decide(view(the_nodes, ONE_PROJECT, [job("a1", "a", 0, milli_cpus=1000)]))
    assert places(plan, "a1") == [("cpu",)]


def test_a_closed_node_and_a_device_not_proven_free_get_nothing():
    busy = replace(node("n0", 2), devices=(DeviceView(0, 32768, held_milli_gpus=1000), DeviceView(1, 32768)))
    jobs = [job("a1", "a", 1), job("a2", "a", 1)]
    plan = decide(view([busy, node("n1", 2, is_schedulable=False)], ONE_PROJECT, jobs))
    assert [(start.job, start.placements[0].node, start.placements[0].devices) for start in plan.starts] == [
        ("a1", "n0", ((1, 1000),))
    ]


def test_a_pod_on_a_node_or_device_that_has_left_holds_nothing():
    jobs = [
        running(job("a1", "a", 1), ("gone", [0])),
        running(job("a2", "a", 1), ("n0", [7])),
        job("a3", "a", 2),
    ]
    plan = decide(view(nodes(1, 2), ONE_PROJECT, jobs))
    assert [start.job for start in plan.starts] == ["a3"]


# Nodes on which the cluster has just refused the job


def test_another_node_is_preferred_to_one_that_refused_the_job():
    for gpus, more in ((1, {}), (0.5, {}), (8, {"pods": 1}), (0, {})):
        wanted = job("a1", "a", gpus, avoid=("n0",), **more)
        assert [place[0] for place in places(decide(view(nodes(2), ONE_PROJECT, [wanted])), "a1")] == ["n1"]


def test_a_shared_device_of_a_node_that_refused_comes_after_a_whole_one_elsewhere():
    half = running(job("a1", "a", 0.5), ("n0", [0]), share=500)
    wanted = job("a2", "a", 0.5, avoid=("n0",))
    assert places(decide(view(nodes(2), ONE_PROJECT, [half, wanted])), "a2") == [("n1", (0, 500))]


def test_a_later_pool_comes_before_a_node_that_refused():
    pools = (("train", ("first", "second")),)
    the_nodes = [node("n0", pool="first"), node("n1", pool="second")]
    wanted = job("a1", "a", 1, avoid=("n0",))
    plan = decide(view(the_nodes, [project("a", 8, node_pools=pools)], [wanted]))
    assert places(plan, "a1") == [("n1", (0, 1000))]


def test_a_gang_takes_of_a_node_that_refused_what_fits_nowhere_else():
    wanted = job("a1", "a", 1, pods=6, avoid=("n0",))
    plan = decide(view([node("n0", 4), node("n1", 4)], ONE_PROJECT, [wanted]))
    assert sorted(place[0] for place in places(plan, "a1")) == ["n0"] * 2 + ["n1"] * 4


def test_a_node_that_refused_is_better_than_waiting_or_taking_from_somebody():
    borrower = running(job("b1", "b", 8), ("n1", range(8)))
    wanted = job("a1", "a", 8, avoid=("n0",))
    plan = decide(view(nodes(2), [project("a", 8), project("b", 0)], [borrower, wanted]))
    assert plan.preempts == ()
    assert places(plan, "a1")[0][0] == "n0"


def test_what_a_job_avoids_survives_a_recording():
    before = view(nodes(1), ONE_PROJECT, [job("a1", "a", avoid=("n0",))])
    assert view_from_dict(json.loads(json.dumps(view_to_dict(before)))) == before


def test_a_request_that_surely_fits_has_room_on_the_empty_cluster():
    sure = 0
    for seed in range(200):
        cluster = random_view(seed)
        check, empty = FeasibilityCheck(cluster), open_empty(cluster)
        for request in [check.request(one) for one in cluster.jobs]:
            if _surely_fits(request, cluster.nodes):
                sure += 1
                assert place(request, empty) is not None, (seed, request)
    assert sure > 300
