"""KAI's objects from ours, and its answers in our words."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.engines import base
from controlplane.engines.base import PodReport, ProjectReport
from controlplane.engines.kubernetes import kai, names, tenancy
from tests.pure.kubernetes.goldens import JOB, text_of
from tests.pure.kubernetes.kai_goldens import GOLDENS, PROFILE, path_of

NOW = datetime(2026, 11, 21, 3, 0, 10, tzinfo=UTC)
NO_GPUS = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs."


def objects(name: str, kind: str) -> list[dict[str, Any]]:
    return [body for body in GOLDENS[name].make(GOLDENS[name].profile) if body["kind"] == kind]


def group(*reasons: dict[str, Any], message: str = "", status: str = "True") -> dict[str, Any]:
    """A PodGroup as KAI leaves it."""
    condition = {"type": "UnschedulableOnNodePool", "status": status, "message": message}
    return {"status": {"schedulingConditions": [{**condition, "reasons": list(reasons)}]}}


def pod(node: str = "", *, deleted: str = "", **labels: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": f"{JOB}-1-0", "namespace": "yard-team-a", "labels": labels}
    metadata["annotations"] = {kai.POD_GROUP: f"{JOB}-1"}
    if deleted:
        metadata["deletionTimestamp"] = deleted
    return {"metadata": metadata, "spec": {"nodeName": node}}


def evicted(action: str = "reclaim", by: str = f"{JOB}-3") -> dict[str, Any]:
    """The event that KAI writes about a group that gives way."""
    return {
        "metadata": {
            "annotations": {
                "evictor-pod-group-name": by,
                "evictor-pod-group-namespace": "yard-team-b",
                "evictor-action-type": action,
            }
        },
        "reason": "Evict",
        "message": "Pod yard-team-a/x was preempted by workload y.\nyard-team-a uses <GPU: 4>",
        "involvedObject": {"kind": "PodGroup", "namespace": "yard-team-a", "name": f"{JOB}-1"},
    }


@pytest.mark.parametrize("name", GOLDENS)
def test_the_objects_are_as_in_the_golden_file(name):
    assert text_of(GOLDENS[name]) == path_of(name).read_text(), "see tests/pure/kubernetes/kai_goldens.py"


def test_every_queue_says_all_nine_numbers():
    for queue in objects("queues", "Queue"):
        resources = queue["spec"]["resources"]
        assert {len(resources[kind]) for kind in ("gpu", "cpu", "memory")} == {3}


def test_queues_hang_below_one_root_and_parents_come_first():
    queues = objects("queues", "Queue")
    seen: set[str] = set()
    for queue in queues:
        parent = queue["spec"].get("parentQueue")
        assert parent in seen or not seen
        seen.add(queue["metadata"]["name"])
    assert queues[0]["metadata"]["name"] == "yard"


def test_the_root_has_what_its_children_have():
    projects = [ProjectReport("a", 1500, None, 1), ProjectReport("b", 2500, None, 1)]
    root = kai.queues(projects, [], PROFILE)[0]["spec"]["resources"]["gpu"]
    assert root == {"quota": 4, "overQuotaWeight": 4, "limit": -1}
    empty = kai.queues([ProjectReport("a", 0, None, 0)], [], PROFILE)[0]["spec"]["resources"]["gpu"]
    assert empty == {"quota": 0, "overQuotaWeight": 1, "limit": -1}


def test_no_project_and_department_share_a_queue():
    assert kai.department_queue("x", PROFILE) != PROFILE.namespace_of("x")
    longest = replace(PROFILE, namespace_prefix="n" * 12).namespace_of("p" * 50)
    assert len(longest) <= 63  # it is a label's value too


def test_a_share_asks_for_no_whole_gpu():
    for name, wanted in (
        ("share", {kai.GPU_FRACTION: "0.3"}),
        ("share-by-memory", {kai.GPU_MEMORY: "20000"}),
    ):
        (body,) = objects(name, "Pod")
        assert wanted.items() <= body["metadata"]["annotations"].items()
        assert PROFILE.gpu_resource not in json.dumps(body["spec"]["containers"])
    (whole,) = objects("train", "Pod")
    assert whole["spec"]["containers"][0]["resources"]["limits"][PROFILE.gpu_resource] == "2"


def test_which_devices_a_pod_holds_is_noted_when_it_has_them():
    (body,) = objects("train", "Pod")
    assert names.DEVICES not in body["metadata"]["annotations"]


def test_jobs_that_wait_in_the_cluster_are_not_stopped_by_its_quotas():
    for quota in tenancy.quotas(ProjectReport("team-a", 4000, 4000, 4000), PROFILE):
        assert quota["spec"]["hard"] == {}


def test_nothing_said_is_no_verdict():
    assert kai.verdict({}, PROFILE) is None
    assert kai.verdict(group(message=NO_GPUS, status="False"), PROFILE) is None


def test_a_quota_that_refuses_comes_with_its_numbers():
    details = {
        "queueDetails": {
            "name": "yard-team-c",
            "queueDeservedResources": {"cpu": "-1m", "nvidia.com/gpu": "2"},
            "queueAllocatedNonPreemptibleResources": {"nvidia.com/gpu": "500m"},
            "podGroupRequestedResources": {"nvidia.com/gpu": "4"},
        }
    }
    said = {"reason": "NonPreemptibleOverQuota", "message": "Over  quota.", "details": details}
    verdict = kai.verdict(group(said, message="x"), PROFILE)
    assert verdict is not None
    assert (verdict.reason, verdict.message) == ("interactive_over_quota", "Over quota.")
    assert verdict.details == {
        "queue": "yard-team-c",
        "quota_milli_gpus": 2000,
        "non_preemptible_milli_gpus": 500,
        "request_milli_gpus": 4000,
    }


@pytest.mark.parametrize(
    ("reason", "kept"),
    [("NonPreemptibleOverQuota", "quota_milli_gpus"), ("OverLimit", "limit_milli_gpus")],
)
def test_a_bound_that_a_queue_does_not_have_is_no_bound_of_zero(reason: str, kept: str):
    """KAI writes 0 for a missing bound as for one of zero; zero it is where it refuses."""
    none = {"nvidia.com/gpu": "0"}
    bounds = {"name": "yard-team-a", "queueDeservedResources": none, "queueResourceLimits": none}
    said = {"reason": reason, "message": "Over.", "details": {"queueDetails": bounds}}
    verdict = kai.verdict(group(said), PROFILE)
    assert verdict is not None
    assert verdict.details == {"queue": "yard-team-a", kept: 0}


@pytest.mark.parametrize(
    ("reason", "message", "code", "details"),
    [
        ("OverLimit", "at its limit", "over_gpu_limit", {}),
        ("QueueDoesNotExist", "no such queue", "project_missing", {}),
        ("PodSchedulingErrors", NO_GPUS, "cluster_full", {}),
        ("PodSchedulingErrors", NO_GPUS.replace("GPUs", "CPU cores"), "cluster_full", {"resource": "cpus"}),
        ("PodSchedulingErrors", NO_GPUS.replace("GPUs", "memory"), "cluster_full", {"resource": "memory"}),
        (
            "PodSchedulingErrors",
            "Resources were found for 2 pods while 3 are required for gang scheduling. Additional pods cannot be",
            "gang_does_not_fit",
            {"pods": 3, "pods_that_fit": 2},
        ),
        (
            "PodSchedulingErrors",
            f"Resources were found for 0 pods while 3 are required for gang scheduling: {NO_GPUS}",
            "cluster_full",
            {},
        ),
        ("Whatever", "words of a later version", "cluster_full", {}),
    ],
)
def test_conditions_in_our_words(reason, message, code, details):
    verdict = kai.verdict(group({"reason": reason, "message": message}, message=message), PROFILE)
    assert verdict is not None
    assert (verdict.reason, verdict.message, verdict.details) == (code, message, details)


def test_an_event_tells_whose_room_it_was():
    key, eviction = kai.eviction(evicted()) or pytest.fail("it is one")
    assert key == f"yard-team-a/{JOB}-1"
    assert eviction == JOB


@pytest.mark.parametrize(
    ("action", "by", "taken_by"),
    [
        ("preempt", f"{JOB}-12", JOB),
        ("reclaim", "their-group", "yard-team-b/their-group"),
        ("reclaim", "pg-job-1", "yard-team-b/pg-job-1"),
        ("consolidation", f"{JOB}-3", ""),
        ("stalegangeviction", "", ""),
    ],
)
def test_whom_it_was_for(action, by, taken_by):
    _, eviction = kai.eviction(evicted(action, by)) or pytest.fail("it is one")
    assert eviction == taken_by


@pytest.mark.parametrize(
    "change", [{"reason": "Unschedulable"}, {"involvedObject": {"kind": "Pod"}}, {"involvedObject": None}]
)
def test_other_events_tell_nothing(change):
    assert kai.eviction({**evicted(), **change}) is None


def report(state: str, reason: str = "", node: str = "dgx1", **fields: Any) -> PodReport:
    return PodReport(f"{JOB}-1-0", state, reason, node=node, **fields)


def test_a_waiting_pod_has_the_verdict_and_a_placed_one_has_its_device_group():
    said = kai.verdict(group(message=NO_GPUS), PROFILE)
    waiting = kai.with_answers(report(base.STARTING, base.WAITING_FOR_NODE, ""), pod(), said, None, NOW)
    assert waiting.verdict == said
    labels = {kai.DEVICE_GROUP: "g1"}
    placed = kai.with_answers(report(base.RUNNING), pod("dgx1", **labels), said, None, NOW)
    assert (placed.verdict, placed.device_group) == (None, "g1")


def test_a_pod_that_waits_without_its_group_is_made_anew():
    starting, raw = report(base.STARTING, node=""), pod()
    raw["metadata"]["creationTimestamp"] = (NOW - kai.GROUP_DELAY).isoformat()
    told = kai.without_group(starting, raw, NOW)
    assert (told.state, told.reason, told.is_proven_gone) == (base.FAILED, base.UNSCHEDULABLE, False)
    assert "pod group was removed" in told.message
    placed = report(base.STARTING)
    assert kai.without_group(placed, raw, NOW) == placed, "it has its node"
    assert kai.without_group(starting, raw, NOW - timedelta(seconds=1)) == starting, (
        "it may only not be shown yet"
    )


def test_a_binding_that_failed_is_told():
    condition = {"type": "PodBound", "status": "False", "message": "no  reservation"}
    raw = {**pod(), "status": {"conditions": [condition]}}
    told = kai.with_answers(report(base.STARTING, node=""), raw, None, None, NOW)
    assert told.verdict is not None
    assert told.verdict.message == "no reservation"


@pytest.mark.parametrize("state", [base.RUNNING, base.FAILED])
def test_a_pod_that_gives_way_says_to_whom(state):
    _, eviction = kai.eviction(evicted()) or pytest.fail("it is one")
    gone = pod("dgx1", deleted="2026-11-21T03:00:00Z")
    told = kai.with_answers(report(state, base.POD_DELETED), gone, None, eviction, NOW)
    assert (told.state, told.reason, told.taken_by) == (state, base.PREEMPTED, JOB)


@pytest.mark.parametrize("reason", [base.STOPPED, base.OUT_OF_MEMORY, base.EXIT_CODE])
def test_an_end_of_another_kind_is_not_kais(reason):
    _, eviction = kai.eviction(evicted()) or pytest.fail("it is one")
    gone = pod("dgx1", deleted="2026-11-21T03:00:00Z")
    assert kai.with_answers(report(base.FAILED, reason), gone, None, eviction, NOW).reason == reason


def test_the_event_may_come_a_moment_after_the_end():
    young, old = "2026-11-21T03:00:09Z", "2026-11-21T03:00:01Z"
    ended = report(base.FAILED, base.POD_DELETED, exit_code=143, is_proven_gone=True)
    held = kai.with_answers(ended, pod("dgx1", deleted=young), None, None, NOW)
    assert (held.state, held.is_proven_gone) == (base.RUNNING, False)
    assert kai.with_answers(ended, pod("dgx1", deleted=old), None, None, NOW) == ended
