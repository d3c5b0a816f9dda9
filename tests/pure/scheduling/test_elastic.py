"""How many pods an elastic job starts with, and how it gives way."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.delegated import Bound, Offer, decide_offers
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.search import find_victims
from controlplane.scheduling.suggestions import suggest
from controlplane.scheduling.view import DepartmentView, DeviceView, view_from_dict, view_to_dict
from tests.pure.scheduling.builders import (
    allocated,
    apply,
    gone,
    hold_of,
    interactive,
    job,
    names,
    node,
    nodes,
    project,
    running,
    settle,
    view,
)


def elastic(name, project_name, fewest, most, gpus=1.0, **more):
    return job(name, project_name, gpus, kind="elastic", pods=most, min_pods=fewest, **more)


def large(queued, *places, **more):
    """The elastic job, running; its wishes stay as they are."""
    return replace(running(queued, *places, **more), pods=queued.pods)


def size_of(plan, name):
    return next(len(start.placements) for start in plan.starts if start.job == name)


def sizes(cluster):
    return {item.id: len(item.placements) for item in cluster.jobs if item.kind == "elastic"}


@pytest.mark.parametrize(
    ("free", "quota", "expected"), [(8, 8, 8), (7, 8, 4), (3, 8, 2), (1, 8, 1), (8, 3, 2)]
)
def test_it_starts_with_an_allowed_size(free, quota, expected):
    busy = running(interactive("b1", "b", 8 - free), ("n0", range(8 - free))) if free < 8 else None
    jobs = [elastic("a1", "a", 1, 8, sizes=(1, 2, 4, 8)), *([busy] if busy else [])]
    cluster = view(nodes(1), [project("a", quota, limit_milli_gpus=quota * 1000), project("b", 8)], jobs)
    assert size_of(decide(cluster), "a1") == expected
    assert view_from_dict(view_to_dict(cluster)) == cluster


@pytest.mark.parametrize(("free", "expected"), [(8, 5), (5, 5), (3, 3), (1, 1)])
def test_it_starts_with_as_many_pods_as_fit(free, expected):
    busy = running(interactive("b1", "b", 8 - free), ("n0", range(8 - free))) if free < 8 else None
    jobs = [elastic("a1", "a", 1, 5), *([busy] if busy else [])]
    plan = decide(view(nodes(1), [project("a", 8), project("b", 8)], jobs))
    start = plan.starts[0]
    assert [pod.rank for pod in start.placements] == list(range(expected))
    words = f"Started with {expected} of 5 workers inside the quota of a (8)."
    assert describe(start.reason, start.details) == words


def test_it_never_starts_with_fewer_than_its_least():
    busy = running(interactive("b1", "b", 7), ("n0", range(7)))
    cluster = view(nodes(1), [project("a", 1), project("b", 7)], [elastic("a1", "a", 2, 5), busy])
    hold = hold_of(decide(cluster), "a1")
    assert hold.reason == "gang_does_not_fit"
    assert describe(hold.reason, hold.details).startswith(
        "At least 2 workers must start together, and only 1 fit now"
    )
    assert suggest(cluster, "a1")[0]["text"] == "it could run with 1 worker"


def test_only_its_least_must_fit_the_empty_cluster():
    projects = [project("a", 8)]
    assert size_of(decide(view(nodes(1, 4), projects, [elastic("a1", "a", 1, 100)])), "a1") == 4
    assert hold_of(decide(view(nodes(1, 4), projects, [elastic("a1", "a", 5, 9)])), "a1").reason == (
        "spec_impossible"
    )


def test_a_limit_and_a_quota_that_binds_count_for_its_size():
    limited = [project("a", 1, limit_milli_gpus=3000)]
    assert size_of(decide(view(nodes(1), limited, [elastic("a1", "a", 1, 8)])), "a1") == 3
    fixed = elastic("a1", "a", 1, 8, is_preemptible=False)
    assert size_of(decide(view(nodes(1), [project("a", 2)], [fixed])), "a1") == 2


def test_what_is_stopping_counts_until_it_is_gone():
    stopping = running(job("a0", "a", 2), ("n0", range(2)), is_stopping=True)
    limited = [project("a", 1, limit_milli_gpus=3000)]
    assert size_of(decide(view(nodes(1), limited, [stopping, elastic("a1", "a", 1, 8)])), "a1") == 1


def test_pods_of_several_gpus_and_of_none():
    projects = [project("a", 8)]
    assert size_of(decide(view(nodes(2, 3), projects, [elastic("a1", "a", 1, 8, gpus=2)])), "a1") == 2
    assert size_of(decide(view(nodes(1, 1), projects, [elastic("a1", "a", 1, 8, gpus=0)])), "a1") == 8


@pytest.mark.parametrize("rank", [1, 99])
def test_room_beyond_its_share_is_for_whoever_asks(rank):
    jobs = [elastic("a1", "a", 1, 8, rank=rank), *(job(f"b{number}", "b") for number in range(20, 24))]
    plan = decide(view(nodes(1), [project("a", 4), project("b", 4)], jobs))
    assert size_of(plan, "a1") == 4
    assert len(plan.starts) == 5


def test_two_of_them_share_what_there_is():
    jobs = [elastic("a1", "a", 1, 8), elastic("b2", "b", 1, 8)]
    plan = decide(view(nodes(1), [project("a", 2), project("b", 2)], jobs))
    assert (size_of(plan, "a1"), size_of(plan, "b2")) == (4, 4)


def test_what_nobody_else_can_use_is_its_own():
    """The gang of b does not fit, and b is not owed it: the idle GPUs go to whoever can use them."""
    jobs = [elastic("a1", "a", 1, 8), job("b2", "b", 1, pods=9)]
    plan = decide(view(nodes(2, 5), [project("a", 1), project("b", 1)], jobs))
    assert size_of(plan, "a1") == 8
    assert plan.starts[0].reason == "started_over_quota"


def test_it_leaves_idle_what_would_be_taken_back():
    """b waits for a whole node. It may not take what a has a share of, but it could stop all of a that holds more."""
    jobs = [
        running(interactive("c1", "c"), ("n0", [0])),
        running(job("a2", "a"), ("n1", [0])),
        elastic("a3", "a", 1, 8),
        job("b4", "b", 4),
    ]
    cluster = view(
        nodes(2, 4), [project("a", 0, weight=1000), project("b", 0, weight=3000), project("c", 1)], jobs
    )
    plan = decide(cluster)
    assert size_of(plan, "a3") == 2
    assert not decide(apply(cluster, plan)).preempts


def test_whether_it_would_be_taken_back_is_asked_once_for_all_who_are_alike(monkeypatch):
    """What a holds may be taken, but frees no whole node."""
    asked = []

    def find(*question):
        asked.append(question)
        return find_victims(*question)

    monkeypatch.setattr("controlplane.scheduling.moves.find_victims", find)
    jobs = [
        running(interactive("c1", "c"), ("n0", [0])),
        running(interactive("c2", "c"), ("n1", [3])),
        running(job("a2", "a"), ("n1", [0])),
        elastic("a3", "a", 1, 8),
        *(job(f"b{number}", "b", 4) for number in range(4, 44)),
    ]
    cluster = view(nodes(2, 4), [project("a", 1), project("b", 0, weight=3000), project("c", 2)], jobs)
    assert size_of(decide(cluster), "a3") == 5
    assert 0 < len(asked) <= 6


def test_it_would_sooner_be_small_than_have_others_stopped():
    jobs = [
        *(running(job(f"b{index}", "b"), ("n0", [index])) for index in range(7)),
        elastic("a9", "a", 1, 8),
    ]
    plan = decide(view(nodes(1), [project("a", 6), project("b", 2)], jobs))
    assert (size_of(plan, "a9"), plan.preempts) == (1, ())


def test_no_more_are_stopped_than_its_least_needs():
    jobs = [
        *(running(job(f"b{index}", "b"), ("n0", [index])) for index in range(8)),
        elastic("a9", "a", 3, 8),
    ]
    cluster = view(nodes(1), [project("a", 6), project("b", 2)], jobs)
    plan = decide(cluster)
    assert names(plan.preempts) == ["b5", "b6", "b7"]
    assert size_of(decide(apply(cluster, plan)), "a9") == 3


def test_it_takes_its_share_of_what_is_freed_for_it():
    """One job of four GPUs has to go for one pod: the three that are left are a's quota."""
    jobs = [
        running(job("b1", "b", 4), ("n0", range(4))),
        running(job("b2", "b", 4), ("n0", range(4, 8))),
        elastic("a9", "a", 1, 8),
    ]
    cluster = view(nodes(1), [project("a", 3), project("b", 5)], jobs)
    plan = decide(cluster)
    hold = hold_of(plan, "a9")
    assert names(plan.preempts) == ["b2"]
    assert len(hold.details["promised"]) == 3
    assert describe(hold.reason, hold.details).startswith("3 GPUs are being freed for it by stopping 1 job.")
    after = apply(cluster, plan, is_gone=False)
    assert not decide(after).starts
    assert size_of(decide(gone(after)), "a9") == 4  # the one that is left is of no use to b2


@pytest.mark.parametrize("is_gone", [True, False])
def test_reclaimed_it_starts_again_smaller_in_the_cycle_in_which_its_gpus_are_free(is_gone):
    jobs = [large(elastic("a1", "a", 1, 8), ("n0", [0]), *(("n0", [index]) for index in range(1, 8)))]
    newcomers = [job(f"b{rank}", "b") for rank in range(2, 5)]
    cluster = view(nodes(1), [project("a", 4), project("b", 4)], [*jobs, *newcomers])
    plan = decide(cluster)
    assert [(one.job, one.kind) for one in plan.preempts] == [("a1", "reclaim")]
    after = apply(cluster, plan, is_gone=is_gone)
    if not is_gone:
        assert not decide(after).starts
        after = gone(after)
    plan = decide(after)
    assert names(plan.starts) == ["a1", "b2", "b3", "b4"]
    assert size_of(plan, "a1") == 5
    assert not decide(apply(after, plan)).preempts


def test_it_is_the_first_to_give_way():
    """A smaller job would preemption_cost less, but that one would have to wait; a1 goes on with one worker less."""
    jobs = [
        large(elastic("a1", "a", 1, 7), *(("n0", [index]) for index in range(7))),
        running(job("a2", "a"), ("n0", [7])),
        job("b3", "b"),
    ]
    cluster = view(nodes(1), [project("a", 4), project("b", 4)], jobs)
    plan = decide(cluster)
    assert names(plan.preempts) == ["a1"]
    after = settle(cluster, decide)
    assert (sizes(after), allocated(after)) == ({"a1": 6}, {"a": 7000, "b": 1000})


def test_it_is_no_sooner_taken_where_it_could_not_go_on():
    """Without a1 seven GPUs would be free, and five once b3 has its two: a1 needs six."""
    jobs = [
        large(elastic("a1", "a", 6, 7), *(("n0", [index]) for index in range(7))),
        running(job("a2", "a", 2), ("n0", [7, 8])),
        job("b3", "b", 2),
    ]
    plan = decide(view(nodes(1, 9), [project("a", 4), project("b", 4)], jobs))
    assert names(plan.preempts) == ["a2"]
    jobs[0] = large(elastic("a1", "a", 5, 7), *(("n0", [index]) for index in range(7)))
    plan = decide(view(nodes(1, 9), [project("a", 4), project("b", 4)], jobs))
    assert names(plan.preempts) == ["a1"]


def test_two_that_want_everything_do_not_take_turns():
    jobs = [large(elastic("a1", "a", 1, 8), *(("n0", [index]) for index in range(8)))]
    cluster = view(nodes(1), [project("a", 2), project("b", 2)], [*jobs, elastic("b2", "b", 1, 8)])
    assert sizes(settle(cluster, decide)) == {"a1": 4, "b2": 4}


def test_where_shares_are_oversold_nobody_takes_more_than_its_quota_by_right():
    """Else b and c would stop each other for ever: each in its quota with one pod, and above it with two."""
    projects = [
        project("a", 2.5, department="d"),
        project("b", 1, weight=2000, department="e"),
        project("c", 1, weight=1000, department="e"),
    ]
    departments = (DepartmentView("d", 3000, 3000), DepartmentView("e", 5000, 5000))
    jobs = [
        large(elastic("a1", "a", 1, 5), ("n1", [0]), ("n1", [1])),
        elastic("a2", "a", 1, 4),
        large(elastic("c3", "c", 1, 5), ("n0", [0]), ("n0", [1])),
        elastic("b4", "b", 1, 3),
    ]
    settled = settle(view(nodes(2, 2), projects, jobs, departments=departments), decide)
    assert sizes(settled) == {"a1": 2, "a2": 1, "b4": 1, "c3": 0}


def promised_four():
    """Job a2, queued, was promised four GPUs, and they are free now."""
    jobs = [running(job("b1", "b", 4), ("n0", range(4))), elastic("a2", "a", 1, 4)]
    cluster = view(nodes(1, 4), [project("a", 4), project("b", 0)], jobs)
    after = apply(cluster, decide(cluster))
    assert len(after.jobs[1].promised) == 4
    return after


def test_a_promise_is_kept():
    assert size_of(decide(promised_four()), "a2") == 4


def test_a_promise_that_became_too_large_is_not():
    after = promised_four()
    scaled = replace(after, jobs=(after.jobs[0], replace(after.jobs[1], pods=2)))
    assert size_of(decide(scaled), "a2") == 2
    projects = (project("a", 4, limit_milli_gpus=3000), project("b", 0))
    assert size_of(decide(replace(after, projects=projects)), "a2") == 3


def test_a_promise_that_a_limit_has_overtaken_is_made_anew_while_its_room_is_freed():
    jobs = [running(job("b1", "b", 4), ("n0", range(4))), elastic("a2", "a", 1, 4)]
    cluster = view(nodes(1, 4), [project("a", 4), project("b", 0)], jobs)
    after = apply(cluster, decide(cluster), is_gone=False)
    projects = (project("a", 4, limit_milli_gpus=3000), project("b", 0))
    hold = hold_of(decide(replace(after, projects=projects)), "a2")
    assert len(hold.details["promised"]) == 3


def test_where_the_cluster_decides_it_is_offered_whole():
    """Pods know the size of their attempt when they are made, before the cluster's scheduler has placed any."""
    cluster = view(nodes(1), [project("a", 8)], [elastic("a1", "a", 1, 3)])
    some = {"a1": Offer(tuple(Bound(rank, "n0") for rank in range(2)))}
    assert not decide_offers(cluster, some, {}).plan.starts
    every = {"a1": Offer(tuple(Bound(rank, "n0") for rank in range(3)))}
    assert size_of(decide_offers(cluster, every, {}).plan, "a1") == 3
    more = {"a1": Offer(tuple(Bound(rank, "n0") for rank in range(4)))}
    assert not decide_offers(cluster, more, {}).plan.starts


def test_a_kept_view_has_its_bounds():
    cluster = view(nodes(1), [project("a", 8)], [elastic("a1", "a", 1, 3)])
    assert view_from_dict(view_to_dict(cluster)) == cluster
    older = view_to_dict(cluster)
    del older["jobs"][0]["min_pods"]
    assert view_from_dict(older).jobs[0].min_pods is None


def test_a_kept_view_may_have_the_old_name_of_workers_for():
    cluster = view(nodes(1), [project("a", 8)], [job("e1+00000", "a", workers_for="e1")])
    older = view_to_dict(cluster)
    older["jobs"][0]["grows"] = older["jobs"][0].pop("workers_for")
    assert view_from_dict(older) == cluster


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    taken=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    gpus=st.sampled_from([1, 1, 2, 3]),
    fewest=st.integers(1, 4),
    more=st.integers(0, 8),
    limit=st.sampled_from([None, None, 2, 5, 9]),
)
def test_the_size_is_the_largest_that_fits_and_is_allowed(taken, gpus, fewest, more, limit):
    the_nodes = [node(f"n{index}", 4) for index in range(len(taken))]
    busy = [
        running(interactive(f"b{index}", "b", count), (f"n{index}", range(count)))
        for index, count in enumerate(taken)
        if count
    ]
    limit_milli_gpus = None if limit is None else limit * 1000
    projects = [project("a", 1, limit_milli_gpus=limit_milli_gpus), project("b", 99)]
    cluster = view(the_nodes, projects, [*busy, elastic("a9", "a", fewest, fewest + more, gpus)])
    fit = sum((4 - count) // gpus for count in taken)
    allowed = fit if limit is None else min(fit, limit // gpus)
    expected = min(fewest + more, allowed)
    plan = decide(cluster)
    assert [len(start.placements) for start in plan.starts] == ([expected] if expected >= fewest else [])


def test_a_reclaim_takes_idle_devices_first_so_that_an_elastic_job_keeps_workers():
    """Five workers on the first devices of a node, three devices idle beside them, and six are claimed."""
    one = running(
        job("e1", "p", 1, kind="elastic", min_pods=1), *[("n0", [index]) for index in range(5)], started_at=1
    )
    seen = view(nodes(1, 8), [project("p", 2), project("q", 6)], [one, job("w9", "q", 1, pods=6)])
    plan = decide(seen)
    assert [preempt.job for preempt in plan.preempts] == ["e1"]
    taken = {index for pod in plan.promised["w9"] for index, _ in pod.devices}
    assert {5, 6, 7} <= taken
    assert len(taken) == 6


def test_a_reclaim_of_processors_takes_devices_of_the_job_that_gives_them():
    """Idle devices are of no use without processors: the elastic job could not tell which worker has to leave."""
    places = [("n0", [index]) for index in range(4)]
    one = running(job("e1", "p", 1, kind="elastic", min_pods=1, milli_cpus=2_500), *places, started_at=1)
    claim = job("w9", "q", 1, pods=2, milli_cpus=2_500)
    the_nodes = [node("n0", 8, milli_cpus=10_000)]
    plan = decide(view(the_nodes, [project("p", 2), project("q", 6)], [one, claim]))
    assert [preempt.job for preempt in plan.preempts] == ["e1"]
    assert {index for pod in plan.promised["w9"] for index, _ in pod.devices} <= {0, 1, 2, 3}


def test_a_promised_share_of_memory_stays_on_the_device_that_it_was_measured_on():
    """The small device is idle, and the pod does not fit on it."""
    devices = (DeviceView(0, 81_920), DeviceView(1, 16_384), DeviceView(2, 81_920))
    mixed = replace(node("n0", 3), devices=devices)
    jobs = [running(job(f"b{at}", "p", 1), ("n0", [at]), started_at=1) for at in (0, 2)]
    plan = decide(
        view([mixed], [project("p", 0), project("q", 3)], [*jobs, job("w9", "q", 0, gpu_memory_mib=81_920)])
    )
    assert plan.promised["w9"][0].devices in (((0, 1000),), ((2, 1000),))
