"""The four-team scenario on a real Kubernetes: `make up`, REST, kube-scheduler, and two fake nodes of eight GPUs.

Shares of a GPU are replicas of its device plugin there (time-slicing): ten each, so that 0.6 and 0.4 make one GPU.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from controlplane.engines.kubernetes import names
from tests.kube import GPU, KubeCluster, gpu_labels
from tests.scenarios.four_teams.rest import jobs, play, stop_all
from tests.scenarios.four_teams.script import NODES, TEAMS
from tests.servers import ControlPlane, control_plane
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
REPLICAS = 10


@dataclass(frozen=True, slots=True)
class Ours:
    """What of the cluster is this installation's: its nodes, and namespaces whose names begin with its name."""

    name: str
    selector: dict[str, str]


@pytest.fixture
def ours(kube: KubeCluster) -> Iterator[Ours]:
    name = f"four-{secrets.token_hex(3)}"
    ours = Ours(name, {"four-teams": name})
    sharing = {f"{GPU}.replicas": str(REPLICAS), f"{GPU}.sharing-strategy": "time-slicing"}
    for node, gpus in NODES.items():
        labels = {**gpu_labels(32768, "default"), **sharing, **ours.selector}
        kube.add_node(node, gpus=gpus * REPLICAS, labels=labels)
    yield ours
    for node in NODES:
        kube.must("DELETE", f"/api/v1/nodes/{node}")


@pytest.fixture
def plane(tmp_path, kube: KubeCluster, ours: Ours) -> Iterator[ControlPlane]:
    settings = {
        "default_image": "nobody/runs:it",
        "namespace_prefix": f"{ours.name}-",
        "node_selector": ours.selector,
    }
    variables = {
        "TRAINYARD_CLUSTERS": f"kubernetes:{kube.kubeconfig}",
        "TRAINYARD_KUBERNETES": json.dumps({"scheduler": "planner", "settings": settings}),
    }
    with control_plane(tmp_path / "state", variables) as plane:
        wait_until(lambda: plane.call("GET", "/api/v1/nodes")[1]["results"], 30, "the cluster to be attached")
        yield plane
        stop_all(plane)


def pods(kube: KubeCluster, ours: Ours) -> list[dict[str, Any]]:
    """Every pod in our namespaces."""
    found: list[dict[str, Any]] = kube.must("GET", "/api/v1/pods")["items"]
    return [pod for pod in found if pod["metadata"]["namespace"].startswith(ours.name)]


def name_of(pod: dict[str, Any]) -> str:
    """What users call a pod."""
    labels = pod["metadata"]["labels"]
    return "-".join(labels[label] for label in (names.JOB_NAME, names.ATTEMPT, names.RANK))


def replicas(pod: dict[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])


def test_twenty_steps_on_kubernetes(plane: ControlPlane, kube: KubeCluster, ours: Ours):
    play(plane, timeout=40)
    running = [pod for pod in pods(kube, ours) if pod["status"].get("phase") == "Running"]
    assert len(running) == 14
    assert {pod["metadata"]["namespace"] for pod in running} <= {f"{ours.name}-{team}" for team in TEAMS}
    shown = {(pod["node"], pod["name"]) for job in jobs(plane, "running") for pod in job["status"]["pods"]}
    assert {(pod["spec"]["nodeName"], name_of(pod)) for pod in running} == shown
    for node, gpus in NODES.items():
        on_node = [replicas(pod) for pod in running if pod["spec"]["nodeName"] == node]
        assert sum(on_node) <= gpus * REPLICAS
    assert {pod["spec"]["schedulerName"] for pod in running} == {"default-scheduler"}
