"""The four-team scenario where KAI Scheduler decides: `make up`, REST, KAI itself, and two fake nodes of eight GPUs.

With TRAINYARD_KAI_RECORD naming a file, what KAI answered after every step is kept there; test_kai_played.py plays it.
"""

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from controlplane.engines.kubernetes import kai, names
from tests.kube import KubeCluster, gpu_labels, kube_cluster
from tests.kubernetes.chart import engine_kubeconfig
from tests.kubernetes.kai_recorded import Everything, changed, trimmed
from tests.kubernetes.kai_rig import kai_running, why_no_definitions, why_no_programs
from tests.scenarios.four_teams.rest import jobs, play, stop_all
from tests.scenarios.four_teams.script import NODES, Step
from tests.servers import ControlPlane, control_plane
from tests.waiting import wait_until

WHY_NOT = why_no_programs() or why_no_definitions()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[KubeCluster]:
    with kube_cluster() as cluster:
        for name, gpus in NODES.items():
            cluster.add_node(name, gpus=gpus, labels=gpu_labels(32768, "default"))
        with kai_running(cluster, tmp_path):
            yield cluster


@pytest.fixture
def plane(tmp_path: Path, kube: KubeCluster) -> Iterator[ControlPlane]:
    settings = {"scheduler": "kai", "settings": {"default_image": "nobody/runs:it"}}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(engine_kubeconfig(kube, scheduler="kai"))  # with the chart's rights and no more
    variables = {
        "TRAINYARD_CLUSTERS": f"kubernetes:{kubeconfig}",
        "TRAINYARD_KUBERNETES": json.dumps(settings),
    }
    with control_plane(tmp_path / "state", variables) as plane:
        wait_until(lambda: plane.call("GET", "/api/v1/nodes")[1]["results"], 30, "the cluster to be attached")
        yield plane
        stop_all(plane)


def everything(kube: KubeCluster) -> Everything:
    """What KAI has to say, as the API server has it."""
    paths = {
        "pods": "/api/v1/pods?labelSelector=trainyard.io/job-id",
        "groups": names.list_path("PodGroup"),
        "events": f"/api/v1/events?fieldSelector={kai.EVICTION_EVENTS}",
    }
    return {kind: [trimmed(item) for item in kube.must("GET", path)["items"]] for kind, path in paths.items()}


def test_twenty_steps_decided_by_kai(plane: ControlPlane, kube: KubeCluster) -> None:
    seen: list[Everything] = [{}]

    def is_settled(step: Step) -> bool:
        """KAI has said of every waiting job why it waits; and what it said before is kept."""
        if len(seen) < step.seq:
            seen.append(everything(kube))
        return all("cluster_says" in job["status"]["reason"]["details"] for job in jobs(plane, "queued"))

    play(plane, 40, is_settled)
    seen.append(everything(kube))
    if "TRAINYARD_KAI_RECORD" in os.environ:
        steps = [changed(now, before) for before, now in pairwise(seen)]
        lines = ",\n".join(json.dumps(step, sort_keys=True) for step in steps)
        Path(os.environ["TRAINYARD_KAI_RECORD"]).write_text(f"[\n{lines}\n]\n")
    running = [pod for pod in seen[-1]["pods"] if pod["status"].get("phase") == "Running"]
    assert len(running) == 14
    shown = {(pod["node"], pod["name"]) for job in jobs(plane, "running") for pod in job["status"]["pods"]}
    assert {(pod["spec"]["nodeName"], called(pod)) for pod in running} == shown
    assert {job["status"]["reason"]["code"] for job in jobs(plane, "queued")} == {"over_fair_share"}


def called(pod: dict[str, Any]) -> str:
    """A pod's name for people: job, attempt, rank."""
    labels = pod["metadata"]["labels"]
    return "-".join(labels[label] for label in (names.JOB_NAME, names.ATTEMPT, names.RANK))
