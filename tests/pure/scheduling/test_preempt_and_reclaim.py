"""A job that has room only if jobs of its own project and jobs of others make room for it together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.order import JobClass
from controlplane.scheduling.search import find_victims
from controlplane.scheduling.victims import PreemptAndReclaimPolicy, preemption_cost
from tests.pure.scheduling.builders import hold_of, job, names, node, project, running, settle, view
from tests.pure.scheduling.random_views import random_view
from tests.pure.scheduling.test_victims import brute_force, waiting_item

LOW, HIGH = 40, 60


def one_node(borrower_quota=0, high_gpus=8):
    """Project a, quota 8, runs a job of low priority on half of a node; project b has the other half."""
    return view(
        [node("n0", 8)],
        [project("a", 8), project("b", borrower_quota, weight=1)],
        [
            running(job("low1", "a", 4, priority=LOW), ("n0", [0, 1, 2, 3])),
            running(job("other2", "b", 4), ("n0", [4, 5, 6, 7])),
            job("high3", "a", high_gpus, priority=HIGH),
        ],
    )


def test_a_job_inside_the_quota_takes_lower_priorities_and_what_others_borrow():
    plan = decide(one_node())
    assert {one.job: one.kind for one in plan.preempts} == {"low1": "preempt", "other2": "reclaim"}
    assert hold_of(plan, "high3").reason == "waiting_for_reclaim"
    assert {one.id for one in settle(one_node(), decide).jobs if one.state == "active"} == {"high3"}


def test_another_project_keeps_its_quota():
    plan = decide(one_node(borrower_quota=4))
    assert plan.preempts == ()


def test_a_lower_priority_is_not_taken_where_a_reclaim_is_enough():
    assert names(decide(one_node(high_gpus=4)).preempts) == ["other2"]


def test_what_is_given_up_is_no_gain():
    """The project would hold as much as before: others lose nothing for that."""
    cluster = view(
        [node("n0", 4), node("n1", 4)],
        [project("a", 4, weight=0), project("b", 0, weight=1000)],
        [
            # Four single GPUs of low priority, two on each node beside two borrowed ones.
            *(running(job(f"low{rank}", "a", 1, priority=LOW), (f"n{rank % 2}", [rank // 2])) for rank in range(4)),
            running(job("other4", "b", 2), ("n0", [2, 3])),
            running(job("other5", "b", 2), ("n1", [2, 3])),
            job("high6", "a", 4, priority=HIGH),
        ],
    )  # fmt: skip
    # On either node two of its own GPUs are given up for four: with those on the other node it is above its quota.
    assert decide(cluster).preempts == ()


def test_a_gang_takes_both_on_several_nodes():
    cluster = view(
        [node("n0", 4), node("n1", 4)],
        [project("a", 8), project("b", 0, weight=1)],
        [
            running(job("low1", "a", 4, priority=LOW), ("n0", range(4))),
            running(job("other2", "b", 4), ("n1", range(4))),
            job("high3", "a", 4, pods=2, priority=HIGH),
        ],
    )
    assert names(decide(cluster).preempts) == ["low1", "other2"]
    assert {one.id for one in settle(cluster, decide).jobs if one.state == "active"} == {"high3"}


def test_a_job_that_was_stopped_itself_does_the_same():
    cluster = one_node()
    stopped = replace(cluster.jobs[2], was_preempted_by="x", was_preempted_by_project="b")
    assert names(decide(replace(cluster, jobs=(*cluster.jobs[:2], stopped))).preempts) == ["low1", "other2"]


@pytest.mark.parametrize("seed", range(0, 300, 2))
def test_for_one_pod_the_set_is_the_least_costly_of_all(seed):
    cluster = random_view(seed)
    state = CycleState(cluster)
    waiting = [waiting_item(state, item) for item in cluster.jobs if item.state == "queued"]
    state.divide([JobClass([item.job], item.account, item.request, item.milli_gpus) for item in waiting])
    for item in (one for one in waiting if one.job.pods == 1):
        lower = [one for one in state.candidates.of(item.account) if one.job.priority < item.job.priority]
        policy = PreemptAndReclaimPolicy(item, lower)
        found = find_victims(item.request, state.capacity.soon, policy, state.candidates)
        best = brute_force(item.request, state, policy)
        assert (found and preemption_cost(found)) == (best and preemption_cost(best))
