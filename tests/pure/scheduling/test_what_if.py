"""What a change of a quota, weight or limit does, for clusters worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.scheduling.what_if import Effect, what_if
from tests.pure.scheduling.builders import job, node, project, running, view

HOUR = 3600
NOW = 100_000


def shared(*queued, p=8, q=0, limit=None):
    """One node of 8: project p runs two jobs of 4 for an hour and for two hours more."""
    held = [
        running(job(f"r{at}", "p", 4, expected_runtime_seconds=HOUR * at + HOUR), ("n0", range(at * 4 - 4, at * 4)),
                started_at=NOW - HOUR)
        for at in (1, 2)
    ]  # fmt: skip
    projects = [project("p", p, limit_milli_gpus=limit), project("q", q)]
    return view([node("n0")], projects, [*held, *queued], now=NOW)


def change(seen, name, **changes):
    [found] = [one for one in seen.projects if one.name == name]
    return what_if(seen, replace(found, **changes))


def waits(found, name):
    return {one.job: (one.wait_seconds.before, one.wait_seconds.after) for one in getattr(found, name)}


def of(found, name):
    return next(one for one in found.projects if one.project == name)


def test_a_quota_starts_a_job_at_once_in_the_place_of_borrowers():
    seen = shared(job("q1", "q", 4), p=4)
    found = change(seen, "q", quota_milli_gpus=4000, weight=4000)
    assert [one.job for one in found.preempted] == ["r1"] or [one.job for one in found.preempted] == ["r2"]
    before, after = waits(found, "sooner")["q1"]
    assert after == 0
    assert before >= HOUR
    assert of(found, "q").held_milli_gpus == Effect(0, 4000)
    assert of(found, "p").held_milli_gpus == Effect(8000, 4000)
    assert (found.later, found.spared) == ((), ())


def test_a_smaller_quota_makes_its_own_jobs_wait_for_those_of_others():
    seen = shared(job("p9", "p", 4), job("q1", "q", 4, rank=20), p=8, q=4)
    seen = replace(seen, projects=(project("p", 8), project("q", 0)))
    found = change(seen, "q", quota_milli_gpus=8000, weight=8000)
    assert "q1" in waits(found, "sooner")
    before, after = waits(found, "later")["p9"]
    assert after > before
    assert of(found, "p").mean_wait_seconds.after > of(found, "p").mean_wait_seconds.before


def test_a_limit_that_binds_keeps_a_job_waiting_for_ever():
    seen = shared(job("p9", "p", 4))
    found = change(seen, "p", limit_milli_gpus=2000)
    assert waits(found, "later")["p9"][1] is None
    assert of(found, "p").mean_wait_seconds == Effect(None, None)


@pytest.mark.parametrize("questions", range(6))
def test_a_budget_that_ends_in_the_middle_is_no_effect(questions):
    """The course that is followed first must not be compared where the other did not get to."""
    asked = iter(range(questions))
    seen = shared(job("p9", "p", 4), job("q1", "q", 4), p=4, q=4)
    found = what_if(seen, seen.projects[0], is_over=lambda: next(asked, None) is None)
    assert not any(found.counts.values())


def test_no_change_has_no_effect():
    found = change(shared(job("p9", "p", 4), job("q1", "q", 1)), "p")
    assert not any(found.counts.values())
    assert all(one.held_milli_gpus.before == one.held_milli_gpus.after for one in found.projects)


def test_a_budget_ends_both_courses_at_the_same_time():
    seen = shared(job("q1", "q", 4), p=4)
    found = what_if(seen, seen.projects[1], lambda: True)
    assert found.seconds == 0
