"""What the MPI operator is given, and how the pods that it makes become ours."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from controlplane.engines.base import CANNOT_SHARE, DeviceShare, EngineRefused
from controlplane.engines.kubernetes import manifests, mpijobs, names, reports
from controlplane.engines.kubernetes.config import ClusterProfile, profile_from
from tests.pure.kubernetes.goldens import anchor, node, spec, text_of
from tests.pure.kubernetes.mpi_goldens import FOLDER, GOLDENS, LAUNCHER, PROFILE, job, path_of

HOST = spec(1, kind="mpi", world_size=2, min_pods=2, role="worker", is_host=True, node="dgx2")


@pytest.mark.parametrize("name", GOLDENS)
def test_the_objects_are_as_in_the_golden_file(name: str):
    assert text_of(GOLDENS[name]) == path_of(name).read_text(), "see tests/pure/kubernetes/mpi_goldens.py"


def test_there_is_no_file_without_a_case():
    assert {path.stem for path in FOLDER.iterdir()} == set(GOLDENS)


def made_by_the_operator() -> dict[str, Any]:
    """The pod of a host as it makes it."""
    template = copy.deepcopy(job(LAUNCHER, PROFILE)[1]["spec"]["mpiReplicaSpecs"]["Worker"]["template"])
    name = mpijobs.mpi_job_name(LAUNCHER)
    template["metadata"] |= {"name": f"{name}-worker-0", "namespace": "yard-team-a", "resourceVersion": "7"}
    template["metadata"]["labels"] |= {names.MPI_JOB: name, names.MPI_ROLE: "worker"}
    return template


def wanted() -> dict[str, Any]:
    return manifests.pod(HOST, PROFILE, replace(node(), name="dgx2"), anchor(HOST, PROFILE))


def merged(found: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """As the API server merges."""
    result = dict(found)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key) or {}, value) if isinstance(value, dict) else value
    return result


def test_a_pod_of_the_operator_is_nobodys_until_it_is_placed_and_then_ours():
    found = made_by_the_operator()
    assert names.is_unplaced(found)
    assert names.operated_by(found) == names.operated(mpijobs.mpi_job_name(HOST), 1)
    placed = merged(found, mpijobs.placement(found, wanted(), PROFILE.gpu_resource))
    assert not names.is_unplaced(placed)
    assert names.pod_name(placed) == HOST.name
    assert "schedulingGates" not in placed["spec"]
    assert reports.pinned_node(placed) == "dgx2"
    assert reports.devices_of(placed) == HOST.devices
    assert placed["metadata"]["finalizers"] == [names.FINALIZER]
    assert placed["metadata"]["labels"] == wanted()["metadata"]["labels"] | found["metadata"]["labels"] | {
        names.POD: HOST.name
    }


def test_a_host_finds_the_words_that_are_its_own():
    found = made_by_the_operator()
    placed = merged(found, mpijobs.placement(found, wanted(), PROFILE.gpu_resource))
    told = {}
    for each in placed["spec"]["containers"][0]["env"]:
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        key = path.partition("['")[2].removesuffix("']")
        told[each["name"]] = placed["metadata"]["annotations"][key] if key else each.get("value")
    expected = {each["name"]: each.get("value") for each in wanted()["spec"]["containers"][0]["env"]}
    assert told == {**expected, "MASTER_ADDR": mpijobs.hosts(HOST)[0]}


def test_gates_and_finalizers_of_others_stay():
    found = made_by_the_operator()
    found["spec"]["schedulingGates"].append({"name": "kueue.x-k8s.io/admission"})
    found["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    patch = mpijobs.placement(found, wanted(), PROFILE.gpu_resource)
    assert patch["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]
    assert patch["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking", names.FINALIZER]


def test_nodes_that_divide_their_gpus_differently_are_refused():
    other = manifests.pod(HOST, PROFILE, node(device_parts=4), anchor(HOST, PROFILE))
    with pytest.raises(EngineRefused, match="one node pool") as refusal:
        mpijobs.placement(made_by_the_operator(), other, PROFILE.gpu_resource)
    assert refusal.value.code == CANNOT_SHARE


def test_a_sidecar_of_others_in_the_first_place_changes_no_number_of_gpus():
    found = made_by_the_operator()
    found["spec"]["containers"].insert(0, {"name": "istio-proxy", "image": "proxy"})
    patch = mpijobs.placement(found, wanted(), PROFILE.gpu_resource)
    assert patch["metadata"]["labels"][names.POD] == HOST.name


@pytest.mark.parametrize(
    ("settings", "is_given"),
    [
        ({}, False),
        ({"has_mpi_operator": True}, True),
        ({"has_mpi_operator": True, "work_storage_class": "fast"}, False),
        ({"has_mpi_operator": True, "mpi_operator": False}, False),
        ({"mpi_operator": True, "work_storage_class": "fast"}, True),
    ],
)
def test_who_launches_is_set_or_found(settings: dict[str, Any], is_given: bool):
    assert mpijobs.suits(LAUNCHER, profile_from(settings)) == is_given


def test_single_pods_and_shares_are_launched_by_us():
    assert not mpijobs.suits(spec(), PROFILE)
    assert not mpijobs.suits(replace(LAUNCHER, world_size=1, launches=LAUNCHER.launches[:1]), PROFILE)
    assert not mpijobs.suits(replace(LAUNCHER, devices=(DeviceShare(0, 500, 1),)), PROFILE)
    assert not mpijobs.suits(replace(HOST, has_equal_mounts=False), ClusterProfile(has_mpi_operator=True))
    assert mpijobs.suits(HOST, ClusterProfile(has_mpi_operator=True))
