"""The delay until a new membership is in an elastic pod of a Kubernetes cluster, beside an annotation that the kubelet
writes into a file (downward API) and a ConfigMap volume.

Each figure is a round trip on one real node, from the write until the pod's answer, which always comes over the exec.
Run: python -m bench.membership_kubernetes
"""

from __future__ import annotations

import json
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, Row, report
from controlplane.engines.base import ProjectReport
from controlplane.engines.kubernetes import elastic
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.engines.kubernetes.exec import PodProcess
from controlplane.engines.kubernetes.membership import Memberships
from tests.kube import MERGE, KubeCluster, KubeMissing, node_cluster
from tests.waiting import wait_until
from tools.kube.parts import IMAGE

NAMESPACE, NAME, SAMPLES, FEW = "bench-team", "member", 20, 3
# Limit on the wait for one answer; an update of a ConfigMap volume takes up to two minutes.
LONGEST_SECONDS = 300.0
KEY = "generation"
# Runs in the pod: answers with the text of each file whenever one of the three changes.
PROGRAM = f"""
import json, os, time
paths = ["{elastic.DIRECTORY}/membership.json", "/downward/{KEY}", "/config/{KEY}"]
seen = {{}}
while True:
    for path in paths:
        try:
            text = open(path).read()
        except OSError:
            continue
        if seen.get(path) != text:
            seen[path] = text
            fresh = "{elastic.DIRECTORY}/.status"
            open(fresh, "w").write(json.dumps(seen))
            os.replace(fresh, "{elastic.DIRECTORY}/status.json")
            try:
                bell = os.open("{elastic.DIRECTORY}/wakeup", os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                continue
            os.write(bell, b".")
            os.close(bell)
    time.sleep(0.002)
"""


def main() -> None:
    """Measure and report; without a Kubernetes cluster print the reason and remove the old results."""
    try:
        with node_cluster() as kube, tempfile.TemporaryDirectory() as directory:
            report("membership_kubernetes", measure(kube, Path(directory)))
    except KubeMissing as reason:
        print(f"Not measured, there is no Kubernetes here: {reason}")
        (RESULTS / "membership_kubernetes.json").unlink(missing_ok=True)


def measure(kube: KubeCluster, directory: Path) -> list[Row]:
    """Send texts to one pod of the cluster in each of the three ways; return the rows. `directory`: the engine's
    state."""
    settings = {
        "installation": "bench",
        "namespace_prefix": "bench-",
        "credentials": {"kubeconfig": kube.kubeconfig_text},
    }
    engine = KubernetesEngine(settings, directory)
    engine.sync_projects((ProjectReport("team", 1000, None, 1000),))
    here = f"/api/v1/namespaces/{NAMESPACE}"
    kube.must("POST", f"{here}/configmaps", {"metadata": {"name": NAME}, "data": {KEY: "0"}})
    kube.must("POST", f"{here}/pods", pod())
    kube.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "--timeout=60s", f"pod/{NAME}")

    def open_agent(name: str) -> PodProcess:
        return PodProcess(engine.client.access, NAMESPACE, name, elastic.agent_command())

    memberships = Memberships(open_agent, lambda: None)

    def heard(text: str) -> bool:
        return text in memberships.exchange(NAME, "", is_running=True).text

    def annotate(text: str) -> None:
        patch = {"metadata": {"annotations": {KEY: text}}}
        kube.must("PATCH", f"{here}/pods/{NAME}", patch, kind=MERGE)

    def configure(text: str) -> None:
        kube.must("PATCH", f"{here}/configmaps/{NAME}", {"data": {KEY: text}}, kind=MERGE)

    def deliver(text: str) -> None:
        memberships.exchange(NAME, json.dumps(text), is_running=True)

    deliver("the first")
    wait_until(lambda: heard("the first"), 30, "the agent")
    ours = [trip(deliver, heard) for _ in range(SAMPLES)]
    annotated = [trip(annotate, heard) for _ in range(SAMPLES)]
    configured = [trip(configure, heard) for _ in range(FEW)]
    memberships.close()
    engine.close()
    work = "a membership to a pod and its answer, Kubernetes"
    return [
        Row(work, "<= 100 ms", "ms", ours, limit=100, peer="annotation", peer_samples=annotated),
        Row(f"{work}, beside a ConfigMap", "-", "ms", ours, peer="ConfigMap volume", peer_samples=configured),
    ]


def trip(order: Callable[[str], None], heard: Callable[[str], bool]) -> float:
    """Return the milliseconds until the pod has answered a new text. `order` sends it, `heard` tests for the answer.
    Raises TimeoutError after LONGEST_SECONDS."""
    text, began = uuid.uuid4().hex, time.monotonic()
    order(text)
    while not heard(text):
        if time.monotonic() - began > LONGEST_SECONDS:
            raise TimeoutError(f"The pod has not answered for {LONGEST_SECONDS:g} s.")
        time.sleep(0.001)
    return 1000 * (time.monotonic() - began)


def pod() -> dict[str, Any]:
    """Return a pod that watches the three files and reports what changes in them."""
    downward = [{"path": KEY, "fieldRef": {"fieldPath": f"metadata.annotations['{KEY}']"}}]
    volumes: dict[str, dict[str, Any]] = {
        elastic.DIRECTORY: {"emptyDir": {}},
        "/downward": {"downwardAPI": {"items": downward}},
        "/config": {"configMap": {"name": NAME}},
    }
    named = {f"volume-{place}": path for place, path in enumerate(volumes)}
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["python3", "-I", "-c", PROGRAM],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in named.items()],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "metadata": {"name": NAME},
        "spec": {
            "nodeName": "node-a",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsUser": 1000,
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [{"name": name, **volumes[path]} for name, path in named.items()],
        },
    }


if __name__ == "__main__":
    main()
