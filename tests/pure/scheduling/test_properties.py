"""What must hold on any cluster: DESIGN's invariants 3 to 6, on random histories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.plan import Plan
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.view import ClusterView
from tests.pure.scheduling.builders import allocated, apply, hold_of, job, node, project, settle, view
from tests.pure.scheduling.clusters import busy_views

bounded = settings(max_examples=30, deadline=None, derandomize=True)


def nothing_is_given_out_beyond_itself(cluster, plan):
    after = apply(cluster, plan, is_gone=False)
    held: Counter[tuple[str, int]] = Counter()
    extras: Counter[tuple[str, str]] = Counter()
    for item in after.jobs:
        for pod in item.placements:
            extras.update({(pod.node, name): amount for name, amount in item.extras})
            for index, milli_gpus in pod.devices:
                held[pod.node, index] += milli_gpus
    there = {(node.name, name): amount for node in cluster.nodes for name, amount in node.extras}
    assert all(amount <= there[at] for at, amount in extras.items())
    assert all(milli_gpus <= 1000 for milli_gpus in held.values())
    devices = {(node.name, device.index) for node in cluster.nodes for device in node.devices}
    assert set(held) <= devices


def every_queued_job_is_answered_once(cluster, plan):
    answered = [decision.job for decision in (*plan.starts, *plan.holds)]
    assert sorted(answered) == sorted(item.id for item in cluster.jobs if item.state == "queued")
    in_line = [hold.queue_position for hold in plan.holds if hold.queue_position is not None]
    assert in_line == list(range(1, len(in_line) + 1))
    assert all(describe(hold.reason, hold.details) for hold in plan.holds)


def gangs_start_whole_and_limits_hold(cluster, plan):
    after = apply(cluster, plan, is_gone=False)
    jobs = {item.id: item for item in cluster.jobs}
    for start in plan.starts:
        assert [pod.rank for pod in start.placements] == list(range(len(start.placements)))
        assert jobs[start.job].fewest_pods <= len(start.placements) <= jobs[start.job].pods
        assert all(pod.milli_gpus == jobs[start.job].milli_gpus for pod in start.placements)
    for item in cluster.projects:
        mine = [one for one in after.jobs if one.project == item.name and one.state == "active"]
        fixed = sum(pod.milli_gpus for one in mine if not one.is_preemptible for pod in one.placements)
        held = sum(pod.milli_gpus for one in mine for pod in one.placements)
        assert fixed <= item.quota_milli_gpus
        if plan.starts and item.limit_milli_gpus is not None:
            assert held <= item.limit_milli_gpus


def a_project_within_quota_never_loses_a_gpu_to_another(cluster, plan):
    jobs = {item.id: item for item in cluster.jobs}
    holds = dict(allocated(cluster))
    for start in plan.starts:
        holds[start.project] += sum(pod.milli_gpus for pod in start.placements)
    quotas = {item.name: item.quota_milli_gpus for item in cluster.projects}
    for name, quota in quotas.items():
        taken = [
            sum(pod.milli_gpus for pod in jobs[preempt.job].placements)
            for preempt in plan.preempts
            if preempt.project == name and preempt.kind == "reclaim"
        ]
        assert not taken or holds[name] - (sum(taken) - max(taken)) > quota


def victims_are_preemptible_and_make_room_for_their_beneficiary(cluster, plan):
    jobs = {item.id: item for item in cluster.jobs}
    for preempt in plan.preempts:
        assert jobs[preempt.job].is_preemptible
        if preempt.kind == "preempt":
            assert preempt.project == preempt.beneficiary_project
            assert jobs[preempt.job].priority < jobs[preempt.beneficiary].priority
        else:
            assert preempt.project != preempt.beneficiary_project
    assert all(hold_of(plan, preempt.beneficiary).is_promised for preempt in plan.preempts)
    after = apply(cluster, plan)
    next_plan = decide(after)
    shares = {share.project: share.fair_share_milli_gpus for share in next_plan.shares}
    holds = allocated(apply(after, next_plan))
    for name in {preempt.beneficiary for preempt in plan.preempts} - {
        start.job for start in next_plan.starts
    }:
        # only when its project went above its share meanwhile, on idle GPUs, or when the room went to a job that is
        # owed its quota, or to one of higher priority in the same project
        wanted = jobs[name].milli_gpus * jobs[name].fewest_pods
        served = [*next_plan.starts, *(hold for hold in next_plan.holds if hold.is_promised)]
        assert holds[jobs[name].project] + wanted > shares[jobs[name].project] or any(
            one.reason == "started_in_quota"
            or (one.project == jobs[name].project and jobs[one.job].priority > jobs[name].priority)
            for one in served
        )


INVARIANTS: Sequence[Callable[[ClusterView, Plan], None]] = (
    nothing_is_given_out_beyond_itself,
    every_queued_job_is_answered_once,
    gangs_start_whole_and_limits_hold,
    a_project_within_quota_never_loses_a_gpu_to_another,
    victims_are_preemptible_and_make_room_for_their_beneficiary,
)


ALL_KINDS = busy_views() | busy_views(is_maybe_elastic=True)


@bounded
@given(ALL_KINDS)
def test_every_plan_keeps_the_invariants(cluster):
    plan = decide(cluster)
    for invariant in INVARIANTS:
        invariant(cluster, plan)


@bounded
@given(ALL_KINDS)
def test_no_victim_is_needless(cluster):
    """Spare any one victim, and not every job that room was made for can start."""
    plan = decide(cluster)
    beneficiaries = {preempt.beneficiary for preempt in plan.preempts}
    for preempt in plan.preempts:
        after = apply(cluster, plan)
        victim = next(item for item in cluster.jobs if item.id == preempt.job)
        spared = tuple(victim if item.id == victim.id else item for item in after.jobs)
        started = {start.job for start in decide(replace(after, jobs=spared)).starts}
        assert not beneficiaries <= started


@bounded
@given(ALL_KINDS)
def test_a_second_cycle_changes_nothing(cluster):
    settled = settle(cluster, decide)
    for _ in range(5):
        plan = decide(settled)
        assert not plan.starts
        assert not plan.preempts
        settled = apply(settled, plan)


@bounded
@given(ALL_KINDS)
def test_while_victims_are_stopping_nothing_more_is_decided(cluster):
    waiting = apply(cluster, decide(cluster), is_gone=False)
    plan = decide(waiting)
    assert not plan.starts
    assert not plan.preempts


@bounded
@given(ALL_KINDS, st.randoms(use_true_random=False))
def test_equal_input_gives_an_equal_plan_however_it_is_listed(cluster, shuffler):
    shuffled = replace(
        cluster,
        jobs=tuple(shuffler.sample(cluster.jobs, len(cluster.jobs))),
        nodes=tuple(shuffler.sample(cluster.nodes, len(cluster.nodes))),
        projects=tuple(shuffler.sample(cluster.projects, len(cluster.projects))),
    )
    assert decide(shuffled).decisions == decide(cluster).decisions


@bounded
@given(
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=12),
    st.integers(3, 8),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_equals_submit_does_not_change_where_it_ends(submits, gpus, is_stepwise, shuffler):
    other = shuffler.sample(submits, len(submits))
    assert _ends(submits, gpus, is_stepwise) == _ends(other, gpus, is_stepwise)
    assert _ends(submits, gpus, True) == _ends(submits, gpus, False)


def _ends(submits: list[str], gpus: int, is_stepwise: bool):
    cluster: ClusterView = view([node("n0", gpus)], [project(name, 1) for name in "abc"])
    for rank, name in enumerate(submits):
        cluster = replace(cluster, jobs=(*cluster.jobs, job(f"j{rank}", name)), now=cluster.now + 1)
        if is_stepwise:
            cluster = settle(cluster, decide)
    return allocated(settle(cluster, decide))
