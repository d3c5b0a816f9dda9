"""Parts of bench.kubernetes: a cluster of fake nodes, concurrent calls, and peers that place the same pods."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import urllib3

from tests.kube import GPU, KubeCluster
from tests.waiting import wait_until

CONNECTIONS = 8
NAMESPACE = "bench"
NAMES_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
POLL_SECONDS = 0.3
LOOKS = 10  # at least, in the time that was spent or is left at the rate so far: the error is no larger
KAI_PROGRAMS = {
    "scheduler": (
        "--schedule-period=1s",
        "--plugin-server-port=0",
        "--listen-address=:0",
        "--qps=500",
        "--burst=1000",
    ),
    "binder": ("--metrics-bind-address=0", "--health-probe-bind-address=0", "--qps=500", "--burst=1000"),
    "podgroupcontroller": (
        "--enable-podgroup-webhook=false",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
    ),
    "queuecontroller": (
        "--enable-webhook=false",
        "--metrics-listen-address=0",
        "--skip-controller-name-validation",
    ),
}


class Api:
    """Calls to the cluster's API over persistent connections; raises RuntimeError for an error status."""

    def __init__(self, kube: KubeCluster) -> None:
        self._url = kube.url
        self._pool = urllib3.PoolManager(
            maxsize=CONNECTIONS,
            ca_certs=str(kube.ca),
            headers={"Authorization": f"Bearer {kube.token}"},
        )

    def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        accept: str = "application/json",
    ) -> Any:
        headers = {**self._pool.headers, "Accept": accept, "Content-Type": kind}
        answer = self._pool.request(
            method, f"{self._url}{path}", headers=headers, body=None if body is None else json.dumps(body)
        )
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.data[:300]!r}")
        return json.loads(answer.data)


def at_once(work: Callable[[Any], object], items: Iterable[Any]) -> None:
    """Call `work` for every item, on CONNECTIONS threads."""
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        for _ in threads.map(work, items):
            pass


def add_nodes(api: Api, count: int, gpus: int) -> None:
    """Create `count` fake nodes with this number of GPUs each and wait until they are ready."""
    at_once(lambda number: api("POST", "/api/v1/nodes", _node(f"node-{number:04d}", gpus)), range(count))
    wait_until(lambda: _ready_nodes(api) >= count, timeout=120, what=f"{count} nodes")


def one_gpu_pod(name: str, **fields: Any) -> dict[str, Any]:
    """Return a minimal pod for the peers, of the same size as one of our jobs."""
    limits = {GPU: "1", "memory": "1Gi"}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"limits": limits, "requests": {**limits, "cpu": "1"}},
    }
    spec = {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 0}
    metadata = {"name": name, **fields.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**spec, **fields}}


def bound_pods(api: Api, selector: str = "") -> int:
    """Return the number of pods with the labels of `selector` that have a node. Requests only their metadata,
    which costs the server little."""
    query = f"?fieldSelector=spec.nodeName!=&labelSelector={selector}&resourceVersion=0"
    return len(api("GET", f"/api/v1/pods{query}", accept=NAMES_ONLY)["items"] or ())


def undecided(found: dict[str, Any]) -> Callable[[str], dict[str, Any]]:
    """Return a function that makes pods like `found`, one of ours, but without its node, affinity, owner and
    finalizer."""
    metadata = {key: found["metadata"][key] for key in ("labels", "annotations")}
    spec = {key: value for key, value in found["spec"].items() if key not in ("nodeName", "affinity")}
    return lambda name: {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "name": name},
        "spec": spec,
    }


def place_with_kube_scheduler(
    api: Api, count: int, pod: Callable[[str], dict[str, Any]] = one_gpu_pod
) -> float:
    """Create `count` pods, wait until all are bound, and remove them. `pod`: returns a pod for a name. Return pods
    per second: the floor, with kube-scheduler alone."""
    rate = _placed(api, count, lambda name: api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod(name)))
    _remove_pods(api)
    return rate


def place_with_kai(api: Api, count: int) -> float:
    """Create `count` pods with a PodGroup each, as KAI Scheduler needs, and wait until all are bound. Return pods
    per second."""

    def make(name: str) -> None:
        group = {
            "apiVersion": "scheduling.run.ai/v2alpha2",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"queue": "bench", "minMember": 1, "priorityClassName": "train"},
        }
        api("POST", f"/apis/scheduling.run.ai/v2alpha2/namespaces/{NAMESPACE}/podgroups", group)
        carried = {
            "labels": {"kai.scheduler/queue": "bench"},
            "annotations": {"pod-group-name": name, "kai.scheduler/skip-podgrouper": "true"},
        }
        pod = one_gpu_pod(name, metadata=carried, schedulerName="kai-scheduler")
        api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod)

    return _placed(api, count, make)


def _remove_pods(api: Api) -> None:
    """Delete all pods of the peers' namespace and wait until they are gone."""
    api("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods?gracePeriodSeconds=0")
    wait_until(
        lambda: not api("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?limit=1")["items"],
        timeout=300,
        what="the peers' pods to go",
    )


@contextmanager
def kai(kube: KubeCluster, api: Api, definitions: Path) -> Iterator[str]:
    """Context manager: run KAI Scheduler beside the cluster, with an unlimited queue. Yields "", or why it cannot
    be run. `definitions`: the directory of its CRDs."""
    home = os.environ.get("TRAINYARD_KAI_BIN", "")
    absence = "TRAINYARD_KAI_BIN is not set" if not home else ""
    absence = absence or ("" if definitions.is_dir() else f"its CRDs are not in {definitions}")
    if absence:
        yield absence
        return
    with ExitStack() as stack:
        _furnish_kai(kube, api, definitions)
        for name, flags in KAI_PROGRAMS.items():
            log = stack.enter_context((kube.state_dir / "logs" / f"kai-{name}.log").open("wb"))
            environment = {**os.environ, "KUBECONFIG": str(kube.kubeconfig)}
            process = subprocess.Popen([f"{home}/{name}", *flags], env=environment, stdout=log, stderr=log)
            stack.callback(_end, process)
        yield ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process; kill it after 30 s, since one of KAI's programs may ignore SIGTERM."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _furnish_kai(kube: KubeCluster, api: Api, definitions: Path) -> None:
    kube.apply(definitions)
    for name, value in {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}.items():
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        kube.apply(json.dumps({**body, "value": value}))
    for name in ("kai-scheduler", "kai-resource-reservation", "kai-scale-adjust"):
        kube.apply(json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
    boundless = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
    resources = {"gpu": boundless, "cpu": boundless, "memory": boundless}
    for name, parent in (("bench-root", None), ("bench", "bench-root")):
        spec = {"resources": resources, **({"parentQueue": parent} if parent else {})}
        queue = {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": spec,
        }
        kube.apply(json.dumps(queue))


def _placed(api: Api, count: int, make: Callable[[str], object]) -> float:
    before = bound_pods(api)
    began = time.perf_counter()
    at_once(make, (f"peer-{number:05d}" for number in range(count)))
    wait_bound(api, before + count)
    return count / (time.perf_counter() - began)


def wait_bound(api: Api, count: int, selector: str = "", timeout_seconds: float = 600) -> None:
    """Wait until `count` pods with the labels of `selector` are bound. Polls rarely at first and every 0.3 s near
    the end, since each poll makes the server list all pods. Raises RuntimeError after `timeout_seconds`."""
    began = time.monotonic()
    while (found := bound_pods(api, selector)) < count:
        spent = time.monotonic() - began
        if spent > timeout_seconds:
            raise RuntimeError(f"{found} of {count} pods are bound after {timeout_seconds:.0f} s")
        left = (count - found) * spent / found if found else 0.0
        time.sleep(max(POLL_SECONDS, min(left, spent) / LOOKS))


def _node(name: str, gpus: int) -> Mapping[str, Any]:
    quantities = {"cpu": "64", "memory": "512Gi", "pods": "250", GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
            "labels": {
                "kubernetes.io/hostname": name,
                f"{GPU}.product": "NVIDIA-TEST",
                f"{GPU}.memory": "40960",
            },
        },
        "status": {"capacity": quantities, "allocatable": quantities},
    }


def _ready_nodes(api: Api) -> int:
    return sum(
        any((one["type"], one["status"]) == ("Ready", "True") for one in node["status"].get("conditions", ()))
        and not node["spec"].get("taints")
        for node in api("GET", "/api/v1/nodes")["items"]
    )
