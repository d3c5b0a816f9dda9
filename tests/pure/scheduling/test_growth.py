"""Missing workers of running elastic jobs, inside the quota."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.growth import awaited_sentence
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.mentions import OWN
from tests.pure.scheduling.builders import (
    GROWING,
    allocated,
    apply,
    job,
    names,
    node,
    project,
    running,
    settle,
    view,
)


def runs(name, project_name, *indexes, **more):
    return running(job(name, project_name, **more), *(("n0", [index]) for index in indexes))


def elastic(item, pods):
    return replace(item, pods=pods, min_pods=1)


def grower(asked=3):
    return replace(elastic(runs("grower", "a", 0), asked), missing=(1,) * (asked - 1))


def borrowers(*indexes, **more):
    return [runs(f"b{index}", "b", index, **more) for index in indexes]


def cluster(*jobs, quota=3, gpus=4, **more):
    return view([node("n0", gpus)], [project("a", quota), project("b", 0, weight=1)], jobs, **more)


def test_workers_inside_the_quota_are_reclaimed_together_and_then_start():
    before = cluster(grower(), *borrowers(1, 2, 3))
    plan = decide(before)
    [growth] = plan.growth
    assert (growth.job, growth.is_promised, len(growth.placements)) == ("grower", True, 2)
    assert {preempt.beneficiary for preempt in plan.preempts} == {"grower"}
    assert len(plan.preempts) == 2
    assert not plan.starts
    assert not plan.promised
    after = settle(before, decide, cycles=3)
    assert allocated(after) == {"a": 3000, "b": 1000}


def test_workers_above_the_quota_stop_nothing():
    plan = decide(cluster(grower(), *borrowers(1, 2, 3), quota=2))
    assert len(plan.preempts) == 1
    assert len(plan.growth[0].placements) == 1
    assert not decide(cluster(grower(), *borrowers(1, 2, 3), quota=1)).preempts


def test_a_scale_out_is_served_whole_or_not_at_all():
    whole = replace(grower(), missing=(2,))
    assert not decide(cluster(whole, *borrowers(1, 2, 3), quota=2)).preempts
    assert len(decide(cluster(whole, *borrowers(1, 2, 3))).preempts) == 2


def test_interactive_work_and_work_inside_a_quota_stay():
    fixed = borrowers(1, 2, 3, is_preemptible=False, kind="interactive")
    assert not decide(cluster(grower(), *fixed)).preempts
    jobs = [grower(), *borrowers(1, 2, 3)]
    inside = view([node("n0", 4)], [project("a", 3), project("b", 3)], jobs)
    assert not decide(inside).preempts


def test_a_queued_job_of_the_project_comes_first():
    plan = decide(cluster(grower(), *borrowers(1, 2, 3), job("q", "a"), quota=2))
    assert {preempt.beneficiary for preempt in plan.preempts} == {"q"}
    assert not plan.growth


def test_who_shrank_for_a_higher_priority_does_not_take_it_back():
    """It shrank and grew in turn, for ever: no promise above the share is kept where others only shrank."""
    first, owner = job("q", "a", gpus=3, priority=60), project("a", 3, weight=0)
    before = view([node("n0", 4)], [owner], [grower(asked=2), first])
    before = replace(before, name=GROWING)
    after = settle(before, decide, cycles=5)
    assert {one.id for one in after.jobs if one.state == "active"} == {"grower", "q"}
    assert allocated(after)["a"] == 4000


def test_idle_capacity_is_taken_before_any_job_is_stopped():
    plan = decide(cluster(grower(), *borrowers(1), job("q", "b")))
    assert not plan.preempts
    [growth] = plan.growth
    assert (growth.is_promised, len(growth.placements)) == (False, 2)
    assert not plan.starts


def test_those_that_fit_wait_for_those_whose_victims_stop():
    before = cluster(grower(), *borrowers(1, 2))
    plan = decide(before)
    [growth] = plan.growth
    assert (growth.is_promised, len(growth.placements), len(plan.preempts)) == (True, 2, 1)
    stopping = apply(before, plan, is_gone=False)
    again = decide(stopping)
    assert not again.preempts
    assert again.growth[0].placements == growth.placements
    # What fits already is not given to the borrower meanwhile.
    more = replace(stopping, jobs=(*stopping.jobs, job("q", "b")))
    assert names(decide(more).starts) == []


def test_the_shrinkable_borrower_gives_before_one_is_stopped():
    wide = elastic(runs("wide", "b", 2, 3), 2)
    jobs = [grower(asked=2), runs("b1", "b", 1), wide]
    [preempt] = decide(cluster(*jobs)).preempts
    assert preempt.job == "wide"


def test_the_next_cycle_from_the_state_of_the_last_decides_the_same():
    before, scheduler = cluster(grower(), *borrowers(1, 2, 3)), Scheduler()
    for _ in range(4):
        plan, fresh = scheduler.decide(before), decide(before)
        assert (plan.preempts, plan.growth, tuple(plan.holds)) == (
            fresh.preempts,
            fresh.growth,
            tuple(fresh.holds),
        )
        before = apply(before, plan)


@pytest.mark.parametrize(
    ("stopping", "sees", "sentence"),
    [
        ("AB", None, "2 of its 3 workers wait for room inside the quota: A and B are stopped."),
        ("A", None, "2 of its 3 workers wait for room inside the quota: A is stopped."),
        (
            "AB",
            OWN,
            "2 of its 3 workers wait for room inside the quota: 2 jobs of other projects are stopped.",
        ),
        ("", None, "2 of its 3 workers wait for room inside the quota."),
    ],
)
def test_the_sentence_names_who_is_stopped(stopping, sees, sentence):
    mentions = [{"project": "b", "job": name.lower(), "name": name} for name in stopping]
    assert awaited_sentence({"workers": 2, "asked": 3, "stopping": mentions}, sees) == sentence


def test_the_sentence_says_who_only_shrinks():
    mentions = [{"project": "b", "job": "a", "name": "A"}, {"project": "b", "job": "b", "name": "B"}]
    mentions[1]["is_shrinking"] = True
    said = awaited_sentence({"workers": 1, "asked": 3, "stopping": mentions}, None)
    assert said == "1 of its 3 workers waits for room inside the quota: A is stopped and B is shrunk."
