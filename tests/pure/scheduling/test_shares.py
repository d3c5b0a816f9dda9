"""Division of a cluster: upstream's twelve vectors, and what holds for any claims."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.shares import Claim, divide
from controlplane.scheduling.view import DepartmentView
from tests.pure.scheduling.builders import interactive, job, milli, nodes, project, running, view


def claim(place, quota, weight, requested, priority=100, limit=-1, usage=0.0):
    """In GPUs; -1 is no bound. Earlier is older."""
    return Claim(
        "abc"[place],
        None if quota == -1 else milli(quota),
        weight * 1000,
        milli(requested),
        priority,
        None if limit == -1 else milli(limit),
        usage,
        rank=place,
    )


VECTORS = {
    "D1": (100, 1, [(10, 3, 100), (10, 1, 100)], [70, 30]),
    "D2": (4, 1, [(3, 3, 100), (1, 1, 100)], [3, 1]),
    "D3": (10, 1, [(2, 1, 10, 200), (2, 5, 10, 100)], [8, 2]),
    "D4": (10, 1, [(0, 1, 10), (0, 1, 10), (0, 1, 10)], [4, 3, 3]),
    "D5": (7, 1, [(1, 2, 7), (1, 1, 7)], [4, 3]),
    "D6": (8, 1, [(2, 1, 2.5), (2, 1, 8)], [2.5, 5.5]),
    "D7": (8, 1, [(2, 0, 8), (2, 1, 3)], [2, 3]),
    "D8": (16, 1, [(0, 1, 16, 100, -1, 0.5), (0, 1, 16)], [5, 11]),
    "D9": (16, 0, [(0, 1, 16, 100, -1, 0.5), (0, 1, 16)], [8, 8]),
    "D10": (8, 1, [(6, 1, 8), (6, 1, 8)], [6, 6]),
    "D11": (8, 1, [(2, 1, 8, 100, 3), (2, 1, 8)], [3, 5]),
    "D12": (10, 1, [(-1, 1, 4), (3, 1, 10)], [4, 6]),
}


@pytest.mark.parametrize("name", VECTORS)
def test_upstream_vectors(name):
    total, usage_weight, claims, expected = VECTORS[name]
    shares = divide(
        milli(total), [claim(place, *item) for place, item in enumerate(claims)], usage_weight * 1000
    )
    assert list(shares.values()) == [milli(gpus) for gpus in expected]


@st.composite
def claims(draw):
    made = []
    for rank in range(draw(st.integers(1, 5))):
        quota = draw(st.sampled_from([None, 0, 500, 1000, 2000, 4000, 7000]))
        limit = draw(st.sampled_from([None, None, 1000, 3000, 8000]))
        made.append(
            Claim(
                f"p{rank}",
                quota,
                draw(st.integers(0, 4)),
                draw(st.integers(0, 24)) * 500,
                draw(st.sampled_from([0, 0, 1])),
                limit,
                draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
                rank,
            )
        )
    return made


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 20), claims(), st.randoms(use_true_random=False))
def test_division_of_any_claims(gpus, siblings, shuffler):
    total = gpus * 1000
    shares = divide(total, siblings)
    guaranteed = {
        item.name: min(total if item.quota is None else item.quota, item.wanted) for item in siblings
    }
    assert sum(shares.values()) <= max(total, sum(guaranteed.values()))
    for item in siblings:
        assert guaranteed[item.name] <= shares[item.name] <= max(guaranteed[item.name], item.wanted)
    assert divide(total, shuffler.sample(siblings, len(siblings))) == shares
    is_hungry = any(item.weight and item.wanted > shares[item.name] and not item.usage for item in siblings)
    if is_hungry and sum(guaranteed.values()) <= total:
        assert sum(shares.values()) == total


def test_a_departments_share_is_divided_among_its_projects():
    departments = [DepartmentView("d", 4000, 4000), DepartmentView("e", 4000, 4000)]
    projects = [
        project("a", 1, department="d"),
        project("b", 3, department="d"),
        project("c", 2, department="e"),
    ]
    jobs = [job(f"{name}{rank}", name) for name in "abc" for rank in range(8)]
    plan = decide(view(nodes(1), projects, jobs, departments=tuple(departments)))
    assert {share.project: share.fair_share_milli_gpus for share in plan.shares} == {
        "a": 1000,
        "b": 3000,
        "c": 4000,
    }


def test_past_use_lowers_the_surplus_of_a_project_and_of_its_department():
    departments = (DepartmentView("d", 0, 1000), DepartmentView("e", 0, 1000))
    projects = [project(name, 0, weight=1, department="e" if name == "c" else "d") for name in "abc"]
    jobs = [job(f"{name}{at}", name) for name in "abc" for at in range(12)]

    def shares(*usage):
        used = [replace(one, usage=part) for one, part in zip(projects, usage, strict=True)]
        plan = decide(view(nodes(1, 12), used, jobs, departments=departments))
        return [share.fair_share_milli_gpus // 1000 for share in plan.shares]

    assert shares(0.0, 0.0, 0.0) == [3, 3, 6]
    assert shares(0.5, 0.0, 0.0) == [1, 3, 8]


def test_a_departments_quota_above_the_cluster_is_no_surplus():
    departments = (DepartmentView("d", 5000, 5000),)
    projects = [project("a", 2, weight=0, department="d"), project("b", 0, weight=1, department="d")]
    jobs = [job(f"{name}{rank}", name) for name in "ab" for rank in range(4)]
    plan = decide(view(nodes(1, 4), projects, jobs, departments=departments))
    assert {share.project: share.fair_share_milli_gpus for share in plan.shares} == {"a": 2000, "b": 2000}


def test_work_that_could_never_run_asks_for_no_share():
    """Interactive work above the quota, and jobs that wait for data, take nothing from others."""
    jobs = [
        *[interactive(f"a{rank}", "a") for rank in range(4)],
        *[job(f"b{rank}", "b") for rank in range(8)],
    ]
    jobs += [job(f"a{rank}", "a", is_waiting_for_data=True) for rank in range(10, 14)]
    plan = decide(view(nodes(1, 6), [project("a", 1), project("b", 1)], jobs))
    assert {share.project: share.fair_share_milli_gpus for share in plan.shares} == {"a": 1000, "b": 5000}


def test_a_cordoned_nodes_jobs_still_count_and_its_idle_gpus_do_not():
    closed, still_open = nodes(2, 4, is_schedulable=False)[0], nodes(2, 4)[1]
    jobs = [running(job("a1", "a", 2), ("n0", [0, 1])), *[job(f"a{rank}", "a") for rank in range(2, 12)]]
    plan = decide(view([closed, still_open], [project("a", 1)], jobs))
    assert plan.shares[0].fair_share_milli_gpus == 6000
    assert {pod.node for start in plan.starts for pod in start.placements} == {"n1"}
