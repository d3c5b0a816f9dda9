"""Reservation and backfill: the oldest gang gets a time and a place, and only what ends before it uses the gap."""

from __future__ import annotations

from dataclasses import replace

from bench.trace_replay import Replay, TraceJob
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.reasons import RESERVED_FOR_OLDER_GANG, describe
from controlplane.scheduling.runtimes import ends_by, expected_end, rounded_up
from controlplane.scheduling.spare import spare_placements
from tests.pure.scheduling.builders import hold_of, job, names, nodes, project, running, view

HOUR = 3600
NOW = 1000


ALONE = (project("p", 16),)


def one_long(*queued, projects=ALONE, seconds=2 * HOUR, **more):
    """Two nodes of 8; a job of one GPU runs on the second for two hours more."""
    first = running(job("r0", "p", 1, expected_runtime_seconds=seconds), ("n1", [0]), started_at=NOW, **more)
    return view(nodes(2), projects, [first, *queued], now=NOW)


def gang(name="g1", project_name="p", **more):
    return job(name, project_name, 8, pods=2, expected_runtime_seconds=HOUR, **more)


def test_a_gang_inside_its_quota_starts_although_younger_jobs_of_its_project_keep_coming():
    stream = [TraceJob(f"s{at}", "p", at * 1200, 2 * HOUR, 1, expected=2 * HOUR) for at in range(66 * 3)]
    waiting = TraceJob("gang", "p", 3 * HOUR + 1, HOUR, 16, expected=HOUR)
    Replay(nodes(2), (project("p", 16),), decide).run([*stream, waiting])
    assert waiting.wait <= 2 * HOUR


def test_what_ends_in_time_uses_the_gap_and_what_runs_longer_waits():
    short = job("short2", "p", 1, expected_runtime_seconds=HOUR)
    long = job("long3", "p", 1, expected_runtime_seconds=3 * HOUR)
    unknown = job("unknown4", "p", 1)
    plan = decide(one_long(gang(), short, long, unknown))
    assert names(plan.starts) == ["short2"]
    held = hold_of(plan, "long3")
    assert held.reason == hold_of(plan, "unknown4").reason == RESERVED_FOR_OLDER_GANG
    assert held.details["reserved_for"] == "g1"
    assert 0 <= held.details["reserved_at"] - (NOW + 2 * HOUR) < 600
    assert "kept for job g1, expected to start by 01 Jan 02:20 UTC" in describe(held.reason, held.details)


def test_the_gang_gets_its_time_and_place():
    hold = hold_of(decide(one_long(gang())), "g1")
    assert [pod["node"] for pod in hold.details["reserved"]] == ["n0", "n1"]
    assert 0 <= hold.details["reserved_at"] - (NOW + 2 * HOUR) < 600


def test_an_equal_gang_behind_it_has_no_part_in_its_reservation():
    ahead = [job(f"w{rank}", "p", 1, rank=0, is_waiting_for_data=True) for rank in range(3)]
    plan = decide(one_long(*ahead, gang("g4"), gang("g5"), gang("g6")))
    assert [hold.job for hold in plan.holds if "reserved" in hold.details] == ["g4"]


def test_a_long_job_may_run_beside_the_gang():
    wide = job("g1", "p", 8, pods=1, expected_runtime_seconds=HOUR)
    blocker = running(job("r0", "p", 5, expected_runtime_seconds=2 * HOUR), ("n0", range(5)), started_at=NOW)
    other = running(job("r1", "p", 3), ("n1", range(3)), started_at=NOW)
    plan = decide(view(nodes(2), [project("p", 16)], [blocker, other, wide, job("long3", "p", 2)], now=NOW))
    assert [(start.job, start.placements[0].node) for start in plan.starts] == [("long3", "n1")]


def test_a_job_inside_the_share_of_another_project_is_not_bound():
    projects = (project("p", 8), project("q", 8))
    plan = decide(one_long(gang(), job("q2", "q", 1), projects=projects))
    assert names(plan.starts) == ["q2"]


def test_a_gang_larger_than_the_share_of_its_project_keeps_back_no_job_inside_it():
    holder = running(job("r0", "q", 8, expected_runtime_seconds=10 * HOUR), ("n0", range(8)), started_at=NOW)
    projects = (project("p", 2), project("q", 14))
    jobs = [holder, gang(), job("owed2", "p", 2), job("more3", "p", 8)]
    plan = decide(view(nodes(2), projects, jobs, now=NOW))
    assert names(plan.starts) == ["owed2"]
    assert "reserved_at" in hold_of(plan, "g1").details


def test_a_job_of_another_project_that_borrows_is_bound():
    projects = (project("p", 16), project("q", 0))
    plan = decide(one_long(gang(), job("q2", "q", 1), projects=projects))
    assert hold_of(plan, "q2").reason == RESERVED_FOR_OLDER_GANG


def test_an_older_job_of_the_project_is_not_bound():
    plan = decide(one_long(gang(), job("old0", "p", 1, rank=0)))
    assert names(plan.starts) == ["old0"]


def test_without_expected_ends_nothing_is_kept_back():
    plan = decide(one_long(gang(), job("young2", "p", 1), seconds=None))
    assert names(plan.starts) == ["young2"]


def test_elastic_jobs_do_not_grow_into_the_gap():
    elastic = job("e2", "p", 1, pods=8, min_pods=1, expected_runtime_seconds=HOUR)
    plan = decide(one_long(gang(), elastic))
    assert len(plan.starts[0].placements) == 8
    plan = decide(one_long(gang(), replace(elastic, expected_runtime_seconds=None)))
    assert names(plan.starts) == []
    grown = running(elastic, ("n1", [1]), started_at=NOW)
    seen = replace(one_long(gang()), jobs=(*one_long(gang()).jobs, grown))
    assert spare_placements(seen, decide(seen), grown, 2, 1) == ()


def test_an_overdue_job_keeps_its_distance():
    late = running(job("r0", "p", 1, expected_runtime_seconds=HOUR), ("n0", [0]), started_at=NOW)
    assert expected_end(late, NOW) == NOW + HOUR
    assert expected_end(late, NOW + 3 * HOUR) == NOW + 5 * HOUR
    assert expected_end(replace(late, expected_runtime_seconds=None), NOW) is None


def test_a_gang_keeps_its_time_while_a_job_of_its_place_is_starting():
    starting = running(job("r0", "p", 1, expected_runtime_seconds=HOUR), ("n1", [0]))
    assert expected_end(starting, NOW) == NOW + HOUR
    plan = decide(view(nodes(2), ALONE, [starting, gang(), job("young2", "p", 1)], now=NOW))
    assert hold_of(plan, "young2").reason == RESERVED_FOR_OLDER_GANG


def test_run_times_are_rounded_up_to_few_values():
    values = {rounded_up(seconds) for seconds in range(1, 100_000)}
    assert len(values) < 70
    assert all(seconds <= (rounded_up(seconds) or 0) <= 1.34 * seconds + 1 for seconds in range(1, 5000))
    assert not ends_by(job("a", "p", 1), NOW, NOW + HOUR)
