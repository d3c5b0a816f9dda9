"""The four-team scenario on a real Kubernetes: `make up`, REST, kube-scheduler, and two fake nodes of eight GPUs.

Shares of a GPU are replicas of its device plugin there (time-slicing): ten each, so that 0.6 and 0.4 make one GPU.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.engines.kubernetes import names
from tests.kube import GPU, KubeCluster, KubeMissing, gpu_labels, kube_cluster
from tests.scenarios.four_teams.rest import jobs, play, stop_all
from tests.scenarios.four_teams.script import NODES, TEAMS
from tests.servers import ControlPlane, control_plane
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
REPLICAS = 10


@pytest.fixture
def kube() -> Iterator[KubeCluster]:
    sharing = {f"{GPU}.replicas": str(REPLICAS), f"{GPU}.sharing-strategy": "time-slicing"}
    try:
        with kube_cluster() as cluster:
            for name, gpus in NODES.items():
                cluster.add_node(
                    name, gpus=gpus * REPLICAS, labels={**gpu_labels(32768, "default"), **sharing}
                )
            yield cluster
    except KubeMissing as reason:
        pytest.skip(f"no Kubernetes: {reason}")


@pytest.fixture
def plane(tmp_path, kube) -> Iterator[ControlPlane]:
    settings = {"scheduler": "planner", "settings": {"default_image": "nobody/runs:it"}}
    variables = {
        "TRAINYARD_CLUSTERS": f"kubernetes:{kube.kubeconfig}",
        "TRAINYARD_KUBERNETES": json.dumps(settings),
    }
    with control_plane(tmp_path / "state", variables) as plane:
        wait_until(lambda: plane.call("GET", "/api/v1/nodes")[1]["results"], 30, "the cluster to be attached")
        yield plane
        stop_all(plane)


def pods(kube: KubeCluster) -> list[dict[str, Any]]:
    """Every pod of the cluster; nobody else has any."""
    found: list[dict[str, Any]] = kube.must("GET", "/api/v1/pods")["items"]
    return found


def name_of(pod: dict[str, Any]) -> str:
    """What users call a pod."""
    labels = pod["metadata"]["labels"]
    return "-".join(labels[label] for label in (names.JOB_NAME, names.ATTEMPT, names.RANK))


def replicas(pod: dict[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"][GPU])


def test_twenty_steps_on_kubernetes(plane, kube):
    play(plane, timeout=40)
    running = [pod for pod in pods(kube) if pod["status"].get("phase") == "Running"]
    assert len(running) == 14
    assert {pod["metadata"]["namespace"] for pod in running} <= {f"yard-{team}" for team in TEAMS}
    shown = {(pod["node"], pod["name"]) for job in jobs(plane, "running") for pod in job["status"]["pods"]}
    assert {(pod["spec"]["nodeName"], name_of(pod)) for pod in running} == shown
    for node, gpus in NODES.items():
        on_node = [replicas(pod) for pod in running if pod["spec"]["nodeName"] == node]
        assert sum(on_node) <= gpus * REPLICAS
    assert {pod["spec"]["schedulerName"] for pod in running} == {"default-scheduler"}
