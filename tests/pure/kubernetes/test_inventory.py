"""Nodes and what is on them -> node reports."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.clusters import quantities
from controlplane.engines.base import EngineRefused, NodeReport
from controlplane.engines.kubernetes import inventory, names
from controlplane.engines.kubernetes.config import KAI, PLACEMENTS, ClusterProfile

GPU = "nvidia.com/gpu"
PROFILE = ClusterProfile()
READY = {"type": "Ready", "status": "True"}


def node(gpus: int = 4, *, labels: dict[str, str] | None = None, taints: Any = (), **status: Any) -> Any:
    quantities = {"cpu": "8", "memory": "64Gi", GPU: str(gpus)}
    found = {"capacity": quantities, "allocatable": quantities, "conditions": [READY], **status}
    return {
        "metadata": {"name": "n", "uid": "u", "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": found,
    }


def pod(gpus: int = 0, *, devices: str = "", cpu: str = "0", memory: str = "0", **more: Any) -> Any:
    """A pod on the node: ours when it notes its devices."""
    labels = {names.INSTALLATION: "trainyard", names.PROJECT: "x"} if devices else {}
    wanted = {GPU: str(gpus), "cpu": cpu, "memory": memory}
    return {
        "metadata": {"namespace": "yard-x", "labels": labels, "annotations": {names.DEVICES: devices}},
        "spec": {"nodeName": "n", "containers": [{"resources": {"requests": wanted}}], **more},
        "status": {"phase": "Running"},
    }


def report(raw: Any, *pods: Any, profile: ClusterProfile = PROFILE) -> NodeReport:
    (found,) = inventory.node_reports([raw], pods, profile)
    return found


def foreign(found: NodeReport) -> list[int]:
    return [device.index for device in found.devices if device.is_foreign]


def test_a_node_is_told_by_its_labels():
    labels = {names.GPU_MODEL: "H200", names.GPU_MEMORY: "143771", names.POOL: "dgx"}
    found = report(node(2, labels=labels))
    assert (found.name, found.pool, found.milli_cpus, found.memory_mib, found.is_ready) == (
        "n",
        "dgx",
        8000,
        65536,
        True,
    )
    assert [(one.index, one.uuid, one.model, one.memory_mib) for one in found.devices] == [
        (0, "u-0", "H200", 143771),
        (1, "u-1", "H200", 143771),
    ]
    assert (found.device_parts, found.is_one_part_per_pod) == (1, False)


def test_what_jobs_may_ask_for_beside_gpus_is_told_less_what_others_hold():
    there = {"cpu": "8", "memory": "64Gi", GPU: "4", "vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "5Gi"}
    there |= {
        "nvidia.com/mig-1g.10gb": "7",
        "rdma/hca": "0",
        "pods": "110",
        "example.com/not-in-the-setting": "1",
        "smarter-devices/fuse": "1",
    }
    other = pod()
    other["spec"]["containers"][0]["resources"] = {
        "limits": {"vpc.amazonaws.com/efa": "1", "hugepages-2Mi": "1Gi"}
    }
    mine = pod(1, devices="0:1000:1")
    mine["spec"]["containers"][0]["resources"] = {"limits": {"vpc.amazonaws.com/efa": "2"}}
    found = report(node(capacity=there, allocatable=there), other, mine)
    assert found.extras == {
        "vpc.amazonaws.com/efa": 3,
        "hugepages-2Mi": 4 << 30,
        "smarter-devices/fuse": 1,
    }
    there["smarter-devices/fuse"] = "999E"
    assert report(node(capacity=there, allocatable=there)).extras["smarter-devices/fuse"] == 2**62


def test_processors_and_memory_are_no_extra_resources():
    profile = replace(PROFILE, extra_resources=("cpu", "memory"))
    found = report(node(), pod(cpu="1500m", memory="1Gi"), profile=profile)
    assert (found.milli_cpus, found.memory_mib, found.extras) == (6500, 64512, {})
    with pytest.raises(EngineRefused, match="does not give jobs cpu"):
        profile.check_extra_resources(["cpu"])


@pytest.mark.parametrize(
    ("labels", "pool"),
    [
        ({}, "default"),
        ({"eks.amazonaws.com/nodegroup": "GPU_Spot.A"}, "gpu-spot-a"),
        ({"kubernetes.azure.com/agentpool": "a100", names.POOL: "mine"}, "mine"),
        ({"cloud.google.com/gke-nodepool": "p" * 60}, "p" * 50),
    ],
)
def test_the_pool_is_our_label_or_the_clouds(labels: dict[str, str], pool: str):
    assert report(node(labels=labels)).pool == pool
    assert report(node(labels=labels), profile=ClusterProfile(pool_label="team")).pool == "default"


def test_what_others_request_is_not_there_for_us():
    found = report(node(), pod(1, cpu="1500m", memory="1Gi"), pod(2, cpu="1", memory="512Mi"))
    assert foreign(found) == [1, 2, 3]
    assert (found.milli_cpus, found.memory_mib) == (5500, 65536 - 1536)


def test_a_device_of_ours_is_never_called_foreign():
    found = report(node(), pod(1, devices="3:1000:1"), pod(2), pod(1, devices="1:500:1"))
    assert foreign(found) == [0, 2]
    assert found.milli_cpus == 8000, "our own pods are the planner's to count"


def test_pods_that_have_ended_hold_nothing_and_pinned_ones_hold_already():
    ended, pinned = pod(4), pod(1, devices="3:1000:1")
    ended["status"]["phase"] = "Succeeded"
    terms = [{"matchFields": [{"key": "metadata.name", "values": ["n"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pinned["spec"] = {"affinity": {"nodeAffinity": required}}
    assert foreign(report(node(), ended, pinned, pod(1))) == [2]


def test_a_gpu_that_broke_is_not_there_but_its_place_stays():
    raw = node(4)
    raw["status"]["allocatable"] = raw["status"]["allocatable"] | {GPU: "3"}
    assert foreign(report(raw, pod(1, devices="3:1000:1"))) == [2]


@pytest.mark.parametrize(("strategy", "is_one"), [("time-slicing", False), ("mps", True)])
def test_a_node_that_shares_gives_out_parts(strategy: str, is_one: bool):
    labels = {names.GPU_REPLICAS: "4", names.SHARING_STRATEGY: strategy}
    found = report(node(8, labels=labels), pod(3))
    assert (len(found.devices), found.device_parts, found.is_one_part_per_pod) == (2, 4, is_one)
    assert foreign(found) == [1]


def test_a_renamed_resource_is_found():
    quantities = {"cpu": "8", "memory": "64Gi", GPU: "0", f"{GPU}.shared": "4"}
    raw = node(labels={names.GPU_REPLICAS: "2"}, capacity=quantities, allocatable=quantities)
    found = report(raw)
    assert (len(found.devices), found.labels[names.GPU_RESOURCE]) == (2, f"{GPU}.shared")


def test_under_kai_any_share_goes_and_its_reservations_are_not_foreign():
    profile = replace(PROFILE, scheduler=KAI)
    held = pod(1)
    held["metadata"]["namespace"] = PLACEMENTS[KAI].reservations
    found = report(
        node(), held, pod(1), pod(1, devices="0:1000:1"), pod(1, devices="0:1000:1"), profile=profile
    )
    assert found.device_parts == 1000
    assert foreign(found) == [3]
    noted = report(
        node(),
        pod(1, devices="3:1000:1"),
        pod(1, devices="2:500:1"),
        pod(1, devices="2:500:1"),
        pod(1),
        profile=profile,
    )
    assert foreign(noted) == [1]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (node(conditions=[{"type": "Ready", "status": "Unknown", "message": "gone quiet"}]), "gone quiet"),
        (node(conditions=[]), "not reported yet"),
        (node(taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]), "team=x:NoSchedule"),
    ],
)  # fmt: skip
def test_a_node_that_takes_no_pods_says_why(raw: Any, words: str):
    assert not report(raw).is_ready or report(raw).is_closed
    assert words in report(raw).message


def test_a_cordon_and_a_removal_are_named():
    raw = node()
    raw["spec"]["unschedulable"] = True
    assert "cordoned" in report(raw).message
    # it works: what runs there is not to be taken for dead
    assert (report(raw).is_ready, report(raw).is_closed) == (True, True)
    raw["metadata"]["deletionTimestamp"] = "2026-11-21T03:00:00Z"
    assert "removed" in report(raw).message


@pytest.mark.parametrize(
    ("taint", "settings", "is_open"),
    [
        ({"key": GPU, "effect": "NoSchedule"}, {}, True),
        ({"key": "team", "effect": "PreferNoSchedule"}, {}, True),
        (
            {"key": "kubernetes.azure.com/scalesetpriority", "value": "spot", "effect": "NoSchedule"},
            {},
            False,
        ),
        (
            {"key": "kubernetes.azure.com/scalesetpriority", "value": "spot", "effect": "NoSchedule"},
            {"spot_pools": ("default",)},
            True,
        ),
        (
            {"key": "a", "value": "b", "effect": "NoExecute"},
            {"tolerations": ({"key": "a", "operator": "Equal", "value": "b"},)},
            True,
        ),
        (
            {"key": "a", "value": "c", "effect": "NoExecute"},
            {"tolerations": ({"key": "a", "operator": "Equal", "value": "b"},)},
            False,
        ),
    ],
)
def test_taints_and_tolerations(taint: dict[str, str], settings: dict[str, Any], is_open: bool):
    found = report(node(taints=[taint]), profile=ClusterProfile(**settings))
    assert found.is_ready
    assert found.is_closed is not is_open


def condition(kind: str, status: str = "True", **more: str) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True"}
    return node(conditions=[ready, {"type": kind, "status": status, **more}])


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        (node(), None),
        (node(taints=[{"key": "aws-node-termination-handler/spot-itn", "effect": "NoSchedule"}]), 120),
        (node(taints=[{"key": "cloud.google.com/impending-node-termination", "effect": "NoSchedule"}]), 30),
        (condition("PreemptScheduled"), 30),
        (condition("VMEventScheduled", reason="TerminateScheduled"), 30),
        (
            condition(
                "VMEventScheduled", reason="VMEventScheduled", message="Preempt Scheduled: Mon 19:01:45"
            ),
            30,
        ),
        (
            condition(
                "VMEventScheduled", reason="VMEventScheduled", message="Freeze Scheduled: Mon 19:01:45"
            ),
            None,
        ),
        (condition("VMEventScheduled", "False", reason="NoVMEventScheduled"), None),
    ],
)
def test_a_providers_notice_is_read(raw: Any, seconds: int | None):
    found = report(raw)
    assert (found.interruption_seconds, found.is_closed) == (seconds, seconds is not None)


def test_nodes_that_are_not_for_work_are_left_out():
    control = node(taints=[{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}])
    assert inventory.node_reports([control], [], PROFILE) == ()
    assert inventory.node_reports([node()], [], replace(PROFILE, node_selector={"team": "ml"})) == ()


def test_a_pod_takes_what_runs_together_or_its_largest_step():
    def one(cpu: str, **more: str) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    steps = [one("1", restartPolicy="Always"), one("5"), one("2")]
    raw = {"spec": {"containers": [one("2"), one("1")], "initContainers": steps, "overhead": {"cpu": "250m"}}}
    assert inventory.requests(raw, "cpu") == Fraction(25, 4)


@pytest.mark.parametrize(
    ("text", "milli", "mib"),
    [("1", 1000, 1), ("1500m", 1500, 1), ("1Gi", 1024**3 * 1000, 1024), ("1e3", 10**6, 1)],
)
def test_quantities(text: str, milli: int, mib: int):
    assert (quantities.milli(text), quantities.mib(text)) == (milli, mib)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1GiB", "--1", "1e9999", None])
def test_what_is_no_quantity_is_refused(text: object):
    with pytest.raises(ValueError, match="is not a quantity"):
        quantities.amount(text)


@settings(max_examples=50)
@given(
    gpus=st.integers(0, 8),
    held=st.sets(st.integers(0, 7), max_size=4),
    taken=st.lists(st.integers(0, 4), max_size=4),
)
def test_no_device_is_counted_twice(gpus: int, held: set[int], taken: list[int]):
    """Of what the node has, exactly as many are foreign as others request, as far as we do not hold them."""
    ours = pod(len(held), devices=",".join(f"{index}:1000:1" for index in sorted(held))) if held else pod()
    found = report(node(gpus), ours, *(pod(count) for count in taken))
    free = set(range(gpus)) - held
    assert len(found.devices) == gpus
    assert set(foreign(found)) <= free
    assert len(foreign(found)) == min(len(free), sum(taken))
