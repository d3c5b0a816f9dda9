"""A recorded week with another quota, weight or limit, for records worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.scheduling.recorded import RecordedJob, recorded_what_if
from controlplane.scheduling.what_if import Effect
from tests.pure.scheduling.builders import job, node, project, view

HOUR = 3600
BEGAN = 1_000_000
END = BEGAN + 10 * HOUR


def record(p=8, q=0, limit=None):
    """One node of 8 GPUs without jobs, at the beginning of a record of ten hours."""
    return view([node("n0")], [project("p", p, limit_milli_gpus=limit), project("q", q)], now=BEGAN)


def recorded(name, owner, gpus, hour, hours):
    """Submitted at this hour of the record, None for one that runs then; runs for so many hours."""
    queued = job(name, owner, gpus, expected_runtime_seconds=int(hours * HOUR))
    submitted = None if hour is None else BEGAN + int(hour * HOUR)
    return RecordedJob(queued, submitted, int(hours * HOUR))


def change(seen, jobs, name, *budget, **changes):
    [found] = [one for one in seen.projects if one.name == name]
    return recorded_what_if(seen, END, jobs, replace(found, **changes), *budget)


def waits(found, name):
    return {one.job: (one.wait_seconds.before, one.wait_seconds.after) for one in getattr(found, name)}


def of(found, name):
    return next(one for one in found.projects if one.project == name)


def test_a_quota_would_have_started_a_job_in_the_place_of_a_borrower():
    # p borrows all for five hours; q comes after one hour and would have taken its quota back
    jobs = [recorded("p1", "p", 4, None, 5), recorded("p2", "p", 4, None, 5), recorded("q3", "q", 4, 1, 2)]
    found = change(record(p=4, q=0), jobs, "q", quota_milli_gpus=4000, weight=4000)
    assert waits(found, "sooner") == {"q3": (4 * HOUR, 0)}
    assert [one.project for one in found.preempted] == ["p"]
    assert (found.later, found.spared) == ((), ())
    assert found.seconds == 10 * HOUR
    # p: 8 GPUs for five hours, beside 8 for one, 4 for four, and the rest of the stopped job when q's has ended
    assert of(found, "p").held_milli_gpus == Effect(4000, 4000)
    assert of(found, "q").held_milli_gpus == Effect(800, 800)
    assert of(found, "q").mean_wait_seconds == Effect(4 * HOUR, 0)


def test_a_stopped_job_goes_on_where_it_was():
    jobs = [recorded("p1", "p", 8, None, 5), recorded("q2", "q", 8, 1, 2), recorded("p3", "p", 8, 1, 1)]
    found = change(record(p=0, q=0), jobs, "q", quota_milli_gpus=8000, weight=8000)
    # recorded: p1 until hour 5, p3, then q2; with the quota q2 from hour 1 to 3, then the four hours that p1 has left
    assert waits(found, "sooner") == {"q2": (5 * HOUR, 0)}
    assert waits(found, "later") == {"p3": (4 * HOUR, 6 * HOUR)}


def test_a_limit_would_have_kept_jobs_waiting_beyond_the_record():
    jobs = [recorded("p1", "p", 4, 0, 9), recorded("p2", "p", 4, 1, 1)]
    found = change(record(), jobs, "p", limit_milli_gpus=4000)
    assert waits(found, "later") == {"p2": (0, 8 * HOUR)}
    found = change(record(), jobs, "p", limit_milli_gpus=3000)
    assert waits(found, "later") == {"p1": (0, None), "p2": (0, None)}
    assert of(found, "p").mean_wait_seconds == Effect(None, None)


def test_no_change_has_no_effect_and_what_was_never_submitted_is_no_effect():
    jobs = [recorded("p1", "p", 8, 0, 3), recorded("q2", "q", 8, 0.5, 3), recorded("p3", "p", 1, 11, 3)]
    found = change(record(), jobs, "p")
    assert not any(found.counts.values())
    assert all(one.held_milli_gpus.before == one.held_milli_gpus.after for one in found.projects)
    assert of(found, "q").mean_wait_seconds == Effect(9000, 9000)


@pytest.mark.parametrize(("questions", "seconds"), [(0, 0), (1, 0), (2, 1800), (3, 10_800), (4, 12_600)])
def test_a_budget_ends_both_replays_at_the_same_moment(questions, seconds):
    asked = iter(range(questions))
    jobs = [recorded("p1", "p", 8, 0, 3), recorded("q2", "q", 8, 0.5, 3)]
    # with the limit p1 never starts, and q2 runs from its submission to 3.5 hours; without it p1 ends after three
    found = change(record(), jobs, "p", lambda: next(asked, None) is None, limit_milli_gpus=3000)
    assert found.seconds == seconds
    assert waits(found, "later") == ({"p1": (0, None)} if questions else {})
    assert waits(found, "sooner") == ({"q2": (None if questions < 3 else 9000, 0)} if questions > 1 else {})


def test_jobs_that_wait_from_before_the_record_wait_from_their_submission():
    jobs = [recorded("p1", "p", 8, None, 2), recorded("q2", "q", 8, -3, 1)]
    found = change(record(), jobs, "p")
    assert of(found, "q").mean_wait_seconds == Effect(5 * HOUR, 5 * HOUR)


def test_the_recorded_wait_is_that_of_the_jobs_that_both_replays_reached():
    jobs = [
        recorded("q1", "q", 4, 1, 1)._replace(waited=600),
        recorded("q2", "q", 4, 2, 1)._replace(waited=1200),
        recorded("q3", "q", 4, 3, 1),
        recorded("q9", "q", 4, 9, 1)._replace(waited=90_000),
    ]
    seen = iter([False] * 4)
    found = change(record(p=4, q=4), jobs, "q", lambda: next(seen, True), quota_milli_gpus=8000)
    assert 3 * HOUR <= found.seconds < 9 * HOUR
    assert found.recorded_mean_waits == {"q": 900}
    whole = change(record(p=4, q=4), jobs, "q", quota_milli_gpus=8000)
    assert whole.recorded_mean_waits == {"q": (600 + 1200 + 90_000) // 3}
