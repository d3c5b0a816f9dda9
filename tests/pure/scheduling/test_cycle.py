"""Whole decisions on literal clusters: turns, borrowing, promises, and every reason to wait."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from controlplane.scheduling import reasons
from controlplane.scheduling.accounts import Account
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.order import turn_key
from controlplane.scheduling.plan import plan_to_dict
from controlplane.scheduling.rearrange import Rearrangement
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.replay import main, replay
from controlplane.scheduling.suggestions import suggest
from controlplane.scheduling.view import PodPlacement, view_from_dict, view_to_dict
from tests.pure.scheduling.builders import (
    allocated,
    apply,
    gone,
    hold_of,
    interactive,
    job,
    names,
    node,
    nodes,
    project,
    running,
    settle,
    view,
)


def reason_of(plan, name):
    hold = hold_of(plan, name)
    return hold.reason, describe(hold.reason, hold.details)


def test_idle_gpus_go_to_whoever_asks():
    jobs = [job(f"a{rank}", "a", 1) for rank in range(8)]
    plan = decide(view(nodes(1), [project("a", 1), project("b", 7)], jobs))
    assert len(plan.starts) == 8
    assert [start.reason for start in plan.starts] == ["started_in_quota"] + ["started_over_quota"] * 7


def test_a_job_without_gpus_borrows_none():
    jobs = [job("a1", "a", 2), job("a2", "a", 0)]
    plan = decide(view(nodes(1), [project("a", 1)], jobs))
    told = {start.job: (start.reason, describe(start.reason, start.details)) for start in plan.starts}
    assert told["a1"][0] == "started_over_quota"
    assert told["a2"] == ("started_in_quota", "Started; it asks for no GPU.")


def test_who_is_furthest_below_its_share_is_next():
    jobs = [job(f"a{rank}", "a", 1) for rank in range(6)] + [
        job(f"b{rank}", "b", 1, rank=90 + rank) for rank in range(6)
    ]
    plan = decide(view(nodes(1, 6), [project("a", 2), project("b", 4)], jobs))
    assert allocated(apply(view(nodes(1, 6), [project("a", 2), project("b", 4)], jobs), plan)) == {
        "a": 2000,
        "b": 4000,
    }


def test_inside_a_project_priority_then_first_submission():
    jobs = [job("a3", "a", 1), job("a1", "a", 1), job("a9", "a", 1, priority=80)]
    plan = decide(view(nodes(1, 1), [project("a", 1)], jobs))
    assert [start.job for start in plan.starts] == ["a9"]
    assert [(hold.job, hold.queue_position, hold.details["ahead"]) for hold in plan.holds] == [
        ("a1", 1, []),
        ("a3", 2, ["a1"]),
    ]


def test_what_can_never_run_stands_in_no_line():
    jobs = [job("a1", "a", 9), job("a2", "a", 1), job("a3", "a", 1), job("a4", "a", 1, node_pool="none")]
    plan = decide(view(nodes(1, 1), [project("a", 1)], jobs))
    assert {hold.job: hold.queue_position for hold in plan.holds} == {"a1": None, "a3": 1, "a4": None}


def test_a_higher_project_priority_gets_the_surplus_first():
    jobs = [job(f"{name}{rank}", name, 1) for name in "ab" for rank in range(4)]
    cluster = view(nodes(1, 4), [project("a", 1), project("b", 1, priority=5)], jobs)
    assert allocated(settle(cluster, decide)) == {"a": 1000, "b": 3000}


def test_a_limit_binds_on_an_idle_cluster():
    jobs = [job("a1", "a", 2), job("a2", "a", 1)]
    plan = decide(view(nodes(1), [project("a", 1, limit_milli_gpus=2000)], jobs))
    assert names(plan.starts) == ["a1"]
    code, sentence = reason_of(plan, "a2")
    assert code == "over_gpu_limit"
    assert sentence.startswith("a holds 2 GPUs and may hold at most 2; this job asks for 1. Wait for one")


def test_interactive_work_stays_inside_the_quota_on_an_idle_cluster():
    jobs = [interactive("a1", "a", 1), interactive("a2", "a", 1), job("a3", "a", 4)]
    cluster = view(nodes(1), [project("a", 1)], jobs)
    plan = decide(cluster)
    assert names(plan.starts) == ["a1", "a3"]
    code, sentence = reason_of(plan, "a2")
    assert code == "interactive_over_quota"
    assert sentence.startswith(
        "Jobs that cannot be preempted stay inside the quota: a has 1 GPU, 1 of them in use"
    )
    assert [fix["change"] for fix in suggest(cluster, "a2")] == ["make_preemptible", "raise_quota"]
    budget = iter([False])
    found = suggest(cluster, "a2", is_over=lambda: next(budget, True))
    assert [fix["change"] for fix in found] == ["make_preemptible"]


def test_interactive_work_of_higher_priority_takes_from_its_own_projects_training():
    jobs = [running(job("a1", "a", 2), ("n0", [0, 1])), interactive("a2", "a", 1, priority=60)]
    plan = decide(view(nodes(1, 2), [project("a", 2)], jobs))
    assert [(item.job, item.kind) for item in plan.preempts] == [("a1", "preempt")]


def test_a_stopping_jobs_gpus_still_count_for_quota_and_limit():
    jobs = [running(interactive("a1", "a", 1), ("n0", [0]), is_stopping=True), interactive("a2", "a", 1)]
    cluster = view(nodes(1), [project("a", 1)], jobs)
    plan = decide(cluster)
    assert not plan.starts
    assert reason_of(plan, "a2")[0] == "waiting_for_reclaim"
    assert names(decide(gone(apply(cluster, plan))).starts) == ["a2"]


def test_a_promise_takes_nothing_of_the_limit_from_work_that_fits_now():
    jobs = [
        running(job("a1", "a", 2), ("n0", [0, 1])),
        running(job("b2", "b", 1), ("n1", [0])),
        job("a3", "a", 2, priority=60),
        job("a4", "a", 1),
    ]
    plan = decide(view(nodes(2, 2), [project("a", 2, limit_milli_gpus=4000), project("b", 1)], jobs))
    assert names(plan.preempts) == ["a1"]
    assert names(plan.starts) == ["a4"]


def test_full_and_at_fair_share_is_said_in_numbers():
    jobs = [
        running(job("b1", "team-b", 4), ("n0", range(4))),
        running(job("a2", "team-a", 12, pods=2), ("n0", range(4, 8)), ("n1", range(8))),
    ]
    jobs.append(job("b3", "team-b", 2))
    plan = decide(view(nodes(2), [project("team-a", 12), project("team-b", 4)], jobs))
    assert reason_of(plan, "b3") == (
        "over_fair_share",
        "All 16 GPUs are in use and team-b is at its fair share (4).",
    )


def test_past_use_is_said_also_where_it_does_not_lower_the_share():
    jobs = [running(job("a1", "a", 4), ("n0", range(4))), job("a2", "a", 1), job("b1", "b", 4)]
    used = replace(project("a", 0), usage=0.1)
    code, sentence = reason_of(decide(view(nodes(1, 4), [used, project("b", 4)], jobs)), "a2")
    assert code == "over_fair_share"
    assert sentence.endswith(" Past use counts: 10 % of the GPUs.")


def test_raising_the_quota_as_told_makes_room():
    jobs = [running(job(f"a{rank}", "a", 1), ("n0", [rank])) for rank in range(4)] + [job("b9", "b", 2)]
    cluster = view(nodes(1, 4), [project("a", 1), project("b", 0)], jobs)
    hold = hold_of(decide(cluster), "b9")
    fix = suggest(cluster, "b9")[0]
    assert fix["text"] == "the quota of b were 2, when 2 jobs have stopped"
    assert [one["job"] for one in fix["stopping"]] == ["a2", "a3"]
    assert (hold.reason, fix["change"], fix["quota_milli_gpus"]) == ("over_fair_share", "raise_quota", 2000)
    raised = replace(cluster, projects=(cluster.projects[0], project("b", 2)))
    assert hold_of(decide(raised), "b9").reason == "waiting_for_reclaim"


def test_asking_for_less_as_told_starts():
    jobs = [
        running(job("a1", "a", 1), ("n0", [0])),
        running(job("a2", "a", 1), ("n1", [0])),
        job("b3", "b", 2),
    ]
    cluster = view(nodes(2, 2), [project("a", 2), project("b", 2)], jobs)
    hold = hold_of(decide(cluster), "b3")
    assert describe(hold.reason, hold.details) == (
        "Room for 2 GPUs is free, but no single node has the 2 that it needs. Ask for 1 to start now, or wait."
    )
    assert suggest(cluster, "b3") == [
        {"change": "ask_for_gpus", "milli_gpus": 1000, "text": "it asked for 1 GPU", "stopping": []}
    ]
    less = replace(cluster, jobs=(*cluster.jobs[:2], job("b3", "b", 1)))
    assert names(decide(less).starts) == ["b3"]


def test_reclaimed_room_is_kept_for_its_beneficiary():
    jobs = [running(job(f"b{rank}", "b", 1), ("n0", [rank])) for rank in range(4)] + [job("a9", "a", 2)]
    cluster = view(nodes(1, 4), [project("a", 2), project("b", 2), project("c", 0)], jobs)
    plan = decide(cluster)
    assert names(plan.preempts) == ["b2", "b3"]
    assert reason_of(plan, "a9") == (
        "waiting_for_reclaim",
        "2 GPUs are being freed for it by stopping 2 jobs. It starts right after.",
    )
    half = apply(cluster, plan, is_gone=False)
    half = replace(half, jobs=tuple(one for one in half.jobs if one.id != "b2"))  # one of two is proven gone
    greedy = replace(half, jobs=(*half.jobs, job("c10", "c", 1)))
    again = decide(greedy)
    assert not again.starts
    assert not again.preempts
    assert reason_of(again, "c10") == (
        "reserved_for_older_gang",
        "The free GPUs are reserved for job a9, which is first in the queue.",
    )
    assert names(decide(gone(apply(greedy, again))).starts) == ["a9"]


def test_a_promise_is_kept_when_somebody_whose_turn_is_earlier_comes():
    jobs = [running(job(f"b{rank}", "b", 1), ("n0", [rank])) for rank in range(4)] + [job("a9", "a", 2)]
    cluster = view(nodes(1, 4), [project("a", 2), project("b", 0), project("c", 4)], jobs)
    freed = apply(cluster, decide(cluster))
    plan = decide(replace(freed, jobs=(*freed.jobs, job("c10", "c", 2))))
    assert names(plan.starts) == ["a9"]
    assert [(item.job, item.beneficiary) for item in plan.preempts] == [("b0", "c10"), ("b1", "c10")]


def test_room_made_by_preemption_is_kept_although_the_project_is_above_its_share():
    jobs = [running(job(f"a{rank}", "a", 1), ("n0", [rank])) for rank in range(2)] + [
        job("a9", "a", 1, priority=60)
    ]
    cluster = view(nodes(1, 2), [project("a", 0), project("b", 0)], jobs)
    freed = apply(cluster, decide(cluster))
    plan = decide(replace(freed, jobs=(*freed.jobs, job("b10", "b", 1))))
    assert names(plan.starts) == ["a9"]


def test_the_differences_that_decide_a_turn_in_their_order():
    def key(quota, fair_share, allocated, wants=1000, **more):
        numbers = {"priority": 0, "rank": 0, "limit": None, **more}
        account = Account("x", None, quota, weight=1, fair_share=fair_share, allocated=allocated, **numbers)
        return turn_key(account, wants)

    below, above = key(4000, 4000, 4000), key(1000, 1000, 2000, priority=9)
    assert below < above, "not over fair share comes first"
    inside, outside = key(2000, 4000, 1000), key(1000, 4000, 1000, priority=9)
    assert inside < outside, "then still in quota with the job"
    assert key(0, 4000, 3000, priority=1) < key(0, 4000, 0), "then project priority"
    assert key(0, 4000, 0) < key(0, 0, 0), "then not on borrowed ground only"
    assert key(0, 4000, 1000) < key(0, 2000, 1000), "then the smaller part of the entitlement with the job"
    assert key(0, 4000, 1000, 2000) < key(0, 4000, 2000, 1000), "then without it"
    assert key(0, 2000, 1000, 1000) < key(0, 4000, 2000, 2000), "then the smaller entitlement"
    assert key(0, 2000, 0) < key(0, 2000, 0, rank=1), "then the older"


def test_a_victim_is_told_who_took_its_gpus_and_keeps_its_rank():
    jobs = [running(job("b1", "b", 2), ("n0", [0, 1])), job("b2", "b", 1), job("a9", "a", 1)]
    cluster = view(nodes(1, 2), [project("a", 1), project("b", 1)], jobs)
    preempt = decide(cluster).preempts[0]
    assert describe(preempt.reason, preempt.details) == (
        "Its room went to job a9 of a, which reclaimed it. "
        "It keeps its place in the queue and restarts when there is room again."
    )
    settled = settle(cluster, decide)
    assert allocated(settled) == {"a": 1000, "b": 1000}
    hold = hold_of(decide(settled), "b1")
    assert (hold.reason, hold.details["by_job"], hold.details["by_project"]) == ("preempted", "a9", "a")
    alone = replace(
        settled, jobs=tuple(one for one in settled.jobs if one.id in ("b1", "b2") and one.state == "queued")
    )
    assert names(decide(alone).starts) == ["b1"]


def test_a_job_stopped_by_its_user_frees_room_without_victims():
    jobs = [
        running(job("b1", "b", 1), ("n0", [0]), is_stopping=True),
        running(job("b2", "b", 1), ("n0", [1])),
        job("a3", "a", 1),
    ]
    plan = decide(view(nodes(1, 2), [project("a", 1), project("b", 0)], jobs))
    assert not plan.preempts
    assert hold_of(plan, "a3").details["stopping"] == [{"project": "b", "job": "b1", "name": "b1"}]


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (job("a1", "a", 9), "No node of this cluster has 9 GPUs. The largest that fits is 8 GPUs."),
        (
            job("a1", "a", 0, gpu_memory_mib=40000),
            "No node of this cluster has 40000 MiB of GPU memory. The largest that fits is 32768 MiB of GPU memory.",
        ),
        (
            job("a1", "a", milli_cpus=65000),
            "No node of this cluster has 65 CPUs. The largest that fits is 64 CPUs.",
        ),
        (
            job("a1", "a", 8, pods=3),
            "Its 3 workers do not fit together on this cluster, even when it is empty. At most 2 do.",
        ),
    ],
)
def test_what_can_never_fit_is_told_with_the_largest_that_does(wanted, sentence):
    plan = decide(view(nodes(2), [project("a", 16)], [wanted]))
    assert reason_of(plan, "a1") == ("spec_impossible", sentence)


def test_a_missing_project_and_an_empty_cluster():
    plan = decide(view(nodes(1), [project("a", 1)], [job("x1", "x")]))
    assert reason_of(plan, "x1")[0] == "project_missing"
    plan = decide(view([], [project("a", 1)], [job("a1", "a")]))
    assert reason_of(plan, "a1") == (
        "cluster_full",
        "No GPU of this cluster is ready. It starts when a node is.",
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"is_waiting_for_data": True}, "waiting_for_data"),
        ({"is_waiting_for_volume": True}, "waiting_for_volume"),
        ({"not_before": 1030}, "backing_off"),
    ],
)
def test_what_must_happen_first(change, code):
    cluster = view(nodes(1), [project("a", 1)], [replace(job("a1", "a"), **change)])
    assert reason_of(decide(cluster), "a1")[0] == code
    assert names(decide(replace(cluster, jobs=(job("a1", "a"),))).starts) == ["a1"]


def test_an_attempt_is_tried_again_when_its_time_has_come():
    cluster = view(nodes(1), [project("a", 1)], [job("a1", "a", not_before=1030)])
    assert reason_of(decide(cluster), "a1")[1] == "Its last attempt failed. It is retried at 00:17:10 UTC."
    assert names(decide(replace(cluster, now=1030)).starts) == ["a1"]


def test_nothing_is_decided_on_a_cluster_that_does_not_answer():
    jobs = [running(job("b1", "b", 2), ("n0", [0, 1])), job("a2", "a", 1), job("a3", "a", 4)]
    cluster = view(nodes(2, 2), [project("a", 4), project("b", 0)], jobs, is_engine_reachable=False)
    plan = decide(cluster)
    assert not plan.starts
    assert not plan.preempts
    assert reason_of(plan, "a2")[0] == "engine_unreachable"


def test_jobs_of_a_missing_project_can_still_be_stopping():
    jobs = [running(job("x1", "x", 1), ("n0", [0]), is_stopping=True), job("a2", "a", 1)]
    plan = decide(view(nodes(1, 1), [project("a", 1)], jobs))
    assert reason_of(plan, "a2")[0] == "waiting_for_reclaim"


def test_room_that_was_kept_for_a_job_that_started_elsewhere_is_still_explained():
    going = replace(running(job("going", "p", rank=1), ("n0", [1])), is_stopping=True)
    promised = (PodPlacement(0, "n0", ((0, 1000), (1, 1000))),)
    older = replace(job("older", "p", 2, rank=2), promised=promised)
    backing_off = job("younger", "p", rank=3, not_before=2000)
    plan = decide(view(nodes(2, gpus=2), [project("p", 4)], [going, older, backing_off]))
    assert names(plan.starts) == ["older"]
    assert hold_of(plan, "younger").reason == reasons.BACKING_OFF


def test_a_job_started_in_this_cycle_gives_way_to_one_that_is_owed_the_room():
    """b fills a fragment first; a, owed two on one node, takes it back before anything runs."""
    jobs = [
        running(job("c1", "c", 1), ("n0", [0])),
        running(job("c2", "c", 1), ("n1", [0])),
        job("a3", "a", 2),
        job("b4", "b", 1),
        job("b5", "b", 1),
    ]
    cluster = view(nodes(2, 2), [project("a", 2), project("b", 0), project("c", 2)], jobs)
    settled = settle(cluster, decide)
    assert not decide(settled).preempts
    assert not decide(settled).starts


def test_the_closed_list_of_reasons_in_its_order():
    assert list(reasons.QUEUED_REASONS) == [
        "project_missing", "spec_impossible", "no_such_node_pool", "over_gpu_limit", "interactive_over_quota",
        "waiting_for_data", "waiting_for_volume", "preempted", "waiting_for_reclaim", "gang_does_not_fit",
        "fragmented", "over_fair_share", "cluster_full", "reserved_for_older_gang", "backing_off",
        "engine_unreachable", "cluster_refuses", "just_submitted",
    ]  # fmt: skip
    for reason in reasons.REASONS.values():
        assert reason.label
        assert reason.colour in {"error", "waiting", "info"}
        assert describe(reason.code).endswith(".")
    with pytest.raises(KeyError):
        describe("no_such_reason")


def test_a_view_survives_json_and_replays_alike(tmp_path):
    jobs = [running(job("b1", "b", 2), ("n0", [0, 1])), job("a2", "a", 1), job("x3", "x")]
    cluster = view(
        [node("n0", 2)], [project("a", 1, node_pools=(("train", ("default",)),)), project("b", 1)], jobs
    )
    cluster = apply(cluster, decide(cluster), is_gone=False)
    kept = json.loads(json.dumps(view_to_dict(cluster)))
    assert view_from_dict(kept) == cluster
    assert json.dumps(replay(kept)) == json.dumps(plan_to_dict(decide(cluster)))
    file = tmp_path / "view.json"
    file.write_text(json.dumps(kept))
    out, errors = io.StringIO(), io.StringIO()
    assert main([str(file), "a2"], out, errors) == 0
    assert json.loads(out.getvalue())["sentence"].startswith("1 GPU is being freed for it by stopping 1 job.")
    assert main([str(file), "nobody"], out, errors) == 3
    assert main([], out, errors) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{", "it is no JSON"),
        ("[]", "it is no view"),
        ('{"nodes": []}', "it is no view: it lacks 'projects'"),
        ('{"nodes": [], "projects": [], "departments": [], "jobs": [{}]}', "it is no view"),
    ],
    ids=["missing", "broken", "list", "incomplete", "incomplete job"],
)
def test_a_file_that_holds_no_view_is_named_and_is_no_missing_decision(tmp_path, content, words):
    file = tmp_path / "view.json"
    if content is not None:
        file.write_text(content)
    errors = io.StringIO()
    assert main([str(file), "a2"], io.StringIO(), errors) == 2
    assert errors.getvalue().startswith(f"{file} cannot be read: ")
    assert words in errors.getvalue()


def test_an_idle_gpu_that_no_job_of_the_plan_may_use_saves_no_victim_and_costs_no_search(monkeypatch):
    """Each try to let a victim run on serves all promised jobs again."""
    tried = []
    monkeypatch.setattr(Rearrangement, "_reprieve", lambda self, victim: tried.append(victim))
    pools = (("train", ("default",)),)
    the_nodes = [node("n0", 8), node("idle", 1, pool="other")]
    held = [running(job(f"b{index}", "b", rank=index), ("n0", [index])) for index in range(8)]
    wanted = [job(f"a{index}", "a", rank=index) for index in range(10, 14)]
    projects = [project("a", 4, node_pools=pools), project("b", 4, node_pools=pools)]
    plan = decide(view(the_nodes, projects, held + wanted))
    assert len(plan.preempts) == 4
    assert not tried


@pytest.mark.parametrize(("order", "first"), [("submission", "a1"), ("shortest", "a3")])
def test_inside_a_project_the_oldest_or_the_shortest_goes_first(order, first):
    """One GPU is free. Priority goes before run time; a job without a run time is last."""
    jobs = [
        job("a1", "a", 1, rank=1, expected_runtime_seconds=7200),
        job("a2", "a", 1, rank=2),
        job("a3", "a", 1, rank=3, expected_runtime_seconds=600),
        job("a4", "a", 1, rank=4, expected_runtime_seconds=60, priority=40),
    ]
    cluster = replace(view([node("n0", 1)], [project("a", 1)], jobs), queue_order=order)
    plan = decide(cluster)
    assert names(plan.starts) == [first]
    shortest_first = ["a1", "a2", "a4"] if order == "shortest" else ["a2", "a3", "a4"]
    assert [hold.job for hold in plan.holds] == shortest_first


@pytest.mark.parametrize(("order", "first"), [("submission", "a1"), ("shortest", "b2")])
def test_gpus_beyond_the_quotas_go_by_share_or_to_the_job_that_needs_least(order, first):
    """Both borrow; `b` holds more, and its job is longer but needs fewer GPU-seconds. Only one of the jobs fits."""
    jobs = [
        running(job("b0", "b"), ("n0", [0])),
        job("a1", "a", 2, expected_runtime_seconds=3600),
        job("b2", "b", expected_runtime_seconds=5000),
    ]
    plan = decide(view([node("n0", 3)], [project("a", 0), project("b", 0)], jobs, queue_order=order))
    assert names(plan.starts) == [first]


@pytest.mark.parametrize("order", ["submission", "shortest"])
def test_a_short_job_does_not_go_before_what_another_project_owns(order):
    jobs = [job("a1", "a", expected_runtime_seconds=86_400), job("b2", "b", expected_runtime_seconds=60)]
    plan = decide(view([node("n0", 1)], [project("a", 1), project("b", 0)], jobs, queue_order=order))
    assert names(plan.starts) == ["a1"]
