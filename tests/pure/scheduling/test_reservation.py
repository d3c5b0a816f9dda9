"""Reservation and backfill: the oldest gang gets a time and a place, and only what ends before it uses the gap."""

from __future__ import annotations

from dataclasses import replace

from bench.trace_replay import Replay, TraceJob
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.expected_ends import ends_by, expected_end, rounded_up
from controlplane.scheduling.reasons import RESERVED_FOR_OLDER_GANG, describe
from controlplane.scheduling.spare import spare_placements
from tests.pure.scheduling.builders import apply, hold_of, job, names, node, nodes, project, running, view

HOUR = 3600
NOW = 1000


ALONE = (project("p", 16),)
Q = (project("q", 0), project("r", 16))


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
    assert "reserved for job g1, expected to start by 01 Jan 02:20 UTC" in describe(held.reason, held.details)


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


def test_a_gang_that_was_bound_does_not_get_the_promised_place_while_jobs_stop():
    """old1 has room but the reservation of g2 binds it; g2 then is promised what is idle and what r0 leaves."""
    holder = job("r0", "c", 1, milli_cpus=2000, expected_runtime_seconds=2 * HOUR)
    jobs = [
        running(holder, ("n0", [0]), ("n0", [1]), started_at=NOW),
        job("old1", "q", 2),
        job("g2", "c", 3, expected_runtime_seconds=HOUR),
        job("owed3", "a", 1, milli_cpus=2000, expected_runtime_seconds=2 * HOUR),
    ]
    projects = [project("a", 1), project("q", 0, weight=4), project("c", 0, weight=1)]
    cluster = view([node("n0", 4, milli_cpus=4000)], projects, jobs, now=NOW)
    plan = decide(cluster)
    assert (names(plan.preempts), plan.starts) == (["r0"], ())
    later = decide(apply(cluster, plan, is_gone=False))
    assert (sorted(later.promised), later.starts) == (sorted(plan.promised), ())


def test_a_job_in_share_is_served_where_a_victim_runs_on_because_its_reservation_has_ended():
    """first3 takes r1's GPU, beside the place of g2. high4, which is not bound, takes that place for good: first3 fits
    there too then, r1 runs on, and late5 may take its GPU."""
    jobs = [
        running(job("r0", "o", 2, expected_runtime_seconds=HOUR), ("n0", [0, 1]), started_at=NOW),
        running(job("r1", "o", 1), ("n1", [0]), started_at=NOW),
        job("g2", "q", 2, not_before=NOW + 60, node_pool="a"),
        job("first3", "p", 1),
        job("high4", "q", 1, priority=60, node_pool="a"),
        job("late5", "c", 1, node_pool="b"),
    ]
    projects = [project("p", priority=1, weight=1), *(project(name, weight=1) for name in "qc"), project("o")]
    plan = decide(view([node("n0", 2, pool="a"), node("n1", 1, pool="b")], projects, jobs, now=NOW))
    assert {job: pods[0].node for job, pods in plan.promised.items()} == {
        "first3": "n0",
        "high4": "n0",
        "late5": "n1",
    }
    assert {one.job: one.beneficiary for one in plan.preempts} == {"r0": "high4", "r1": "late5"}


def test_a_job_above_the_quota_of_another_project_is_bound_also_inside_its_share():
    """q has a quota of 1 and, of the surplus, a fair share of more: only its quota is owed."""
    projects = (project("p", 4), project("q", 1, weight=12_000))
    plan = decide(one_long(gang(), job("owed2", "q", 1), job("more3", "q", 1), projects=projects))
    assert names(plan.starts) == ["owed2"]
    assert hold_of(plan, "more3").reason == RESERVED_FOR_OLDER_GANG
    shares = {share.project: share.fair_share_milli_gpus for share in plan.shares}
    assert shares["q"] == 2000


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


def test_a_gang_keeps_its_time_and_place_while_it_backs_off():
    plan = decide(
        one_long(gang(not_before=NOW + 60), job("long3", "p", 1, expected_runtime_seconds=3 * HOUR))
    )
    assert names(plan.starts) == []
    assert hold_of(plan, "long3").details["reserved_for"] == "g1"


def test_a_gang_with_room_that_backs_off_is_expected_when_that_ends():
    fits = replace(gang(not_before=NOW + 600), pods=1)
    hold = hold_of(decide(one_long(fits)), "g1")
    assert hold.details["reserved_at"] // 600 == (NOW + 1199) // 600
    assert [pod["node"] for pod in hold.details["reserved"]] == ["n0"]


def test_any_number_of_gangs_without_a_time_come_before_one_that_has_one():
    timeless = [job(f"t{rank}", "q", 8, pods=rank + 2, node_pool="forever") for rank in range(1, 7)]
    held = [running(job(f"h{at}", "q", 8), (f"n{at}", range(8)), started_at=NOW) for at in range(2, 10)]
    first = one_long(*timeless, gang("g8"), *held, projects=(*ALONE, project("q", 64)))
    pools = (*first.nodes, *(replace(one, pool="forever") for one in nodes(10)[2:]))
    plan = decide(replace(first, nodes=pools))
    assert [hold.job for hold in plan.holds if "reserved" in hold.details] == ["g8"]


def test_a_job_beside_a_gang_takes_what_others_hold_elsewhere():
    """Three GPUs are free, kept for the gang of p; its younger job takes four from q, not one beside them."""
    cluster = one_long(
        gang(), job("y5", "p", 4, expected_runtime_seconds=9 * HOUR), projects=(project("p", 24), *Q)
    )
    long = {"started_at": NOW, "expected_runtime_seconds": 9 * HOUR}
    fixed = replace(cluster.jobs[0], is_preemptible=False)
    f2 = running(
        job("f2", "r", 4, is_preemptible=False, expected_runtime_seconds=HOUR),
        ("n0", range(4)),
        started_at=NOW,
    )
    f3 = running(
        job("f3", "r", 4, is_preemptible=False, expected_runtime_seconds=HOUR),
        ("n1", range(4, 8)),
        started_at=NOW,
    )
    small = running(job("s4", "q", 1), ("n0", [4]), **long)
    over = running(job("o5", "q", 4), ("n2", range(4)), **long)
    fill = running(job("f6", "r", 4, is_preemptible=False), ("n2", range(4, 8)), started_at=NOW)
    jobs = (fixed, f2, f3, small, over, fill, *cluster.jobs[1:])
    plan = decide(replace(cluster, nodes=tuple(nodes(3)), jobs=jobs))
    assert names(plan.preempts) == ["o5"]
