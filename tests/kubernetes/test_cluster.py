"""The cluster that the other suites stand on is a real one, and leaves nothing."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kube import MERGE, KubeCluster
from tests.servers import CHECKOUT
from tests.waiting import patience, wait_until
from tools.kube import build, cell, sweep
from tools.kube.cell import CannotIsolate, Network
from tools.kube.parts import IMAGE

FINALIZER = "trainyard.io/report"


@pytest.fixture
def pods(kube: KubeCluster) -> str:
    """The pods' path in a namespace of the test's own, which ends with the cluster."""
    name = f"test-{secrets.token_hex(4)}"
    kube.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_until(lambda: kube.api("GET", account)[0] == 200, what="the namespace's account")
    return f"/api/v1/namespaces/{name}/pods"


def pod(name: str, *command: str, node: str = "node-a", gpus: int = 1, **metadata: Any) -> dict[str, Any]:
    container = {"name": "main", "image": IMAGE, "command": list(command) or ["sleep", "1000"]}
    container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    spec |= {"nodeSelector": {"kubernetes.io/hostname": node}, "shareProcessNamespace": True}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def phase(kube: KubeCluster, path: str) -> str:
    return str(kube.must("GET", path)["status"].get("phase"))


# Fake nodes


def test_a_fake_pod_is_scheduled_runs_and_ends_with_the_code_it_is_told(kube, pods):
    kube.add_node("ends", gpus=2, taints=[{"key": "spot", "effect": "PreferNoSchedule"}])
    kube.must("POST", pods, pod("p", node="ends"))
    wait_until(lambda: phase(kube, f"{pods}/p") == "Running", what="the pod to run")
    kube.end_pod(pods.split("/")[4], "p", 3)
    assert phase(kube, f"{pods}/p") == "Failed"
    assert '"exitCode": 3' in json.dumps(kube.must("GET", f"{pods}/p"))


def test_a_deleted_fake_pod_reports_its_end_and_waits_for_its_finalizer(kube, pods):
    kube.add_node("holds", gpus=2)
    kube.must("POST", pods, pod("p", node="holds", finalizers=[FINALIZER]))
    wait_until(lambda: phase(kube, f"{pods}/p") == "Running", what="the pod to run")
    kube.must("DELETE", f"{pods}/p")
    wait_until(lambda: phase(kube, f"{pods}/p") == "Failed", what="its end")
    (status,) = kube.must("GET", f"{pods}/p")["status"]["containerStatuses"]
    assert status["state"]["terminated"]["exitCode"] == 143
    assert kube.must("GET", f"{pods}/p")["metadata"]["finalizers"] == [FINALIZER]
    kube.must("PATCH", f"{pods}/p", {"metadata": {"finalizers": None}}, kind=MERGE)
    wait_until(lambda: kube.api("GET", f"{pods}/p")[0] == 404, what="the object to go")


def test_a_pod_that_fits_nowhere_stays_pending_with_the_schedulers_words(kube, pods):
    kube.add_node("full", gpus=0)
    kube.must("POST", pods, pod("p", node="full"))

    def words() -> str:
        conditions = kube.must("GET", f"{pods}/p")["status"].get("conditions", ())
        return " ".join(condition.get("message", "") for condition in conditions)

    wait_until(lambda: "Insufficient nvidia.com/gpu" in words(), what="the scheduler's refusal")


def test_an_account_may_do_what_its_roles_say(kube, pods):
    namespace = pods.split("/")[4]
    token = kube.service_account_token(namespace, "reader")
    assert kube.api("GET", pods, token=token)[0] == 403
    whom = f"--serviceaccount={namespace}:reader"
    kube.kubectl("-n", namespace, "create", "rolebinding", "r", "--clusterrole=view", whom)
    wait_until(lambda: kube.api("GET", pods, token=token)[0] == 200, what="the binding to count")
    assert kube.api("POST", pods, pod("p"), token=token)[0] == 403


# The real node


def run(kube: KubeCluster, name: str, *command: str) -> tuple[str, int]:
    """What a container prints, and its exit code."""
    path = f"/api/v1/namespaces/default/pods/{name}"
    kube.must("POST", path.rpartition("/")[0], pod(name, *command))
    wait_until(lambda: phase(kube, path) in {"Succeeded", "Failed"}, 60, f"the end of {name}")
    (status,) = kube.must("GET", path)["status"]["containerStatuses"]
    return kube.kubectl("logs", name), status["state"]["terminated"]["exitCode"]


def test_a_container_really_runs_and_its_code_and_log_come_back(kube_node):
    script = "echo out; echo err >&2; cat /proc/1/cmdline | tr '\\0' ' '; exit 7"
    printed, code = run(kube_node, "really", "sh", "-c", script)
    assert code == 7
    assert {"out", "err"} <= set(printed.split("\n"))
    assert "busybox sleep infinity" in printed, "the first process is the sandbox's: namespaces of its own"


def test_a_container_has_torch_and_our_workloads(kube_node):
    script = "import torch, workloads.quickstart.training; print(torch.ones(2).sum().item())"
    assert run(kube_node, "torch", "python", "-c", script) == ("2.0\n", 0)


def test_commands_run_inside_a_container_and_names_are_resolved(kube_node):
    path = "/api/v1/namespaces/default/pods/inside"
    kube_node.must("POST", path.rpartition("/")[0], pod("inside"))
    wait_until(lambda: phase(kube_node, path) == "Running", 60, "the pod to run")
    command = "echo $((6*7)); hostname; getent hosts kubernetes.default"
    printed = kube_node.kubectl("exec", "inside", "--", "bash", "-c", command).split()
    assert printed[:3] == ["42", "inside", cell.SERVICE_ADDRESS]
    kube_node.must("DELETE", path)
    wait_until(lambda: kube_node.api("GET", path)[0] == 404, 30, "the pod's end")


def test_the_nodes_are_as_the_contract_suite_wants_them(kube_node):
    nodes = {node["metadata"]["name"]: node for node in kube_node.must("GET", "/api/v1/nodes")["items"]}
    seen = {
        name: (
            node["status"]["allocatable"]["nvidia.com/gpu"],
            node["metadata"]["labels"]["trainyard.io/pool"],
        )
        for name, node in nodes.items()
    }
    assert seen == {"node-a": ("8", "train"), "node-b": ("2", "default")}


# What is left behind


def link_number(cluster: KubeCluster) -> str:
    """The kernel's number of the cluster's network link, "" without one."""
    path = Path("/sys/class/net") / cluster.network.link / "ifindex"
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def traces(cluster: KubeCluster, link: str) -> list[str]:
    """All that this machine shows of a cluster. `link`: the number of its network link; once the cluster is gone,
    another suite's cluster may get a link of the same name."""
    inside = {str(process.pid) for process in _in_cell(cluster)}
    mounts = [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if str(cluster.state_dir) in line
    ]
    groups = [str(path) for path in cell.cgroup_dirs(cell.cgroup_of(cluster.state_dir)) if path.exists()]
    links = [cluster.network.link] if link and link_number(cluster) == link else []
    directories = [str(path) for path in [cluster.state_dir] if path.exists()]
    return [*inside, *mounts, *groups, *links, *directories]


def _in_cell(cluster: KubeCluster) -> list[psutil.Process]:
    """Processes with the cluster's name in their words; those of its containers are found by its pods' programs."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(cluster.state_dir) in word for word in process.info["cmdline"] or ()):
            found.append(process)
    return found


def test_make_kube_stays_and_make_kube_down_leaves_nothing(kube_node, tmp_path):
    """Beside another one with a real node."""
    words = make_kube(tmp_path, "up", "--nodes", "1", "--gpus", "2")
    state_dir = tmp_path / "kube"
    network = Network(**json.loads((state_dir / "cluster.json").read_text()))
    process = psutil.Process(int((state_dir / "lock").read_text()))
    cluster = KubeCluster(state_dir, network, token_in(state_dir), {}, process)
    try:
        assert f"KUBECONFIG={state_dir}/kubeconfig" in words
        nodes = {
            node["metadata"]["name"]: node["status"] for node in cluster.must("GET", "/api/v1/nodes")["items"]
        }
        assert {name: status["allocatable"]["nvidia.com/gpu"] for name, status in nodes.items()} == {
            "node-0": "2",
            "node-1": "2",
        }
        assert "running already" in make_kube(tmp_path, "up")
        marker = f"{network.slot}{os.getpid()}"
        cluster.must(
            "POST", "/api/v1/namespaces/default/pods", pod("p", "sleep", marker, node="node-0", gpus=0)
        )
        wait_until(lambda: _sleepers(marker), 60, "the container's process")
        link = link_number(cluster)
        assert link
        assert traces(cluster, link)
    finally:
        began = time.monotonic()
        words = make_kube(tmp_path, "down")
    assert time.monotonic() - began < patience(10)
    assert "gone" in words
    assert not _sleepers(marker)
    assert not traces(cluster, link)
    assert "No cluster is running" in make_kube(tmp_path, "down")


def make_kube(directory: Path, *words: str) -> str:
    """What `make kube` and `make kube-down` print."""
    command = [sys.executable, "-m", "tools.kube", *words]
    environment = {**os.environ, "TRAINYARD_STATE_DIR": str(directory)}
    result = subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True
    )
    return result.stdout


def token_in(state_dir: Path) -> str:
    return str(json.loads((state_dir / "kubeconfig").read_text())["users"][0]["user"]["token"])


def _sleepers(marker: str) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.info["cmdline"] == ["sleep", marker]
    ]


STARTER = """
import json, sys, time
from tests.kube import kube_cluster
with kube_cluster(node="orphan") as cluster:
    cluster.must("POST", "/api/v1/namespaces/default/pods", json.loads(sys.argv[1]))
    print(cluster.state_dir, cluster.process.pid, cluster.network.slot, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def orphan(
    kube: KubeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[subprocess.Popen[str], KubeCluster, str]]:
    """A test run of somebody else with a cluster of its own, in which a container runs `sleep` with this number.

    Its temporary directory is ours alone, so that no cluster that starts beside us sweeps it.
    """
    marker = f"9{secrets.randbelow(10**6)}"
    body = json.dumps(pod("p", "sleep", marker, node="orphan", gpus=0))
    command = [sys.executable, "-c", STARTER, body]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout
        state_dir, pid, slot = starter.stdout.readline().split()
        seen = KubeCluster(Path(state_dir), Network(int(slot)), kube.token, {}, starter)
        wait_until(lambda: _sleepers(marker), 60, "the container's process")
        try:
            yield starter, seen, marker
        finally:
            starter.kill()
            wait_until(lambda: not psutil.pid_exists(int(pid)), 15, "its supervisor's end")


def test_a_killed_test_run_leaves_nothing(orphan):
    starter, cluster, marker = orphan
    link = link_number(cluster)
    assert traces(cluster, link)
    starter.kill()
    wait_until(lambda: not traces(cluster, link), 15, "the orphaned cluster's end")
    assert not _sleepers(marker)


def test_what_a_killed_supervisor_leaves_is_swept_by_the_next_start(orphan):
    _, cluster, marker = orphan
    link = link_number(cluster)
    supervisor = int((cluster.state_dir / "lock").read_text())
    assert not sweep.is_dead(cluster.state_dir)
    os.kill(supervisor, signal.SIGKILL)
    wait_until(lambda: sweep.is_dead(cluster.state_dir), 15, "the death of all that held the lock")
    assert cluster.state_dir in sweep.sweep()
    wait_until(lambda: not traces(cluster, link), 15, "the cluster's end")
    assert not _sleepers(marker)


@pytest.mark.parametrize(("age_seconds", "is_dead"), [(0, False), (3600, True)])
def test_a_directory_without_a_lock_is_dead_after_a_while(tmp_path, age_seconds, is_dead):
    os.utime(tmp_path, (time.time() - age_seconds,) * 2)
    assert sweep.is_dead(tmp_path) is is_dead


# Where it cannot be had


def test_without_go_the_reason_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.setattr(build, "GO_HOMES", ())
    with pytest.raises(build.CannotBuild, match=r"etcd, .* there is no Go to build them with\.$"):
        build.ready()


def test_a_go_that_fails_is_quoted(monkeypatch, tmp_path):
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho 'proxy: no route to host' >&2\nexit 1\n")
    go.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    said: list[str] = []
    with pytest.raises(build.CannotBuild, match="no route to host"):
        build.ready(said.append)
    assert said[0].startswith("building etcd")
    assert sorted(path.name for path in build.cache_dir().iterdir()) == [".lock"], "no half of a program"


def test_assets_win_over_the_cache(monkeypatch, tmp_path):
    (tmp_path / "kubectl").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert build.find()["kubectl"] == tmp_path / "kubectl"


FAKE_GO = """#!/bin/sh
echo ran >> {log}
case "$*" in
*csi-directories*) for name in {csi}; do touch "$3$name"; done ;;
*/server/v3) touch "$3" ;;
*kube-apiserver*) for name in {kubernetes}; do touch "$3$name"; done ;;
build*) touch "$3" ;;
*) package="${{4%@*}}"; touch "$GOBIN/${{package##*/}}" ;;
esac
"""


def test_two_builders_build_once(monkeypatch, tmp_path):
    log, go = tmp_path / "log", tmp_path / "bin" / "go"
    go.parent.mkdir()
    csi = " ".join(["csi-directories", *build.CSI_SIDECARS])
    go.write_text(FAKE_GO.format(log=log, kubernetes=" ".join(build.KUBERNETES_PROGRAMS), csi=csi))
    go.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{go.parent}:/usr/bin:/bin")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    (build.cache_dir() / ".building-killed").mkdir(parents=True)
    found: list[dict[str, Path]] = []
    builders = [
        threading.Thread(target=lambda: found.append(build.ready(lambda words: None))) for _ in range(2)
    ]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(patience(60))
    assert [set(programs) for programs in found] == [set(build.PROGRAMS)] * 2
    assert log.read_text().count("ran") == len(build.SOURCES)
    assert {path.name for path in build.cache_dir().iterdir()} == {".lock", *build.PROGRAMS}


def test_a_machine_without_namespaces_is_told_so(monkeypatch):
    monkeypatch.setattr(cell, "_ip", lambda words: "Operation not permitted")
    with pytest.raises(CannotIsolate, match="Operation not permitted"):
        cell.connect(1)
