"""Small clusters on which an earlier scheduler was wrong, each with the plan that is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.suggestions import suggest
from controlplane.scheduling.view import ClusterView, view_from_dict
from tests.pure.scheduling.builders import apply, hold_of, names
from tests.pure.scheduling.exactness import violations

CASES = {path.stem: path for path in sorted((Path(__file__).parent / "cases").glob("*.json"))}


def case(name: str) -> ClusterView:
    return view_from_dict(json.loads(CASES[name].read_text()))


def sentence(name: str, job: str) -> str:
    hold = hold_of(decide(case(name)), job)
    return describe(hold.reason, hold.details)


@pytest.mark.parametrize("name", CASES)
def test_no_property_is_violated(name):
    assert violations(case(name)) == []


@pytest.mark.parametrize(
    ("name", "starts", "victims", "promised"),
    [
        # an over-quota gang in share cannot take the 500 that p1 has inside its quota of 500
        ("in_quota_lost1_plain_11985", ["q3"], [], []),
        # q4, inside its quota, goes before jobs that borrow, and starts where q2 would have needed a victim
        ("needless_victim_plain_13086", ["q4"], [], []),
        ("never_settles_depts_10436", ["q1", "q3", "q4"], [], []),
        ("never_settles_plain_13825", ["q1"], [], []),
        # all eight GPUs are promised to higher priorities of the same project
        ("not_conserving_plain_15430", [], ["r0", "r1", "r2"], ["q0", "q1", "q2"]),
        ("reclaim_without_stopping_single_1449", [], ["r0"], ["q0"]),
        ("second_cycle_acts_elastic_12391", ["q0", "q1", "q4"], [], []),
        ("started_and_promised_over_limit_elastic_1110", ["q4"], [], ["q1"]),
        # the elder of two that fit alike goes first, whatever their ids
        ("job_id_matters_plain_1278", ["q1", "q3", "q4"], [], []),
        # r1 runs on, so the jobs of the plan move, and q4 gets what is idle then
        ("idle_after_reprieve_elastic_47679", ["q0", "q1", "q2", "q4"], [], []),
    ],
)
def test_the_plan(name, starts, victims, promised):
    plan = decide(case(name))
    assert (names(plan.starts), names(plan.preempts)) == (starts, victims)
    assert sorted(hold.job for hold in plan.holds if hold.is_promised) == promised


def test_what_is_started_and_promised_stays_inside_the_limit():
    plan = decide(case("started_and_promised_over_limit_elastic_1110"))
    started = sum(pod.milli_gpus for start in plan.starts for pod in start.placements)
    promised = sum(milli for pod in hold_of(plan, "q1").details["promised"] for _, milli in pod["devices"])
    assert (started, promised) == (1000, 4000)


def test_a_job_inside_its_quota_backs_off_and_is_not_over_share():
    hold = hold_of(decide(case("over_share_but_in_quota_plain_1457")), "q1")
    assert (hold.reason, hold.details["fair_share_milli_gpus"]) == ("backing_off", 500)


@pytest.mark.parametrize(
    ("name", "job", "changes"),
    [
        # p0 holds nothing of the two GPUs that p1 runs on inside its share, whatever its limit
        ("fix_raise_limit_fails_plain_18", "q0", []),
        # the one GPU is held by a job that cannot be preempted
        ("fix_raise_quota_fails_plain_207", "q1", []),
        # the node is closed: what is taken there cannot be given
        ("fix_raise_quota_fails_single_285", "q0", []),
        ("resource_sentence_untrue_plain_834", "q1", ["ask_for_pods"]),
    ],
)
def test_only_what_helps_is_suggested(name, job, changes):
    assert [fix["change"] for fix in suggest(case(name), job)] == changes


def test_who_is_waited_for_is_named():
    """What r0 holds is processors, and no GPU."""
    view = case("reclaim_without_stopping_single_1449")
    plan = decide(view)
    assert [one["job"] for one in hold_of(plan, "q0").details["stopping"]] == ["r0"]
    assert names(decide(apply(view, plan)).starts) == ["q0"]


def test_a_gang_of_which_one_pod_fits_is_not_short_of_processors():
    assert sentence("resource_sentence_untrue_plain_834", "q1") == (
        "All 2 workers must start together, and only 1 fit now (2.3 GPUs free). "
        "It waits for the rest, or ask for fewer workers."
    )


def test_what_fits_is_counted_where_the_job_may_run():
    assert sentence("impossible_pods_number_plain_694", "q1") == (
        "No node of node pool b has 2 GPUs. The largest that fits is 0 GPUs."
    )
