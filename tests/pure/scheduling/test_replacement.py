"""A job that has room only if jobs of its own project and jobs of others make room for it together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.moves import Moves
from controlplane.scheduling.order import JobClass
from controlplane.scheduling.replacement import ReplacePolicy
from controlplane.scheduling.search import find_victims
from controlplane.scheduling.victims import preemption_cost
from controlplane.scheduling.view import DepartmentView
from tests.pure.scheduling.builders import (
    apply,
    hold_of,
    interactive,
    job,
    names,
    node,
    project,
    running,
    settle,
    view,
)
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


@pytest.mark.parametrize("borrowed", [4, 13, 36])
def test_a_gang_does_so_on_a_wide_cluster(borrowed):
    """The search of a gang looks at few nodes, those with lower priorities among them, although they cost more."""
    now, count = 1_000_000, 4 + borrowed
    low = [running(job(f"low{i}", "a", 8, priority=LOW), (f"n{i}", range(8)), started_at=0) for i in range(4)]
    others = [running(job(f"other{i}", "b", 8), (f"n{i}", range(8)), started_at=now) for i in range(4, count)]
    cluster = view(
        [node(f"n{i}", 8) for i in range(count)],
        [project("a", 64, weight=0), project("b", 0, weight=1)],
        [*low, *others, job("high999", "a", 8, pods=8, priority=HIGH)],
        now=now,
    )
    kinds = [one.kind for one in decide(cluster).preempts]
    assert (kinds.count("preempt"), kinds.count("reclaim")) == (4, 4)


def test_inside_a_full_department():
    cluster = view(
        [node("n0", 8), node("n1", 8)],
        [project("a", 8, department="d"), project("b", 8, department="d")],
        [
            running(job("low1", "a", 4, priority=LOW), ("n0", range(4))),
            running(job("other2", "b", 4), ("n0", range(4, 8))),
            running(job("other3", "b", 8), ("n1", range(8))),
            job("high4", "a", 8, priority=HIGH),
        ],
        departments=(DepartmentView("d", 16_000, 16_000),),
    )
    assert names(decide(cluster).preempts) == ["low1", "other2"]


def test_a_cheaper_set_with_a_needless_job_hides_no_other():
    def share(name, project_name, milli, at, **more):
        return running(job(name, project_name, milli / 1000, **more), (at, [0]), share=milli)

    cluster = view(
        [node("n0", 1), node("n1", 1)],
        [project("a", 1.1, weight=0), project("b", 0, weight=1)],
        [
            # Without other2 the job fits beside low1, but then the project is above its quota.
            share("low1", "a", 400, "n0", priority=LOW),
            share("other2", "b", 600, "n0"),
            replace(share("low3", "a", 500, "n1", priority=LOW), started_at=0),
            replace(share("other4", "b", 500, "n1"), started_at=0),
            job("high5", "a", 0.6, priority=HIGH),
        ],
        now=360_000,
    )
    assert names(decide(cluster).preempts) == ["low3", "other4"]


def test_a_project_at_its_limit_replaces_its_lower_priorities():
    cluster = view(
        [node("n0", 4)],
        [project("a", 4, limit_milli_gpus=4000)],
        [
            running(job("low1", "a", 4, priority=LOW), ("n0", range(4))),
            job("high2", "a", 4, priority=HIGH),
        ],
    )
    plan = decide(cluster)
    assert names(plan.preempts) == ["low1"]
    assert hold_of(plan, "high2").reason == "waiting_for_reclaim"
    later = decide(apply(cluster, plan, is_gone=False))
    assert not later.starts, "what stops counts under the limit until it is gone"
    assert {one.id for one in settle(cluster, decide).jobs if one.state == "active"} == {"high2"}


def test_at_the_limit_a_lower_priority_goes_that_gives_up_enough():
    """The cheapest one makes room on the node, and leaves the project above its limit."""
    cluster = view(
        [node("n0", 5)],
        [project("a", 4, limit_milli_gpus=4000)],
        [
            running(job("big1", "a", 2, priority=LOW), ("n0", [0, 1])),
            running(job("small2", "a", 1, priority=LOW), ("n0", [2])),
            running(job("same3", "a", 1, priority=HIGH), ("n0", [3])),
            job("high4", "a", 2, priority=HIGH),
        ],
    )
    assert names(decide(cluster).preempts) == ["big1"]
    last = settle(cluster, decide)
    assert {one.id for one in last.jobs if one.state == "active"} == {"small2", "same3", "high4"}


def test_a_job_that_cannot_be_preempted_stays_inside_the_quota():
    """A lower priority that can be preempted makes no room under the quota of those that cannot."""
    cluster = view(
        [node("n0", 4)],
        [project("a", 2)],
        [
            running(interactive("fixed1", "a", 2, priority=LOW), ("n0", [0, 1])),
            running(job("low2", "a", 2, priority=LOW), ("n0", [2, 3])),
            interactive("high3", "a", 2, priority=HIGH),
        ],
    )
    assert decide(cluster).preempts == ()


def test_of_a_set_the_own_job_is_not_spared_alone():
    """Another job of the plan frees more than it needs: who is spared then is the other project's."""
    cluster = view(
        [node("n0", 8), node("n1", 8)],
        [project("a", 11, weight=0), project("b", 0, weight=1), project("e", 0, weight=1)],
        [
            # The dearest victim, so that it is the first that is tried.
            running(job("low1", "a", 4, priority=LOW), ("n0", range(4)), started_at=0),
            running(job("other2", "b", 4), ("n0", range(4, 8)), started_at=999_000),
            running(job("big3", "e", 8), ("n1", range(8)), started_at=999_000),
            job("high4", "a", 4, pods=2, priority=HIGH),
            job("next5", "a", 3, priority=HIGH),
        ],
        now=1_000_000,
    )
    assert names(decide(cluster).preempts) == ["big3", "low1"]


def test_many_priorities_cost_little(monkeypatch):
    """A project that holds its quota gains nothing by it, so no search is made for its waiting jobs."""
    searched = []
    monkeypatch.setattr(Moves, "take_own_and_others", lambda self, item: searched.append(item.job.id))
    jobs = [
        running(job(f"r{rank}", "ab"[rank % 2], 4, priority=40 + rank % 5), (f"n{rank // 2}", range(4)))
        for rank in range(40)
    ]
    queue = [
        job(f"q{100 + rank}", "ab"[rank % 2], 1 + rank % 8, priority=41 + rank % 7) for rank in range(80)
    ]
    decide(
        view(
            [node(f"n{index}", 8) for index in range(20)], [project("a", 80), project("b", 80)], jobs + queue
        )
    )
    assert searched == []


@pytest.mark.parametrize(("is_preempted", "may_replace"), [(False, True), (True, False)])
def test_no_set_is_searched_for_a_preempted_job_of_a_project_at_its_quota_and_limit(
    is_preempted, may_replace
):
    """It must gain GPUs inside the quota, and with no set of victims it does."""
    gang = replace(job("gang", "a", 1, priority=HIGH), pods=2)
    gang = replace(gang, was_preempted_by="x") if is_preempted else gang
    low = [running(job(f"low{index}", "a", 1, priority=LOW), ("n0", [index])) for index in range(4)]
    state = CycleState(view([node("n0", 4)], [project("a", 4, limit_milli_gpus=4000)], [*low, gang]))
    assert Moves(state).may_replace(waiting_item(state, gang)) is may_replace


@pytest.mark.parametrize("seed", range(0, 300, 2))
def test_for_one_pod_the_set_is_the_least_costly_of_all(seed):
    cluster = random_view(seed)
    state = CycleState(cluster)
    waiting = [waiting_item(state, item) for item in cluster.jobs if item.state == "queued"]
    state.divide([JobClass([item.job], item.account, item.request, item.milli_gpus) for item in waiting])
    for item in (one for one in waiting if one.job.pods == 1):
        lower = [one for one in state.candidates.of(item.account) if one.job.priority < item.job.priority]
        if not lower:
            continue
        policy = ReplacePolicy(item, lower)
        found = find_victims(item.request, state.capacity.soon, policy, state.candidates)
        best = brute_force(item.request, state, policy)
        assert (found and preemption_cost(found)) == (best and preemption_cost(best))


def test_a_victim_that_a_later_set_makes_needless_runs_on_although_a_borrower_could_use_its_place():
    """c4 takes low1, the cheapest; then high5 can only have the place of low2, where c4 has room as well."""
    jobs = [
        running(job("low1", "a", 1, priority=LOW), ("n0", [0])),
        running(job("low2", "a", 3, priority=LOW), ("n0", [1, 2, 3])),
        job("c4", "c", 1),
        job("high5", "a", 1, priority=HIGH),
        job("borrows6", "b", 2),
    ]
    projects = [project("a", 2, limit_milli_gpus=4000), project("b", 0), project("c", 2)]
    plan = decide(view([node("n0", 4)], projects, jobs))
    assert {one.job: one.beneficiary for one in plan.preempts} == {"low2": "high5"}
    assert sorted(plan.promised) == ["c4", "high5"]
    assert hold_of(plan, "borrows6").reason == "over_fair_share"


def test_what_a_project_keeps_inside_its_quota_includes_the_jobs_that_start_now():
    """Beside `starts3`, which borrows, the project may lose what runs inside its quota in the same cycle."""
    jobs = [
        running(job("low1", "a", 1, priority=LOW), ("n0", [0])),
        running(job("low2", "a", 1, priority=LOW), ("n0", [1])),
        job("starts3", "a", 1, priority=HIGH),
        job("high4", "a", 2, priority=HIGH),
        job("owed5", "b", 4),
    ]
    projects = [project("a", 1, weight=0), project("b", 4)]
    plan = decide(view([node("n0", 2), node("n1", 1), node("n2", 1)], projects, jobs))
    assert names(plan.starts) == ["starts3"]
    assert {one.job: one.beneficiary for one in plan.preempts} == {"low1": "high4", "low2": "high4"}
