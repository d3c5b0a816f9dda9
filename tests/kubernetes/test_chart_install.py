"""The chart installed by helm on a real node: migrations as its hook, web and workers as pods, a job.

The image is this machine's own (tools/kube/image.py), since there is no registry; the rest is as a site has it:
a namespace of the standard `restricted`, a PostgreSQL and a Redis elsewhere, and the cluster attached from inside.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from controlplane.engines.kubernetes.tenancy import ROLE_NAMES
from tests import servers
from tests.kube import KubeCluster
from tests.kubernetes.chart import CHART, NAME, RELEASE, Raw, helm
from tests.waiting import patience, wait_until
from tools.kube.parts import IMAGE

NAMESPACE = "yard-system"
TOKEN = secrets.token_urlsafe(32)
REAL_NODE = {"kubernetes.io/hostname": "node-a"}
REPOSITORY, _, TAG = IMAGE.rpartition(":")


@pytest.fixture(scope="module")
def installed(kube_node: KubeCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    """The cluster with the release in it."""
    directory = tmp_path_factory.mktemp("install")
    with ExitStack() as stack:
        try:
            urls = {
                "database-url": stack.enter_context(servers.postgres()),
                "redis-url": stack.enter_context(servers.redis()),
            }
        except FileNotFoundError as missing:
            pytest.skip(str(missing))
        for key, url in urls.items():
            port = urlsplit(url).port or 0
            stack.enter_context(forwarded(kube_node.host_address, port))
            urls[key] = url.replace("127.0.0.1", kube_node.host_address)
        prepare_namespace(kube_node, urls)
        (directory / "values.yaml").write_text(yaml.safe_dump(values(urls)))
        words = [f"--namespace={NAMESPACE}", f"--kubeconfig={kube_node.kubeconfig}"]
        try:
            helm("install", RELEASE, str(CHART), *words, f"--values={directory}/values.yaml", "--wait")
            yield kube_node
        finally:
            keep_words(kube_node, directory)
            helm("uninstall", RELEASE, *words, "--wait", "--ignore-not-found")


def prepare_namespace(kube: KubeCluster, urls: dict[str, str]) -> None:
    """What the guide has an admin make: the namespace with its standard, and the secret."""
    # Made by the projects of tests before; helm takes over no objects of others.
    kube.kubectl("delete", "clusterrole", "--ignore-not-found", *ROLE_NAMES)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kube.must("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    keys = {**urls, "secret-key": secrets.token_urlsafe(48), "bootstrap-token": TOKEN}
    data = {key: base64.b64encode(value.encode()).decode() for key, value in keys.items()}
    secret = {"metadata": {"name": "trainyard"}, "data": data}
    kube.must("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)


def values(urls: dict[str, str]) -> Raw:
    ports = [443, *(urlsplit(url).port for url in urls.values())]
    small = {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}}
    return {
        "publicUrl": "http://yard.test",
        "allowPlainHttp": True,
        "image": {"repository": REPOSITORY, "tag": TAG, "pullPolicy": "Never"},
        "web": {"replicas": 1, **small},
        "worker": small,
        "tasks": small,
        "migrate": small,
        "nodeSelector": REAL_NODE,
        "logs": {"storageClass": "fast", "accessMode": "ReadWriteOnce", "size": "1Gi"},
        "networkPolicy": {"egressPorts": ports},
        "cluster": {
            "settings": {"default_image": IMAGE, "image_pull_policy": "Never", "node_selector": REAL_NODE}
        },
    }


@contextmanager
def forwarded(address: str, port: int) -> Iterator[None]:
    """Let pods reach what listens on this machine's loopback, until the end."""
    loops: list[asyncio.AbstractEventLoop] = []
    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_forward(address, port, ended, loops)))
    thread.start()
    wait_until(lambda: loops, what="the forwarder's start")
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(patience(10))


async def _forward(
    address: str, port: int, ended: asyncio.Event, loops: list[asyncio.AbstractEventLoop]
) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, to_there = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_pour(reader, to_there), _pour(there, writer))
        finally:  # also of who is cut off before there was a connection
            writer.close()

    server = await asyncio.start_server(connected, address, port)
    loops.append(asyncio.get_running_loop())
    await ended.wait()
    server.close()


async def _pour(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Until either side is gone, and with it the other."""
    try:
        with suppress(ConnectionError):
            while chunk := await source.read(65536):
                sink.write(chunk)
                await sink.drain()
    finally:  # at the forwarder's end the streams are still open
        sink.close()


def keep_words(kube: KubeCluster, directory: Path) -> None:
    """What the pods said, for whoever looks at a failure: pytest keeps the directory."""
    pods = kube.must("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    for name in (pod["metadata"]["name"] for pod in pods):
        said = kube.kubectl("-n", NAMESPACE, "logs", name, check=False)
        (directory / f"{name}.log").write_text(said)
    (directory / "events.txt").write_text(kube.kubectl("get", "events", "-A", check=False))


def web_address(kube: KubeCluster) -> str:
    query = "labelSelector=app.kubernetes.io/component=web"
    found = kube.must("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?{query}")["items"]
    (pod,) = (one for one in found if "deletionTimestamp" not in one["metadata"])
    return f"http://{pod['status']['podIP']}:8000"


def call(kube: KubeCluster, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One call of the API in the cluster, as the admin of the bootstrap token."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", "Host": "yard.test"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{web_address(kube)}{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=patience(10)) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")


@pytest.mark.slow
def test_installed_in_the_cluster_it_attaches_it_and_runs_a_job(installed: KubeCluster) -> None:
    wait_until(lambda: call(installed, "GET", "/readyz")[0] == 200, 60, "the loop's first cycle")
    (cluster,) = wait_until(lambda: attached(installed), 60, "the look at the cluster")
    assert cluster["name"] == "kubernetes"
    project = {"name": "team-a", "gpu_quota": 2, "cluster": "kubernetes"}
    status, answer = call(installed, "POST", "/api/v1/projects", project)
    assert status == 201, answer
    body = {"name": "hello", "kind": "train", "gpus": 1, "command": ["sh", "-c", "echo from $HOSTNAME"]}
    status, job = call(installed, "POST", "/api/v1/projects/team-a/jobs", body)
    assert status == 201, job
    path = f"/api/v1/jobs/{job['id']}"
    wait_until(lambda: state_of(installed, path) == "succeeded", 60, "the job's success")
    lines = wait_until(lambda: call(installed, "GET", f"{path}/logs")[1]["lines"], 20, "its log")
    assert lines[0]["text"].startswith("from ")
    log = installed.kubectl("-n", NAMESPACE, "logs", f"job/{NAME}-migrate")
    assert '"first_admin": "http://yard.test/setup/' in log  # where NOTES.txt sends the first admin


@pytest.mark.slow
def test_an_upgrade_migrates_first_and_takes_the_chart_s_settings_over(installed: KubeCluster) -> None:
    before = installed.must("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{NAME}-migrate")
    words = [f"--namespace={NAMESPACE}", f"--kubeconfig={installed.kubeconfig}", "--reuse-values", "--wait"]
    helm("upgrade", RELEASE, str(CHART), *words, "--set=cluster.settings.work_size=5Gi")
    after = installed.must("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{NAME}-migrate")
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert after["status"]["succeeded"] == 1
    wait_until(lambda: settings_of(installed).get("work_size") == "5Gi", 60, "the look at the new settings")
    assert settings_of(installed)["node_selector"] == REAL_NODE


def settings_of(kube: KubeCluster) -> Raw:
    """The cluster's settings, once they are in effect."""
    (cluster,) = attached(kube) or [{"settings": {}}]
    return cluster["settings"]


def attached(kube: KubeCluster) -> list[Raw]:
    status, answer = call(kube, "GET", "/api/v1/clusters")
    assert status == 200, answer
    assert [one for one in answer["results"] if one["status"]["state"] != "refused"], answer
    return [one for one in answer["results"] if one["status"]["state"] == "attached"]


def state_of(kube: KubeCluster, path: str) -> str:
    state: str = call(kube, "GET", path)[1]["status"]["state"]
    assert state not in {"failed", "stopped"}
    return state
