"""Jobs start where their data is, and their data follows them to where there is room."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from controlplane.scheduling.capacity import FreeCapacity
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.plan import plan_to_dict
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.replay import replay
from controlplane.scheduling.unknown_starts import COPY_FAILED, why_unknown
from controlplane.scheduling.view import view_from_dict, view_to_dict
from tests.pure.scheduling.builders import apply, hold_of, job, node, project, running, view

PROJECTS = [project("a", 8), project("b", 8)]
DATA = (("dataset", "xray@3"),)


def at(name, location, gpus=4, **more):
    return replace(node(name, gpus, **more), location=location)


# The tightest fit is in the west.
NODES = (at("e0", "east", 8), at("w0", "west", 4))
HERE = {"locations": ("east",), "fillable": ("west",), "data_progress": DATA}


def placed(plan, name):
    return [pod.node for start in plan.starts if start.job == name for pod in start.placements]


def test_a_job_starts_where_its_data_is_and_says_so():
    assert placed(decide(view(NODES, PROJECTS, [job("a1", "a", 2)])), "a1") == ["w0"]
    plan = decide(view(NODES, PROJECTS, [job("a1", "a", 2, **HERE)]))
    assert placed(plan, "a1") == ["e0"]
    [start] = plan.starts
    assert start.details["data_at"] == ["east"]
    assert describe(start.reason, start.details).endswith("Placed where xray@3 is cached: east.")


def test_where_only_another_location_has_room_the_data_is_brought_there():
    full = running(job("b1", "b", 8), ("e0", range(8)))
    plan = decide(view(NODES, PROJECTS, [full, job("a2", "a", 2, **HERE)]))
    hold = hold_of(plan, "a2")
    assert (hold.reason, hold.details["fill_at"]) == ("waiting_for_data", "west")
    sentence = describe(hold.reason, hold.details)
    assert sentence.startswith("Its dataset xray@3 is still to be brought to west, where it has room.")
    filling = (*DATA, ("data_state", "filling"), ("percent", 40))
    plan = decide(view(NODES, PROJECTS, [full, job("a2", "a", 2, **{**HERE, "data_progress": filling})]))
    hold = hold_of(plan, "a2")
    assert "brought to west, where it has room: 40 % are there" in describe(hold.reason, hold.details)


def test_a_job_with_room_elsewhere_stops_no_other():
    greedy = [running(job(f"b{at}", "b", 4), ("e0", range(4 * at, 4 * at + 4))) for at in range(2)]
    projects = [project("a", 8), project("b", 4)]
    asked = job("a2", "a", 4, **HERE)
    assert not decide(view(NODES, projects, [*greedy, asked])).preempts
    # without another location, or where a fill failed, its GPUs are taken back
    no_other = replace(asked, fillable=())
    assert len(decide(view(NODES, projects, [*greedy, no_other])).preempts) == 1


def test_where_no_location_has_room_the_job_waits_for_room():
    full = [running(job("b1", "b", 8), ("e0", range(8))), running(job("b2", "b", 4), ("w0", range(4)))]
    hold = hold_of(
        decide(view(NODES, [project("a", 0), project("b", 12)], [*full, job("a2", "a", 2, **HERE)])), "a2"
    )
    assert (hold.reason, hold.details["free_milli_gpus"]) == ("over_fair_share", 0)


def test_a_gang_that_needs_both_locations_waits_for_its_data_in_the_other():
    gang = job("a1", "a", 4, pods=3, **HERE)
    projects = [project("a", 12)]
    assert hold_of(decide(view(NODES, projects, [gang])), "a1").details["fill_at"] == "west"
    everywhere = replace(gang, locations=(), fillable=())
    assert sorted(placed(decide(view(NODES, projects, [everywhere])), "a1")) == ["e0", "e0", "w0"]


def test_pools_and_locations_both_hold():
    the_nodes = (
        at("n0", "east", pool="p"), at("n1", "west", pool="p"), at("n2", "east", pool="q"),
    )  # fmt: skip
    asked = job("a1", "a", 4, node_pool="p", locations=("east",))
    assert placed(decide(view(the_nodes, PROJECTS, [asked])), "a1") == ["n0"]
    both = [asked, replace(asked, id="a2", submit_rank=2)]
    assert [start.job for start in decide(view(the_nodes, PROJECTS, both)).starts] == ["a1"]


@pytest.mark.parametrize("wanted", [{"gpus": 0.0}, {"gpus": 2.0}, {"gpus": 2.0, "pods": 2}])
def test_a_job_whose_data_cannot_be_brought_to_its_pool_says_why(wanted):
    the_nodes = (at("n0", "east", pool="p"), at("n1", "west", pool="q"))
    failed = (*DATA, ("data_state", "failed"), ("message", "west has no room."))
    asked = job("a1", "a", node_pool="q", locations=("east",), data_progress=failed, **wanted)
    seen = view(the_nodes, PROJECTS, [asked])
    hold = hold_of(decide(seen), "a1")
    assert hold.reason == "waiting_for_data"
    assert "could not be brought to the cluster: west has no room." in describe(hold.reason, hold.details)
    assert why_unknown(seen, "a1") == COPY_FAILED
    fillable = view(the_nodes, PROJECTS, [replace(asked, fillable=("west",))])
    assert why_unknown(fillable, "a1") == ""


def test_a_job_too_large_for_where_its_data_is_can_still_fit():
    large = job("a1", "a", 8, locations=("west",), fillable=("east",), data_progress=DATA)
    hold = hold_of(decide(view(NODES, PROJECTS, [large])), "a1")
    assert (hold.reason, hold.details["fill_at"]) == ("waiting_for_data", "east")


def test_locations_change_nothing_for_jobs_without_data():
    jobs = [job(f"a{rank}", "a", gpus, rank=rank) for rank, gpus in enumerate((1, 0.5, 2, 4))]
    plain = view([replace(one, location="") for one in NODES], PROJECTS, jobs)
    assert plan_to_dict(decide(view(NODES, PROJECTS, jobs))) == plan_to_dict(decide(plain))


def test_a_kept_view_with_locations_is_decided_again():
    seen = view(NODES, PROJECTS, [job("a1", "a", 2, **HERE)])
    again = view_from_dict(json.loads(json.dumps(view_to_dict(seen))))
    assert again == seen
    assert "data_at" in json.dumps(replay(json.loads(json.dumps(view_to_dict(seen)))))


GREEDY = [project("a", 16), project("b", 0)]


def greedy(count=2):
    """Jobs of four GPUs that borrow all of the east."""
    return [running(job(f"b{at}", "b", 4), ("e0", range(4 * at, 4 * at + 4))) for at in range(count)]


def waiting(count, **more):
    return [job(f"a{10 + at}", "a", 4, **{**HERE, **more}) for at in range(count)]


def test_of_equal_jobs_only_as_many_wait_for_their_data_as_have_room_elsewhere():
    """The west has room for one of them; the next takes its own quota back."""
    plan = decide(view(NODES, GREEDY, [*greedy(), *waiting(2)]))
    assert [(one.beneficiary, one.kind) for one in plan.preempts] == [("a11", "reclaim")]
    assert hold_of(plan, "a10").details["fill_at"] == "west"
    assert hold_of(plan, "a11").reason == "waiting_for_reclaim"
    assert len(decide(view(NODES, GREEDY, [*greedy(), *waiting(3)])).preempts) == 2
    assert not decide(view(NODES, GREEDY, [*greedy(), *waiting(1)])).preempts


def test_jobs_of_several_projects_do_not_count_on_the_same_room_elsewhere():
    other = replace(waiting(1)[0], id="c10", project="c")
    projects = [project("a", 4), project("c", 4), project("b", 0)]
    plan = decide(view(NODES, projects, [*greedy(), *waiting(1), other]))
    assert len(plan.preempts) == 1


def test_a_job_that_waits_for_its_data_counts_in_its_projects_share():
    """The quota allows one more job, which has room elsewhere: nothing is taken for a second one."""
    projects = [project("a", 4), project("b", 8)]
    assert not decide(view(NODES, projects, [*greedy(), *waiting(2)])).preempts


def test_who_waits_for_data_and_who_reclaims_does_not_change():
    seen = view(NODES, GREEDY, [*greedy(), *waiting(3)])
    scheduler, before = Scheduler(), seen
    for _ in range(5):
        plan = scheduler.decide(before)
        assert plan_to_dict(plan) == plan_to_dict(decide(before))
        before = apply(before, plan)
    assert not plan.starts
    assert not plan.preempts
    assert {name: one.state for name in ("a10", "a11", "a12") for one in before.jobs if one.id == name} == {
        "a10": "queued",
        "a11": "active",
        "a12": "active",
    }


def test_by_priority_too_a_job_with_room_elsewhere_stops_no_other_and_the_next_does():
    low = [running(job(f"a{at}", "a", 4, priority=10), ("e0", range(4 * at, 4 * at + 4))) for at in range(2)]
    plan = decide(view(NODES, [project("a", 8)], [*low, *waiting(2)]))
    assert [(one.beneficiary, one.kind) for one in plan.preempts] == [("a11", "preempt")]


@pytest.mark.parametrize("limit", [{"limit_milli_gpus": 4000}, {}])
def test_a_job_that_waits_for_its_data_keeps_no_other_from_free_gpus(limit):
    """The limit, and the quota of non-preemptible jobs, hold one of the two; only one of them can start now."""
    full = running(job("b1", "b", 8), ("e0", range(8)))
    projects = [project("a", 4, **limit), project("b", 8)]
    waits = job("a10", "a", 4, is_preemptible=bool(limit), **HERE)
    plan = decide(view(NODES, projects, [full, waits, job("a20", "a", 2, is_preemptible=bool(limit))]))
    assert placed(plan, "a20") == ["w0"]


def test_the_cost_of_jobs_that_wait_for_data_grows_with_their_number_not_its_square(monkeypatch):
    changes = []
    real = FreeCapacity.change
    monkeypatch.setattr(FreeCapacity, "change", lambda *given: (changes.append(1), real(*given)))

    def cost(count):
        changes.clear()
        nodes = (at("e0", "east", 1), at("w0", "west", count, milli_cpus=10**6))
        jobs = [job(f"a{10 + one}", "a", 1, **HERE) for one in range(count)]
        decide(
            view(
                nodes,
                [project("a", count), project("b", 1)],
                [running(job("b1", "b", 1), ("e0", [0])), *jobs],
            )
        )
        return len(changes)

    assert cost(32) < 3 * cost(16)


@pytest.mark.parametrize("seed", range(30))
def test_drawn_jobs_with_data_at_some_locations_settle(seed):
    """Kept state and a fresh one agree in every cycle, and after a few cycles nothing changes."""
    draw = random.Random(seed)
    places = [(), (), ("east",), ("west",), ("east", "west")]
    projects = [
        project(name, draw.choice((0, 4, 8)), limit_milli_gpus=draw.choice((None, None, 8000)))
        for name in "abc"
    ]
    jobs = []
    for at in range(draw.randint(4, 14)):
        where = draw.choice(places)
        away = tuple(one for one in ("east", "west") if where and one not in where and draw.random() < 0.8)
        size = draw.choice((1, 2, 4))
        jobs.append(
            job(
                f"j{at}",
                draw.choice("abc"),
                size,
                priority=draw.choice((10, 50)),
                locations=where,
                fillable=away,
            )
        )
    scheduler, seen = Scheduler(), view(NODES, projects, [])
    for start in range(0, len(jobs), 4):
        seen = replace(seen, jobs=(*seen.jobs, *jobs[start : start + 4]))
        for _ in range(12):
            plan = scheduler.decide(seen)
            assert plan_to_dict(plan) == plan_to_dict(decide(seen))
            if not plan.starts and not plan.preempts:
                break
            seen = apply(seen, plan)
        assert not plan.starts
        assert not plan.preempts


def test_a_job_that_names_its_pool_gets_nodes_that_a_location_serves_and_others():
    """A location that names labels serves some nodes of a pool; the others belong to none."""
    nodes = (at("n0", "", 4), at("w0", "west", 8))
    wide = job("a1", "a", 8, node_pool="default")
    assert placed(decide(view(nodes, PROJECTS, [wide])), "a1") == ["w0"]
    pair = job("a2", "a", 4, pods=3, node_pool="default")
    assert sorted(placed(decide(view(nodes, [project("a", 12)], [pair])), "a2")) == ["n0", "w0", "w0"]
