"""Start estimates: ranges from deciding ahead, for jobs whose start is worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.estimates import LearnedRunTimes, prospect, start_range, start_ranges
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.unknown_starts import why_unknown
from tests.pure.scheduling.builders import job, node, nodes, project, running, view

HOUR = 3600
NOW = 100_000


def full(*queued, ends_in=HOUR, projects=(("p", 8),)):
    """One node of 8, all in use by one job that ends in so many seconds."""
    holder = running(
        job("r0", "p", 8, expected_runtime_seconds=HOUR + ends_in), ("n0", range(8)), started_at=NOW - HOUR
    )
    return view([node("n0")], [project(*one) for one in projects], [holder, *queued], now=NOW)


def test_a_job_with_room_starts_now_where_the_plan_says():
    found = prospect(view(nodes(1), [project("p", 8)], [job("j1", "p", 2)], now=NOW), "j1")
    assert found.starts_now
    assert [(pod.node, len(pod.devices)) for pod in found.placements] == [("n0", 2)]
    assert (found.range.earliest, found.range.latest) == (NOW, NOW)


@pytest.mark.parametrize("ends_in", [600, HOUR, 24 * HOUR])
def test_the_end_of_what_holds_the_gpus_is_inside_the_range(ends_in):
    found = start_range(full(job("j1", "p", 8), ends_in=ends_in), "j1")
    assert found.earliest <= NOW + ends_in <= found.latest
    assert found.latest - NOW < 3 * ends_in


def test_the_second_in_line_waits_for_the_first_as_well():
    first = job("j1", "p", 8, expected_runtime_seconds=2 * HOUR)
    found = start_range(full(first, job("j2", "p", 8)), "j2")
    assert found.earliest <= NOW + 3 * HOUR <= found.latest
    assert found.earliest > NOW + HOUR


def test_a_range_is_wider_where_run_times_are_learned():
    seen = full(job("j1", "p", 8), ends_in=4 * HOUR)
    declared = start_range(seen, "j1")
    times = {"r0": 5 * HOUR}
    learned = start_range(seen, "j1", learned=LearnedRunTimes(times, times, times))
    assert NOW < learned.earliest < NOW + 3 * HOUR
    assert learned.earliest < declared.earliest + HOUR
    assert learned.latest > NOW + 8 * HOUR
    assert start_range(seen, "j1", learned=LearnedRunTimes({}, {}, {})) == declared


def test_a_reclaim_is_named_with_the_place_that_it_makes():
    seen = full(job("q1", "q", 4), projects=(("p", 0), ("q", 8)))
    found = prospect(seen, "q1")
    assert not found.starts_now
    assert found.victims == ("r0",)
    assert {pod.node for pod in found.placements} == {"n0"}
    assert found.range.earliest == NOW


def test_nothing_is_said_of_a_job_that_can_never_start():
    assert start_range(full(job("j1", "p", 9)), "j1") is None


@pytest.mark.parametrize("waits", [{"is_waiting_for_data": True}, {"is_waiting_for_volume": True}])
def test_nothing_is_said_of_a_job_that_waits_for_its_data_or_volume(waits):
    assert start_range(full(job("j1", "p", 8, **waits)), "j1") is None


def copied(eta=600, **more):
    """The progress of a copy that ends in so many seconds."""
    return tuple(
        {"dataset": "d@1", "data_state": "filling", "percent": 10, "eta_seconds": eta, **more}.items()
    )


def copying(eta=600, at=""):
    """The fields of a job whose data is at a location in so many seconds."""
    return {"copies": ((at, eta),), "data_progress": copied(eta)}


def free(*jobs, cordoned=False):
    return view([node("n0", is_schedulable=not cordoned)], [project("p", 8)], jobs, now=NOW)


@pytest.mark.parametrize("eta", [1, 45, 600, 24 * HOUR])
def test_a_job_that_waits_only_for_its_data_starts_when_that_is_there(eta):
    seen = free(job("j1", "p", 8, is_waiting_for_data=True, **copying(eta)))
    for learned in (None, LearnedRunTimes({"x": 1}, {"x": 1}, {"x": 1})):
        found = start_range(seen, "j1", learned=learned)
        assert NOW + eta <= found.earliest <= found.latest <= NOW + 3 * eta + 150
    assert not prospect(seen, "j1").starts_now


def test_a_job_that_waits_for_data_and_gpus_starts_when_it_has_both():
    waits = {"is_waiting_for_data": True, **copying(600)}
    assert start_range(full(job("j1", "p", 8, **waits)), "j1").latest > NOW + HOUR
    later = start_range(full(job("j1", "p", 8, **waits), ends_in=60), "j1")
    assert later.earliest >= NOW + 600


def test_a_job_whose_data_is_copied_to_where_it_has_room_starts_when_it_is_there():
    full_node, free_node = replace(node("n0"), location="east"), replace(node("n1"), location="west")
    holder = running(
        job("r0", "p", 8, expected_runtime_seconds=99 * HOUR), ("n0", range(8)), started_at=NOW - HOUR
    )
    waits = job("j1", "p", 8, locations=("east",), fillable=("west",), **copying(600, "west"))
    found = start_range(view([full_node, free_node], [project("p", 16)], [holder, waits], now=NOW), "j1")
    assert found.latest is not None
    assert found.earliest < found.latest < NOW + HOUR
    unknown = replace(waits, copies=(), data_progress=(("dataset", "d@1"),))
    seen = view([full_node, free_node], [project("p", 16)], [holder, unknown], now=NOW)
    assert start_range(seen, "j1").earliest > NOW + HOUR


def at_three(waits, *full_at):
    """A job on a cluster with a node at each of three locations, some of which are full for days."""
    names = ("east", "north", "west")
    places = [replace(node(name), location=name) for name in names]
    holders = [
        running(
            job(name, "p", 8, expected_runtime_seconds=99 * HOUR), (name, range(8)), started_at=NOW - HOUR
        )
        for name in full_at
    ]
    return view(places, [project("p", 24)], [*holders, waits], now=NOW)


def test_a_copy_makes_room_only_at_its_own_location():
    waits = job("j1", "p", 8, locations=("east",), fillable=("north", "west"), data_progress=copied(600))
    only_west = replace(waits, copies=(("west", 600),))
    assert start_range(at_three(only_west, "east", "west"), "j1").earliest > NOW + HOUR
    assert start_range(at_three(only_west, "east", "north"), "j1").latest < NOW + HOUR
    both = replace(waits, copies=(("north", 10 * HOUR), ("west", 600)))
    found = start_range(at_three(both, "east", "west"), "j1")
    assert NOW + 6 * HOUR < found.earliest < found.latest < NOW + 24 * HOUR


def test_a_job_without_data_anywhere_starts_where_its_first_copy_ends_if_it_has_room():
    waits = job("j1", "p", 8, is_waiting_for_data=True, copies=(("west", 600),), data_progress=copied(600))
    assert start_range(at_three(waits, "west"), "j1").earliest > NOW + HOUR
    assert NOW + 600 <= start_range(at_three(waits, "east"), "j1").latest < NOW + HOUR
    both = replace(waits, copies=(("north", 10 * HOUR), ("west", 600)))
    found = start_range(at_three(both, "west"), "j1")
    assert NOW + 6 * HOUR < found.earliest < found.latest < NOW + 24 * HOUR


def test_nothing_is_said_while_all_nodes_that_a_job_may_use_are_cordoned():
    assert start_range(free(job("j1", "p", 1), cordoned=True), "j1") is None
    nodes_of = [node("n0", pool="a", is_schedulable=False), node("n1", pool="b")]
    ours, theirs = job("j1", "p", 1, node_pool="a"), job("j2", "p", 1)
    found = start_ranges(view(nodes_of, [project("p", 8)], [ours, theirs], now=NOW))
    assert found["j1"] is None
    assert found["j2"].latest is not None


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (free(job("j1", "p", 1), cordoned=True), "All nodes that it could use are cordoned or not ready."),
        (replace(free(job("j1", "p", 1)), is_engine_reachable=False), "The cluster does not answer."),
        (free(job("j1", "p", 9)), "It cannot start on the cluster as it is."),
        (
            free(job("j1", "p", 1, is_waiting_for_data=True)),
            "How fast its dataset is copied is not known yet.",
        ),
        (
            free(job("j1", "p", 1, is_waiting_for_data=True, data_progress=copied(data_state="failed"))),
            "The copy of its dataset failed, and when one succeeds is not known.",
        ),
        (
            free(job("j1", "p", 1, is_waiting_for_data=True, data_progress=copied(message="No room."))),
            "The copy of its dataset waits, and when it goes on is not known.",
        ),
        (free(job("j1", "p", 1, is_waiting_for_volume=True)), "When its volume is ready is not known."),
        (
            free(job("j1", "p", 1, is_waiting_for_volume=True, volume_wait=(("held_by", "j0"),))),
            "When the job that has its volume ends is not known.",
        ),
        (free(job("j1", "p", 1)), ""),
        (free(job("j1", "p", 1, is_waiting_for_data=True, **copying())), ""),
        (free(), ""),
    ],
)
def test_why_a_start_is_not_known_is_said(seen, words):
    assert why_unknown(seen, "j1") == words


def test_nothing_is_said_while_the_cluster_does_not_answer_or_of_a_job_that_has_left_the_queue():
    seen = full(job("j1", "p", 8))
    assert start_range(replace(seen, is_engine_reachable=False), "j1") is None
    assert start_range(seen, "r0") is None
    assert start_range(seen, "gone") is None


def test_once_time_is_up_no_other_cycle_is_decided(monkeypatch):
    made = []
    monkeypatch.setattr(Scheduler, "decide", lambda _, seen: made.append(decide(seen)) or made[-1])
    assert start_range(full(job("j1", "p", 8)), "j1", lambda: True).latest is None
    assert len(made) == 1


def test_the_late_end_stays_open_when_time_is_up_or_nothing_ends():
    assert start_range(full(job("j1", "p", 8)), "j1", lambda: True).latest is None
    endless = full(job("j1", "p", 8), ends_in=10_000 * HOUR)
    assert start_range(endless, "j1").latest is None


def test_without_any_run_time_an_hour_is_assumed():
    seen = full(job("j1", "p", 8))
    unknown = tuple(replace(one, expected_runtime_seconds=None) for one in seen.jobs)
    found = start_range(replace(seen, jobs=unknown), "j1")
    assert found.earliest <= NOW + HOUR <= found.latest


def test_the_ranges_of_all_jobs_together_are_those_of_each():
    first = job("j1", "p", 8, expected_runtime_seconds=2 * HOUR)
    seen = full(first, job("j2", "p", 8), job("j3", "p", 9))
    found = start_ranges(seen)
    assert found == {name: start_range(seen, name) for name in ("j1", "j2", "j3")}
    assert found["j3"] is None
    assert found["j1"].earliest < found["j2"].earliest
