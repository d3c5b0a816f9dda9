"""Gates of reclaim (upstream's vectors) and the minimal victim set (against brute force)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest

from controlplane.scheduling.accounts import Account
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.fit import place, request_of, total_milli_gpus
from controlplane.scheduling.limits import over_quota
from controlplane.scheduling.order import JobClass, Waiting
from controlplane.scheduling.search import find_victims
from controlplane.scheduling.victims import (
    Candidate,
    PreemptPolicy,
    ReclaimPolicy,
    preemption_cost,
    victim_class_of,
)
from tests.pure.scheduling.builders import (
    apply,
    hold_of,
    interactive,
    job,
    milli,
    names,
    node,
    nodes,
    project,
    running,
    view,
)
from tests.pure.scheduling.random_views import random_view


def account(name, numbers, parent=None, fixed=0):
    """(quota, fair share, allocated) in GPUs, held by jobs of one GPU."""
    quota, fair_share, allocated = (milli(number) for number in numbers)
    return Account(
        name, parent, quota, None, quota, 0, 0,
        fair_share=fair_share, allocated=allocated, held=allocated, fixed=milli(fixed), held_fixed=milli(fixed),
        running=allocated, sizes=Counter({1000: numbers[2]}),
    )  # fmt: skip


def wanting(taker, gpus, is_preemptible=True):
    wanted = job("w1", taker.name, gpus, is_preemptible=is_preemptible)
    return Waiting(wanted, taker, request_of(wanted, ()), milli(gpus))


def units(giver, *sizes):
    """Jobs of these sizes, among what the account holds."""
    for account in giver.line():
        account.sizes[1000] -= sum(sizes)
        account.sizes.update(milli(size) for size in sizes)
    return [
        Candidate(unit, giver, (), victim_class_of(unit, (), milli(size)), 0)
        for rank, size in enumerate(sizes)
        for unit in (job(f"u{rank}", giver.name, size),)
    ]


@pytest.mark.parametrize(
    ("taker", "fixed", "wants", "is_preemptible", "giver", "takes", "may", "is_accepted"),
    [
        pytest.param((4, 4, 0), 0, 4, True, (4, 4, 8), [4], True, True, id="R1"),
        pytest.param((4, 4, 0), 0, 4, True, (4, 4, 8), [8], True, True, id="R2"),
        pytest.param((4, 4, 0), 0, 4, True, (4, 4, 8), [4, 4], True, False, id="R3"),
        pytest.param((6, 6, 4), 0, 2, True, (4, 4, 4), [2], True, False, id="R4"),
        pytest.param((2, 4, 2), 0, 2, True, (2, 4, 6), [2], True, True, id="R5"),
        pytest.param((2, 4, 3), 0, 2, True, (2, 4, 5), [1], False, False, id="R6"),
        pytest.param((2, 4, 2), 2, 2, False, (2, 4, 6), [2], False, False, id="R7"),
        pytest.param((4, 4, 1), 1, 2, False, (2, 4, 7), [2], True, True, id="R8"),
    ],
)
def test_reclaim_between_projects(taker, fixed, wants, is_preemptible, giver, takes, may, is_accepted):
    a, b = account("a", taker, fixed=fixed), account("b", giver)
    assert judge(wanting(a, wants, is_preemptible), units(b, *takes)) == (may, is_accepted)


@pytest.mark.parametrize(
    ("department", "is_accepted"),
    [pytest.param((2, 2, 6), True, id="R10"), pytest.param((6, 6, 6), False, id="R11")],
)
def test_reclaim_between_departments(department, is_accepted):
    a = account("a", (3, 3, 2), parent=account("d", (6, 6, 2)))
    x = account("x", (2, 2, 6), parent=account("e", department))
    assert judge(wanting(a, 1), units(x, 1)) == (True, is_accepted)


def test_a_project_in_quota_is_safe_inside_a_department_above_its_own():
    e = account("e", (2, 2, 6))
    x, y = account("x", (2, 2, 2), parent=e), account("y", (0, 0, 4), parent=e)
    a = wanting(account("a", (3, 3, 2), parent=account("d", (6, 6, 2))), 1)
    assert judge(a, units(x, 1)) == (True, False)
    assert judge(a, units(y, 1)) == (True, True)


def judge(item, victims):
    gate = ReclaimPolicy(item)
    may = gate.is_open() and over_quota(item) is None
    return may, may and all(gate.may_preempt(victim) for victim in victims) and gate.accepts(victims)


def test_one_job_of_two_gpus_goes_and_not_two_newer_ones():
    """The trap of the four teams' step 14."""
    jobs = [
        running(job("b1", "b", 2), ("n0", [0, 1]), started_at=0),
        running(job("b2", "b", 1), ("n0", [2]), started_at=500),
        running(job("b3", "b", 1), ("n0", [3]), started_at=600),
        job("a4", "a", 2),
    ]
    plan = decide(view([node("n0", 4)], [project("a", 2), project("b", 2)], jobs))
    assert names(plan.preempts) == ["b1"]


def test_a_small_claim_takes_fresh_jobs_and_not_a_day_of_work():
    """The example of the rule: two jobs that ran for ten seconds, not one of eight GPUs with 24 hours of work."""
    day = running(job("b1", "b", 8), ("n0", range(8)), started_at=0)
    fresh = [running(job(f"b{rank}", "b", 1), ("n1", [rank]), started_at=86_390) for rank in (2, 3)]
    older = [running(job(f"b{rank}", "b", 1), ("n1", [rank]), started_at=0) for rank in (0, 1, 4, 5, 6, 7)]
    projects = [project("a", 2), project("b", 0)]
    plan = decide(view(nodes(2), projects, [day, *fresh, *older, job("a9", "a", 2)], now=86_400))
    assert names(plan.preempts) == ["b2", "b3"]


def test_work_within_a_factor_of_two_does_not_cost_one_job_more():
    one = running(job("b1", "b", 2), ("n0", [0, 1]), started_at=0)
    two = [running(job(f"b{rank}", "b", 1), ("n0", [rank]), started_at=7200) for rank in (2, 3)]
    projects = [project("a", 2), project("b", 0)]
    plan = decide(view([node("n0", 4)], projects, [one, *two, job("a9", "a", 2)], now=36_000))
    assert names(plan.preempts) == ["b1"]


def test_a_fresh_job_is_safe_from_a_project_above_its_quota_only():
    jobs = [running(job(f"b{rank}", "b", 1), ("n0", [rank]), started_at=400) for rank in range(4)]
    projects = [project("a", 1, weight=1), project("b", 0, weight=1)]
    cluster = view([node("n0", 4)], projects, [*jobs, job("a8", "a", 2)], now=1000)
    assert len(decide(cluster).preempts) == 2
    assert not decide(replace(cluster, min_runtime_seconds=601)).preempts
    assert len(decide(replace(cluster, min_runtime_seconds=600)).preempts) == 2
    inside = replace(cluster, jobs=(*jobs, job("a8", "a", 1)), min_runtime_seconds=601)
    assert len(decide(inside).preempts) == 1


def test_the_least_work_since_a_checkpoint_is_lost_then_the_newest_goes():
    b1 = running(job("b1", "b", 1), ("n0", [0]), started_at=100)
    b2 = running(job("b2", "b", 1), ("n0", [1]), started_at=900)
    b3 = running(job("b3", "b", 1), ("n0", [2]), started_at=900)
    saved = replace(b1, last_checkpoint_at=990)
    the_nodes, projects, a4 = [node("n0", 3)], [project("a", 1), project("b", 0)], job("a4", "a", 1)
    assert names(decide(view(the_nodes, projects, [saved, b2, b3, a4])).preempts) == ["b1"]
    assert names(decide(view(the_nodes, projects, [b1, b2, b3, a4])).preempts) == ["b3"]


def test_a_shared_device_is_freed_only_when_that_is_less_harm():
    jobs = [
        running(job("b1", "b", 0.5), ("n0", [0]), share=500),
        running(job("b2", "b", 0.5), ("n0", [0]), share=500),
        running(job("b3", "b", 1), ("n0", [1])),
        job("a4", "a", 1),
    ]
    plan = decide(view([node("n0", 2)], [project("a", 1), project("b", 0)], jobs))
    assert names(plan.preempts) == ["b3"]


def test_a_node_that_looks_cheap_does_not_win_before_it_is_weighed():
    """n0's device needs two small jobs to go, n1's only one."""
    jobs = [
        running(job("b1", "b", 0.5), ("n0", [0]), share=500),
        running(job("b2", "b", 0.5), ("n0", [0]), share=500),
        running(job("b3", "b", 1), ("n1", [0])),
        job("a4", "a", 1),
    ]
    plan = decide(view(nodes(2, 1), [project("a", 1), project("b", 0)], jobs))
    assert names(plan.preempts) == ["b3"]


def test_room_made_for_one_job_serves_another_and_its_own_victim_is_spared():
    """a4 alone would take b1, the smallest; a5 then needs b2 to go, and b2's device serves a4 as well."""
    jobs = [
        running(job("b1", "b", 0.25), ("n0", [0]), share=250),
        running(job("b2", "b", 1), ("n0", [1])),
        running(job("b3", "b", 2), ("n1", [0, 1])),
        job("a4", "a", 1),
        job("a5", "a", 0.25),
    ]
    plan = decide(view(nodes(2, 2), [project("a", 0, weight=1), project("b", 0)], jobs))
    assert [(item.job, item.beneficiary) for item in plan.preempts] == [("b2", "a4")]
    assert names(plan.starts) == ["a5"]
    assert hold_of(plan, "a4").is_promised


def test_a_victim_taken_for_processors_is_spared_when_a_later_one_has_them_too():
    jobs = [
        running(job("b1", "b", 1, milli_cpus=3000, memory_mib=0), ("n0", [0])),
        running(job("b2", "b", 1, milli_cpus=2000, memory_mib=400_000), ("n0", [1])),
        job("a3", "a", 0, milli_cpus=2000, memory_mib=300_000, priority=60),
    ]
    projects = [project("a", 1), project("b", 0)]
    jobs = [replace(one, project="a") for one in jobs]
    plan = decide(view([node("n0", 2, milli_cpus=5000)], projects, jobs))
    assert names(plan.preempts) == ["b2"]


def test_work_that_cannot_be_preempted_is_never_a_victim():
    jobs = [running(interactive("b1", "b", 1), ("n0", [0])), job("a2", "a", 1)]
    plan = decide(view([node("n0", 1)], [project("a", 1), project("b", 0)], jobs))
    assert not plan.preempts


def test_higher_priority_preempts_lower_in_its_own_project_only():
    jobs = [
        running(job("a1", "a", 1, priority=50), ("n0", [0])),
        running(job("b2", "b", 1, priority=10), ("n0", [1])),
        job("a3", "a", 1, priority=60),
        job("a4", "a", 1, priority=50),
    ]
    plan = decide(view([node("n0", 2)], [project("a", 1), project("b", 1)], jobs))
    assert [(item.job, item.beneficiary, item.kind) for item in plan.preempts] == [("a1", "a3", "preempt")]


def test_a_gang_takes_from_several_nodes():
    jobs = [running(job(f"b{rank}", "b", 1), (f"n{rank // 2}", [rank % 2])) for rank in range(4)]
    plan = decide(view(nodes(2, 2), [project("a", 4), project("b", 0)], [*jobs, job("a9", "a", 2, pods=2)]))
    assert names(plan.preempts) == ["b0", "b1", "b2", "b3"]
    plan = decide(view(nodes(2, 2), [project("a", 4), project("b", 0)], [*jobs, job("a9", "a", 1, pods=3)]))
    assert names(plan.preempts) == ["b1", "b2", "b3"]


def test_a_promise_does_not_carry_a_project_above_its_quota_before_it_is_kept():
    """p holds its quota; that one of its jobs is promised more must not cost it what runs."""
    jobs = [
        running(job("p1", "p", 0.5, priority=10), ("n0", [0]), share=500),
        running(job("p2", "p", 2), ("n1", [0, 1])),
        job("p3", "p", 2, priority=60),
        running(interactive("q4", "q", 2), ("n2", [0, 1])),
        job("q5", "q", 2, priority=60),
        job("q6", "q", 0.5),
    ]
    plan = decide(view(nodes(3, 2), [project("p", 3), project("q", 2.5)], jobs))
    assert [(item.job, item.beneficiary, item.kind) for item in plan.preempts] == [("p2", "p3", "preempt")]


def test_a_gang_finds_its_room_on_a_wide_cluster():
    jobs = [running(job(f"b{rank}", "b", 1), (f"n{rank // 2}", [rank % 2])) for rank in range(80)]
    jobs += [job("a99", "a", 2, pods=20)]
    plan = decide(view(nodes(40, 2), [project("a", 40), project("b", 0)], jobs))
    assert len(plan.preempts) == 40
    assert len(decide(apply(view(nodes(40, 2), [project("a", 40), project("b", 0)], jobs), plan)).starts) == 1


def test_a_victim_may_hold_a_device_that_has_left_its_node():
    jobs = [running(job("b1", "b", 2), ("n0", [0, 7])), job("a2", "a", 1)]
    plan = decide(view(nodes(1, 1), [project("a", 1), project("b", 0)], jobs))
    assert names(plan.preempts) == ["b1"]


def test_victims_free_processors_too():
    jobs = [
        running(job("b1", "b", 1, milli_cpus=4000), ("n0", [0])),
        running(job("b2", "b", 1, milli_cpus=1000), ("n0", [1])),
        job("a3", "a", 1, milli_cpus=4000),
    ]
    plan = decide(view([node("n0", 2, milli_cpus=5000)], [project("a", 1), project("b", 0)], jobs))
    assert names(plan.preempts) == ["b1"]


@pytest.mark.parametrize("seed", range(0, 300, 2))
def test_the_set_is_the_least_costly_of_all_sets(seed):
    cluster = random_view(seed)
    state = CycleState(cluster)
    waiting = [waiting_item(state, item) for item in cluster.jobs if item.state == "queued"]
    waiting = [item for item in waiting if item.job.min_pods is None]
    state.divide([JobClass([item.job], item.account, item.request, item.milli_gpus) for item in waiting])
    for item in waiting:
        for gate in (ReclaimPolicy(item), PreemptPolicy(item)):
            found = find_victims(item.request, state.capacity.soon, gate, state.candidates)
            best = brute_force(item.request, state, gate)
            assert (found and preemption_cost(found)) == (best and preemption_cost(best))


def waiting_item(state, item):
    request = request_of(item, ())
    return Waiting(item, state.accounts[item.project], request, total_milli_gpus(request, state.view))


def brute_force(request, state, gate):
    """Every set of candidates, tried by placing the gang where they stood."""
    if place(request, state.capacity.soon) is not None:
        return None
    everyone = {one.job.id: one for one in state.candidates if gate.may_preempt(one)}
    fitting = []
    for count in range(1, len(everyone) + 1):
        for victims in combinations(everyone.values(), count):
            room = state.capacity.soon.copy()
            for victim in victims:
                for pod in victim.placements:
                    room.give(pod, victim.job)
            if place(request, room) is not None and gate.accepts(victims) and gate.completes(victims):
                fitting.append(frozenset(victims))
    return min(fitting, key=preemption_cost, default=None)
