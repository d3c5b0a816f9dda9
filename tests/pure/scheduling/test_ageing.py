"""Ageing: a gang that has waited for long takes GPUs of jobs that have just written a checkpoint. And the rank of
preempted jobs, which makes way for what never started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.scheduling.course import requeued
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.reasons import describe
from tests.pure.scheduling.builders import hold_of, job, names, nodes, project, running, settle, view
from tests.pure.scheduling.exactness import violations
from tests.pure.scheduling.random_views import ageing_view

HOUR = 3600
NOW = 100 * HOUR
WITHOUT_QUOTAS = (project("p", 0), project("q", 0))


def gang(waited=10 * HOUR, **more):
    return job("g9", "p", 8, pods=2, **{"waiting_since": NOW - waited, **more})


def lent(project_name="q", checkpoint=NOW - 60, started=NOW - 2 * HOUR, **more):
    """A job on each of two nodes of 8 GPUs, of the same project."""
    return [
        running(
            job(f"v{at}", project_name, 8, **more), (f"n{at}", range(8)), started_at=started,
            last_checkpoint_at=checkpoint,
        )
        for at in range(2)
    ]  # fmt: skip


def aged(jobs, projects=WITHOUT_QUOTAS, **more):
    return view(nodes(2), projects, jobs, **{"now": NOW, "gang_ageing_seconds": 10 * HOUR, **more})


def test_a_gang_that_has_waited_for_long_takes_borrowed_gpus():
    plan = decide(aged([*lent(), gang()]))
    assert {(one.job, one.beneficiary, one.kind) for one in plan.preempts} == {
        ("v0", "g9", "ageing"),
        ("v1", "g9", "ageing"),
    }
    assert hold_of(plan, "g9").is_promised
    text = describe(plan.preempts[0].reason, {**plan.preempts[0].details, "by_name": "g9"})
    assert text == (
        "Its room went to job g9, which had waited for very long. It keeps its place in the queue and restarts when"
        " there is room again."
    )


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param([*lent(), gang(waited=10 * HOUR - 1)], id="not yet"),
        pytest.param([*lent(), gang(waiting_since=None)], id="it has started before"),
        pytest.param([*lent(checkpoint=NOW - 301), gang()], id="the last checkpoint is too old"),
        pytest.param([*lent(checkpoint=None), gang()], id="no checkpoint"),
        pytest.param([*lent(started=NOW - HOUR + 1), gang()], id="they have run for a few minutes"),
        pytest.param([*lent(is_preemptible=False), gang()], id="not preemptible"),
        pytest.param([*lent("p", priority=60), gang()], id="its own project's jobs have a higher priority"),
        pytest.param([*lent(), job("g9", "p", 8, waiting_since=0)], id="a job of one pod"),
    ],
)
def test_a_gang_waits(jobs):
    # No project has a quota or a share; only ageing could stop anything.
    assert decide(aged(jobs)).preempts == ()


def test_without_the_option_nothing_is_stopped_for_an_old_gang():
    assert decide(aged([*lent(), gang()], gang_ageing_seconds=0)).preempts == ()


def test_a_quota_is_not_lent_to_a_gang():
    assert decide(aged([*lent(), gang()], projects=(project("p", 0), project("q", 8)))).preempts == ()


def test_its_own_project_gives_also_what_is_inside_its_quota():
    plan = decide(aged([*lent("p"), gang()], projects=(project("p", 16), project("q", 0))))
    assert {one.job for one in plan.preempts} == {"v0", "v1"}


def test_a_limit_holds_for_an_old_gang():
    projects = (project("p", 0, limit_milli_gpus=8000), project("q", 0))
    assert decide(aged([*lent(), gang()], projects=projects)).preempts == ()


def test_a_gang_ages_without_any_other_change():
    scheduler, before = Scheduler(), aged([*lent(), gang(waited=10 * HOUR - 1)])
    assert scheduler.decide(before).preempts == ()
    assert len(scheduler.decide(replace(before, now=NOW + 1)).preempts) == 2


def test_it_settles_and_the_gang_runs():
    after = settle(aged([*lent(), gang()]), decide)
    assert {one.id for one in after.jobs if one.state == "active"} == {"g9"}


def ranked(order="submission", **more):
    """One free GPU; a job that was preempted two hours ago, and one that was submitted an hour ago."""
    ranks = {"old1": (NOW - 50 * HOUR) * 1_000_000, "new2": (NOW - HOUR) * 1_000_000}
    stopped = running(job("old1", "q", 1, rank=ranks["old1"], expected_runtime_seconds=HOUR), ("n0", [0]))
    before = view(nodes(1, 1), [project("p", 1), project("q", 1)], [stopped], now=NOW - 2 * HOUR, **more)
    back = requeued(stopped, ("x", "p"), before)
    new = job("new2", "q", 1, rank=ranks["new2"], expected_runtime_seconds=2 * HOUR)
    return replace(before, now=NOW, jobs=(back, new), queue_order=order)


@pytest.mark.parametrize(
    ("order", "seconds", "first"),
    [
        ("submission", None, "old1"),
        ("submission", 0, "old1"),
        ("submission", 4 * HOUR, "new2"),
        ("shortest", None, "old1"),
        ("shortest", 4 * HOUR, "new2"),
    ],
)
def test_a_preempted_job_queues_behind_what_is_submitted_soon_after_its_stop(order, seconds, first):
    assert names(decide(ranked(order, requeue_rank_seconds=seconds)).starts) == [first]


def test_a_job_that_lost_its_rank_is_not_told_that_it_keeps_it():
    jobs = [*lent(), gang()]
    plan = decide(aged(jobs, requeue_rank_seconds=0))
    assert "It is in the queue again and restarts" in describe(
        plan.preempts[0].reason, plan.preempts[0].details
    )


def test_no_property_is_violated_where_gangs_age():
    seen, broken = 0, {}
    for seed in range(80_000, 80_150):
        old = ageing_view(seed)
        seen += any(preempt.kind == "ageing" for preempt in decide(old).preempts)
        if found := violations(old):
            broken[seed] = found
    assert broken == {}
    assert seen
