"""Objects from pods: the golden files, and what no file shows."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.engines import base
from controlplane.engines.base import DeviceShare, EngineRefused, SecretValue
from controlplane.engines.kubernetes import manifests, names
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.local.environment import expand
from tests.pure.kubernetes.goldens import (
    GOLDEN,
    GOLDENS,
    JOB,
    RESTRICTED,
    anchor,
    node,
    path_of,
    spec,
    text_of,
)


@pytest.mark.parametrize("name", GOLDENS)
def test_the_objects_are_as_in_the_golden_file(name: str):
    assert text_of(GOLDENS[name]) == path_of(name).read_text(), "see tests/pure/kubernetes/goldens.py"


def test_there_is_no_file_without_a_case():
    assert {path.stem for path in GOLDEN.iterdir()} == set(GOLDENS)


@pytest.mark.parametrize(
    ("milli", "parts", "wanted"),
    [(1000, 1, 1), (1000, 4, 4), (250, 4, 1), (251, 4, 2), (500, 3, 2), (1, 8, 1)],
)
def test_a_share_is_rounded_up_to_the_parts_of_the_node(milli: int, parts: int, wanted: int):
    share = spec(devices=(DeviceShare(0, milli, 1),))
    assert manifests.gpu_request(share, node(device_parts=parts)) == wanted


def test_a_share_of_a_whole_gpu_is_refused_with_what_to_install():
    with pytest.raises(EngineRefused, match="time-slicing or MPS") as refusal:
        manifests.gpu_request(spec(devices=(DeviceShare(0, 500, 1),)), node())
    assert refusal.value.code == base.CANNOT_SHARE


@pytest.mark.parametrize("devices", [(DeviceShare(0, 1000, 1),), (DeviceShare(0, 500, 1),)])
def test_mps_gives_one_part_to_a_pod(devices: tuple[DeviceShare, ...]):
    with pytest.raises(EngineRefused, match=r"at most 0\.25 of a GPU") as refusal:
        manifests.gpu_request(spec(devices=devices), node(device_parts=4, is_one_part_per_pod=True))
    assert refusal.value.code == base.CANNOT_SHARE


def test_without_a_node_shares_are_left_to_the_scheduler():
    devices = (DeviceShare(0, 1000, 1), DeviceShare(1, 1000, 1))
    assert manifests.gpu_request(spec(node="", devices=devices), None) == 2
    assert manifests.gpu_request(spec(node="", devices=(DeviceShare(0, 500, 1),)), None) == 0


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ("quick", "mirror/quick:1"),
        ("quick:9", "mirror/quick:1"),
        ("gcr.io/demo/quick:9", "gcr.io/demo/quick:9"),
        ("host:5000/other", "host:5000/other"),
        ("", "site/default:1"),
    ],
)
def test_an_image_is_an_alias_or_a_reference(image: str, reference: str):
    profile = ClusterProfile(images={"quick": "mirror/quick:1"}, default_image="site/default:1")
    assert manifests.image_of(spec(image=image), profile) == reference


def test_no_image_at_all_is_refused_with_the_list():
    with pytest.raises(EngineRefused, match="quick") as refusal:
        manifests.image_of(spec(image=""), ClusterProfile(images={"quick": "mirror/quick:1"}))
    assert refusal.value.code == base.IMAGE_UNKNOWN


def test_devices_are_read_as_they_are_written():
    devices = (DeviceShare(0, 1000, 32768), DeviceShare(7, 500, 16384))
    assert manifests.write_devices(devices) == "0:1000:32768,7:500:16384"
    assert manifests.read_devices(manifests.write_devices(devices)) == devices
    assert manifests.read_devices("") == ()
    with pytest.raises(ValueError, match="unpack"):
        manifests.read_devices("0:1000")


def test_the_names_are_names_for_the_longest_ids():
    longest = [names.service_name(JOB, 99999), names.claim_name(JOB, 99999), names.host_name(99999)]
    assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])", name) for name in longest)


def test_a_tombstone_has_the_labels_of_the_pod_in_whose_place_it_is():
    real = manifests.pod(spec(3), RESTRICTED, node(), anchor(spec(3), RESTRICTED))["metadata"]
    grave = manifests.tombstone(spec(3).name, "team-a", RESTRICTED)["metadata"]
    same = (names.INSTALLATION, names.PROJECT, names.JOB_ID, names.ATTEMPT, names.RANK)
    assert [grave["labels"][key] for key in same] == [real["labels"][key] for key in same]
    assert (grave["name"], grave["namespace"]) == (real["name"], real["namespace"])


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("name", sorted(manifests.GIVES_DEVICES))
def test_no_variable_gives_a_pod_more_devices_than_it_holds(name: str, gpus: int):
    greedy = spec(
        devices=(DeviceShare(0, 1000, 1),) * gpus,
        env={name: "all", "CUDA_VISIBLE_DEVICES": "0"},
        secret_env={name: SecretValue("aws", "key")},
    )
    profile = replace(RESTRICTED, env={name: "all"})
    made = manifests.pod(greedy, profile, node(), anchor(greedy, profile))["spec"]["containers"][0]["env"]
    found = {one["name"]: one.get("value") for one in made}
    wanted = "void" if gpus == 0 and name == "NVIDIA_VISIBLE_DEVICES" else None
    assert (found.get(name), name in found) == (wanted, wanted is not None)
    assert found["CUDA_VISIBLE_DEVICES"] == "0"  # it narrows what the container has, and no more


@pytest.mark.parametrize(
    ("gpu_resource", "wanted", "is_refused"),
    [
        ("huawei.com/Ascend910", "huawei.com/Ascend910", True),
        ("huawei.com/Ascend910", "huawei.com/Ascend910.shared", True),
        ("huawei.com/Ascend910", "huawei.com/Ascend910-4c", True),
        ("nvidia.com/gpu", "nvidia.com/mig-1g.10gb", True),
        ("huawei.com/Ascend910", "huawei.com/roce", False),
        ("nvidia.com/gpu", "habana.ai/gaudi", True),
        ("nvidia.com/gpu", "vpc.amazonaws.com/efa", False),
        ("nvidia.com/gpu", "hugepages-2Mi", False),
    ],
)
def test_what_no_quota_counts_is_given_by_the_list_and_gpus_never(
    gpu_resource: str, wanted: str, is_refused: bool
):
    asked = spec(extra_resources={wanted: "8"})
    allowed = (*ClusterProfile().extra_resources, "huawei.com/", "nvidia.com/")
    profile = replace(RESTRICTED, gpu_resource=gpu_resource, extra_resources=allowed)
    if not is_refused:
        manifests.pod(asked, profile, node(), anchor(asked, profile))
        return
    with pytest.raises(EngineRefused, match="extra_resources") as refusal:
        manifests.pod(asked, profile, node(), anchor(asked, profile))
    assert refusal.value.code == base.NOT_SUPPORTED
    assert wanted in refusal.value.message


@pytest.mark.parametrize("key", ["runai-gpu-group", "aadpodidbinding", "app", "kai.scheduler/queue"])
def test_a_jobs_labels_say_nothing_to_controllers(key: str):
    labelled = spec(labels={key: "x"})
    metadata = manifests.pod(labelled, RESTRICTED, node(), anchor(labelled, RESTRICTED))["metadata"]
    assert key not in metadata["labels"] | metadata["annotations"]
    told = metadata["labels"].get(f"user.trainyard.io/{key}") or metadata["annotations"][names.USER_LABELS]
    assert "x" in told


def test_spot_pools_are_for_preemptible_pods_when_the_cluster_chooses():
    profile = replace(RESTRICTED, spot_pools=("*",))
    for is_preemptible in (True, False):
        free = spec(node="", is_preemptible=is_preemptible)
        made = manifests.pod(free, profile, None, anchor(free, profile))["spec"]["tolerations"]
        assert any("spot" in toleration["key"] for toleration in made) is is_preemptible


@given(st.text(alphabet="$()AB x", max_size=24))
def test_a_cluster_reads_an_argument_as_the_local_engine_does(argument: str):
    env = {"A": "1", "AB": "22"}
    assert as_kubernetes_reads(manifests.escaped(argument), env) == expand(argument, env)


def as_kubernetes_reads(text: str, env: dict[str, str]) -> str:
    """Its rules, from the reference of `command` and `args`: `$(NAME)` is replaced when NAME is known, and of two
    dollars one stays, whatever follows."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else env.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replacement, text)
