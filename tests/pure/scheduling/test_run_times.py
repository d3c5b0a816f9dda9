"""Run times that are learned: what counts as alike, quantiles, and when nothing is known."""

from __future__ import annotations

import pytest

from controlplane.scheduling.run_times import LEAST_RUNS, MOST_RUNS, Run, RunTimes

ASKED = Run("p", "ana", "torch", 2000)


def runs(*seconds, **other):
    return [ASKED._replace(seconds=one, **other) for one in seconds]


def test_the_median_and_both_ends_of_the_same_jobs():
    found = RunTimes(runs(*range(1, 11))).learned(ASKED)
    assert (found.early, found.expected, found.late, found.runs) == (1, 5, 9, 10)
    assert found.same == ("project", "user", "image", "size")


def test_too_few_runs_say_nothing():
    assert RunTimes(runs(*[60] * (LEAST_RUNS - 1))).learned(ASKED) is None
    assert RunTimes([]).learned(ASKED) is None


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"size": 8000}, ("project", "user", "image")),
        ({"user": "ben"}, ("project", "image", "size")),
        ({"image": "jax"}, ("project", "user", "size")),
    ],
)
def test_less_alike_jobs_are_next_best(other, same):
    assert RunTimes(runs(60, 60, 60, **other)).learned(ASKED).same == same


def test_the_most_alike_come_first():
    found = RunTimes([*runs(600, 600, 600, size=8000), *runs(60, 60, 60)]).learned(ASKED)
    assert found.expected == 60


def test_jobs_of_other_projects_and_jobs_that_share_only_the_project_say_nothing():
    assert RunTimes(runs(60, 60, 60, project="q")).learned(ASKED) is None
    assert RunTimes(runs(60, 60, 60, user="ben", image="jax", size=8000)).learned(ASKED) is None


def test_only_the_latest_runs_count():
    found = RunTimes(runs(*[60] * MOST_RUNS, *[9000] * 500)).learned(ASKED)
    assert (found.late, found.runs) == (60, MOST_RUNS)
