"""The cost of following a cluster: API calls over a job's life, a cache of many pods, and logs on their way to a page.

`python -m bench.kubernetes_reading reflect KUBECONFIG SECONDS` is the process whose cost is measured.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from websockets.sync.client import connect

from bench.harness import Row
from bench.kubernetes_plant import NAMESPACE, Api, at_once, one_gpu_pod
from controlplane.engines.base import DeviceShare, EngineRefused, PodSpec, ProjectReport, pod_name
from controlplane.engines.kubernetes.cluster_cache import Watching
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.engines.kubernetes.names import INSTALLATION
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.credentials import access_from
from controlplane.kubernetes_api.reflector import Reflector
from tests import servers
from tests.kube import KubeCluster, KubeMissing, kube_cluster, node_cluster
from tests.waiting import wait_until
from tools.kube.parts import IMAGE

LIVES = 20
PODS, EVENTS_PER_SECOND, WATCH_SECONDS = 10_000, 500, 20
LINES, PAUSE_SECONDS = 300, 0.05
SPEAKER = f"""
import time
for _ in range({LINES}):
    print("T", time.time(), flush=True)
    time.sleep({PAUSE_SECONDS})
"""
SPOKEN = re.compile(r"T (\d+\.\d+)")


def job_calls() -> list[Row]:
    """Return a row with all API calls of the engine for a job on a real node: start, follow the log to its end,
    stop, forget, remove the working directory. [] without such a node."""
    work = "API calls of a job over its life, its log streams included"
    try:
        with node_cluster() as kube, tempfile.TemporaryDirectory(prefix="trainyard-bench-") as state:
            samples = _lives(KubernetesEngine(_settings(kube), Path(state)), state)
    except KubeMissing as reason:
        print(f"API calls are not counted: {reason}")
        return []
    return [Row(work, "<= 12", "calls", samples, limit=12)]


def _lives(engine: KubernetesEngine, state: str) -> list[float]:
    """Return the number of API calls of each of LIVES jobs, run one after another. `state`: the directory of
    their logs."""
    try:
        wait_until(lambda: len(engine.nodes()) == 2, timeout=30, what="the nodes")
        engine.sync_projects([ProjectReport("bench", 40_000, None, 40_000)])
        live(engine, state)
        samples = []
        for _ in range(LIVES):
            before = engine.client.calls.total()
            live(engine, state)
            samples.append(float(engine.client.calls.total() - before))
        return samples
    finally:
        engine.close()


def live(engine: KubernetesEngine, state: str) -> None:
    """Run one job from start to removal. `state`: the directory of its log."""
    job_id = str(uuid.uuid4())
    name, log = pod_name(job_id, 1, 0), f"{state}/logs/{job_id}/1-0.log"
    spec = PodSpec(
        name, job_id, "life", "bench", 1, 0, "node-a", IMAGE, ("sh", "-c", "echo hello; exec sleep 60"),
        devices=(DeviceShare(0, 1000, 32768),), log_path=log,
    )  # fmt: skip
    engine.copy_logs({name: log})
    engine.start(spec)
    _await_state(engine, name, "running")
    engine.stop(name, 1)
    _await_state(engine, name, "failed")
    wait_until(lambda: _is_forgotten(engine, name), timeout=60, what=f"{name} to be forgotten")
    engine.copy_logs({})
    engine.forget_job(job_id)


def _is_forgotten(engine: KubernetesEngine, name: str) -> bool:
    """Return whether the engine has forgotten the pod; False if it asks to try again later."""
    try:
        engine.forget(name)
    except EngineRefused as refusal:
        if not refusal.is_passing:
            raise
        return False
    return True


def reflector_costs() -> list[Row]:
    """Return rows with CPU and memory of a process that follows many pods while hundreds of them change every
    second."""
    with kube_cluster() as kube:
        api = Api(kube)
        api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        wait_until(lambda: _has_account(api), timeout=30, what="the namespace's service account")
        gate = {"schedulingGates": [{"name": "bench.trainyard.io/still"}]}
        names = [f"still-{number:05d}" for number in range(PODS)]
        labels = {"labels": {INSTALLATION: "trainyard"}}
        at_once(
            lambda name: api(
                "POST", f"/api/v1/namespaces/{NAMESPACE}/pods", one_gpu_pod(name, metadata=labels, **gate)
            ),
            names,
        )
        return _watch_costs(kube, api, names)


def follow_latencies(directory: Path) -> list[Row]:
    """Return a row with the time from a container's output to a page's websocket, on a real node; [] without one."""
    work = "log line, from the container to a websocket, p95"
    try:
        with node_cluster() as kube, servers.control_plane(directory / "logs-state") as running:
            samples = _heard(kube, running)
    except KubeMissing as reason:
        print(f"log latency is not measured: {reason}")
        return []
    return [Row(work, "<= 500 ms", "ms", samples, limit=500, quantile=0.95)]


def _watch_costs(kube: KubeCluster, api: Api, names: list[str]) -> list[Row]:
    command = [
        sys.executable,
        "-m",
        "bench.kubernetes_reading",
        "reflect",
        str(kube.kubeconfig),
        str(WATCH_SECONDS),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "listed"
        sent = _change(api, names, WATCH_SECONDS)
        told = json.loads(process.stdout.readline())
    note = f"{sent / WATCH_SECONDS:.0f} changes a second were made and {told['events']} heard of in {WATCH_SECONDS} s"
    return [
        Row(
            f"following {PODS:,} pods at {EVENTS_PER_SECOND} events/s, CPU", "<= 25 % of one core", "%",
            [told["cpu_percent"]], limit=25, note=note,
        ),
        Row("the same, RSS with the list", "<= 300 MB", "MB", [told["rss_mb"]], limit=300),
    ]  # fmt: skip


def _change(api: Api, names: list[str], seconds: float) -> int:
    """Patch the pods `names` in turn at EVENTS_PER_SECOND, for `seconds`. Return the number of patches."""
    began, sent = time.monotonic(), 0
    with ThreadPoolExecutor(8) as threads:
        while (elapsed := time.monotonic() - began) < seconds:
            due = int(elapsed * EVENTS_PER_SECOND)
            for number in range(sent, due):
                path = f"/api/v1/namespaces/{NAMESPACE}/pods/{names[number % len(names)]}"
                body = {"metadata": {"annotations": {"bench": str(number)}}}
                threads.submit(api, "PATCH", path, body, kind="application/merge-patch+json")
            sent = max(sent, due)
            time.sleep(0.02)
    return sent


def reflect(kubeconfig: str, seconds: float) -> None:
    """Follow all pods of a cluster as the engine does for `seconds`; print CPU, memory and the number of events
    as JSON. `kubeconfig`: a path. Exits with a message if the first list does not arrive."""
    credentials = {"kubeconfig": Path(kubeconfig).read_text(), "context": "trainyard"}
    heard = 0

    def hear(_changed: object = None) -> None:
        nonlocal heard
        heard += 1

    client = Client(access_from(credentials))
    # With this prefix, pods of no project count as ours.
    profile = ClusterProfile(namespace_prefix=NAMESPACE)
    trim = Watching(client, profile, hear)._trim_pod
    reflector = Reflector(client, "/api/v1/pods", keep=trim, on_change=hear)
    reflector.start()
    if not reflector.wait_synced(120):
        raise SystemExit("the list did not come")
    print("listed", flush=True)
    me, heard = psutil.Process(), 0
    before, began = sum(me.cpu_times()[:2]), time.monotonic()
    time.sleep(seconds)
    spent = sum(me.cpu_times()[:2]) - before
    cost = {"cpu_percent": 100 * spent / (time.monotonic() - began), "events": heard}
    print(json.dumps({**cost, "rss_mb": me.memory_info().rss / 1e6}), flush=True)
    reflector.close()


def _heard(kube: KubeCluster, running: servers.ControlPlane) -> list[float]:
    settings = {"default_image": "trainyard.test/python:1", "image_pull_policy": "Never"}
    body = {
        "name": "real",
        "engine": "kubernetes",
        "kubeconfig": kube.kubeconfig_text,
        "context": "trainyard",
    }
    _must(running, "/clusters", {**body, "settings": settings})
    wait_until(lambda: _nodes_of(running, "real"), timeout=60, what="the attached node")
    _must(running, "/projects", {"name": "speakers", "cluster": "real", "gpu_quota": 1})
    # eight GPUs: only the real node has as many
    job = {"name": "speaker", "kind": "train", "gpus": 8, "command": ["python3", "-c", SPEAKER]}
    job_id = _must(running, "/projects/speakers/jobs", job)["id"]
    samples: list[float] = []
    address = running.url.replace("http", "ws", 1) + "/ws/live"
    with connect(
        address, additional_headers={"Authorization": f"Bearer {running.token}"}, max_size=None
    ) as feed:
        feed.send(json.dumps({"op": "subscribe", "topic": f"job:{job_id}:logs:0", "since": None}))
        until = time.monotonic() + 60
        while len(samples) < LINES and time.monotonic() < until:
            message = json.loads(feed.recv(timeout=60))
            now = time.time()
            # Lines of the first state were written before the websocket was open, so their delay says
            # nothing.
            if message["type"] == "change":
                samples += [1000 * (now - float(at)) for at in SPOKEN.findall(json.dumps(message))]
    running.stop_jobs()
    return samples


def _must(running: servers.ControlPlane, path: str, body: dict[str, Any]) -> Any:
    status, answer = running.call("POST", f"/api/v1{path}", body)
    if status >= 300:
        raise RuntimeError(f"{path}: {status} {answer}")
    return answer


def _nodes_of(running: servers.ControlPlane, name: str) -> int:
    clusters = running.call("GET", "/api/v1/clusters")[1]["results"]
    return next(int(cluster["nodes_ready"]) for cluster in clusters if cluster["name"] == name)


def _settings(kube: KubeCluster) -> dict[str, Any]:
    credentials = {"kubeconfig": kube.kubeconfig_text, "context": "trainyard"}
    return {"credentials": credentials, "cluster": "bench", "default_image": "none"}


def _await_state(engine: KubernetesEngine, name: str, state: str) -> None:
    def stands() -> bool:
        return any(report.name == name and report.state == state for report in engine.pods())

    wait_until(stands, timeout=60, what=f"{name} to be {state}")


def _has_account(api: Api) -> bool:
    return bool(api("GET", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts")["items"])


if __name__ == "__main__":
    _, verb, path, seconds = sys.argv
    assert verb == "reflect"
    reflect(path, float(seconds))
