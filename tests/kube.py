"""A real Kubernetes cluster for tests: API server, etcd, controllers, scheduler, fake nodes by KWOK, and
optionally one real node.

    with kube_cluster() as kube:                 # about five seconds
        kube.add_node("node-a", gpus=8, labels={"pool": "train"})
        kube.api("POST", "/api/v1/namespaces/default/pods", pod)

A cluster runs in Linux namespaces of its own (tools/kube/cell.py), so several can run side by side, and ends with
this process in every case. Pods of fake nodes run at once and without end; a deleted one ends with exit code 143.
tools/kube/stages.yaml replaces KWOK's defaults, which would remove finalizers."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import ssl
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

from tests.servers import CHECKOUT
from tests.waiting import patience, wait_until
from tools.kube import build, sweep
from tools.kube.cell import Network
from tools.kube.parts import CNI_PROGRAMS
from tools.kube.supervise import CANNOT, PATH

GPU = "nvidia.com/gpu"
NODE_PACKAGES = {"containerd": "containerd", "runc": "runc", "ctr": "containerd", "busybox": "busybox-static"}
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
STORAGE_CLASS = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: fast
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/host-path
volumeBindingMode: WaitForFirstConsumer
"""


class KubeMissing(Exception):
    """No cluster can run on this machine; the message says why in one sentence."""


@dataclass
class KubeCluster:
    """A running cluster and its admin's credentials. `host_address`: this machine's address for the API server
    and pods; `url`: the API server's."""

    state_dir: Path
    network: Network
    token: str
    programs: Mapping[str, str]
    process: subprocess.Popen[bytes] = field(repr=False)
    url: str = field(init=False)
    host_address: str = field(init=False)
    kubeconfig: Path = field(init=False)
    kubeconfig_text: str = field(init=False, repr=False)
    ca: Path = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"https://{self.network.inside}:443"
        self.host_address = self.network.outside
        self.kubeconfig, self.ca = self.state_dir / "kubeconfig", self.state_dir / "ca.crt"
        self.kubeconfig_text = self.kubeconfig.read_text()
        self._context = ssl.create_default_context(cafile=str(self.ca))
        self._idle: list[http.client.HTTPSConnection] = []
        weakref.finalize(self, _close_all, self._idle)

    def api(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", token: str = ""
    ) -> tuple[int, Any]:
        """Send a request; return the status and the decoded answer, also for an HTTP error. `kind`: the content
        type. Raises OSError if there is no connection."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": kind}
        status, text = self._answer(method, path, data, headers)
        is_plain = status >= 400 and text[:1] != b"{"
        return status, text.decode(errors="replace") if is_plain else json.loads(text or b"null")

    def _answer(
        self, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """Send a request on a kept connection if there is one, since a handshake takes longer than most requests.
        Sends it again if the server had closed that connection, which TLS can report as an error of its own."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = http.client.HTTPSConnection(self.network.inside, context=self._context)
        is_kept, connection.timeout = connection.sock is not None, patience(20)
        try:
            if is_kept:
                connection.sock.settimeout(connection.timeout)
            connection.request(method, path, data, headers)
            with connection.getresponse() as answer:
                found = answer.status, answer.read()
        except BaseException as error:
            connection.close()
            if is_kept and isinstance(error, (ConnectionError, ssl.SSLError)):
                return self._answer(method, path, data, headers)
            raise
        self._idle.append(connection)
        return found

    def must(self, method: str, path: str, body: Any = None, *, kind: str = "application/json") -> Any:
        """Send a request as `api` does, assert that it succeeds, and return the decoded answer."""
        status, answer = self.api(method, path, body, kind=kind)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def kubectl(self, *arguments: str, text: str | None = None, check: bool = True) -> str:
        """Run kubectl and return all that it prints. `text`: its standard input. Asserts that it succeeds, if
        `check`."""
        command = [self.programs["kubectl"], f"--kubeconfig={self.kubeconfig}", *arguments]
        result = subprocess.run(
            command,
            input=text,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=patience(120),
            check=False,
            env={**os.environ, "HOME": str(self.state_dir)},
        )
        assert result.returncode == 0 or not check, f"kubectl {' '.join(arguments)}: {result.stdout}"
        return result.stdout

    def apply(self, manifest: str | Path) -> str:
        """Apply (server-side) YAML or JSON text, a file, or a directory of files; return what kubectl prints."""
        words = ["apply", "--server-side", "--force-conflicts"]
        if isinstance(manifest, Path):
            return self.kubectl(*words, "-f", str(manifest))
        return self.kubectl(*words, "-f", "-", text=manifest)

    def add_node(
        self,
        name: str,
        *,
        gpus: int = 0,
        labels: Mapping[str, str] | None = None,
        taints: Sequence[Mapping[str, str]] = (),
        cpus: str = "64",
        memory: str = "512Gi",
        resources: Mapping[str, str] | None = None,
    ) -> None:
        """Create a fake node and wait until it is ready. `resources`: quantities by resource name, beside `gpus`,
        `cpus` and `memory`."""
        quantities = {"cpu": cpus, "memory": memory, "pods": "1000", **(resources or {})}
        quantities |= {GPU: str(gpus)} if gpus else {}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
            },
            "spec": {"taints": list(taints)},
            "status": {"capacity": quantities, "allocatable": quantities},
        }
        self.must("POST", "/api/v1/nodes", node)
        wait_until(lambda: self.is_node_ready(name), 30, f"node {name} to be ready")

    def is_node_ready(self, name: str) -> bool:
        """Return whether the node exists, is ready, and does not have the taint not-ready."""
        status, node = self.api("GET", f"/api/v1/nodes/{name}")
        taints = [taint["key"] for taint in node.get("spec", {}).get("taints", ())]
        return (
            status == 200
            and "node.kubernetes.io/not-ready" not in taints
            and any(
                (condition["type"], condition["status"]) == ("Ready", "True")
                for condition in node["status"].get("conditions", ())
            )
        )

    def set_gpus(self, node: str, gpus: int, resource: str = GPU) -> None:
        """Set the number of GPUs in a node's status, as a device plugin does. `resource`: the resource's name."""
        quantities = {resource: str(gpus)}
        status = {"status": {"capacity": quantities, "allocatable": quantities}}
        self.must("PATCH", f"/api/v1/nodes/{node}/status", status, kind=MERGE)

    def patch_status(self, path: str, status: Mapping[str, Any]) -> Any:
        """Merge `status` into that of the object at `path`; lists of conditions merge by type. Return the object."""
        return self.must("PATCH", f"{path}/status", {"status": status}, kind=STRATEGIC)

    def end_pod(self, namespace: str, name: str, exit_code: int = 0, *, is_noticed: bool = True) -> None:
        """End a fake node's pod with this exit code. Without `is_noticed` its containers end, but its phase
        stays."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        statuses = self.must("GET", path)["status"]["containerStatuses"]
        for status in statuses:
            began = status["state"].get("running", {}).get("startedAt")
            reason = "Completed" if exit_code == 0 else "Error"
            terminated = {"exitCode": exit_code, "reason": reason, "startedAt": began, "finishedAt": began}
            status |= {"ready": False, "started": False, "state": {"terminated": terminated}}
        phase = "Succeeded" if exit_code == 0 else "Failed"
        ended = {"containerStatuses": statuses} | ({"phase": phase} if is_noticed else {})
        self.must("PATCH", f"{path}/status", {"status": ended}, kind=MERGE)

    def service_account_token(self, namespace: str, name: str, seconds: int = 3600) -> str:
        """Return a token for this service account, which is created if it does not exist. `seconds`: how long the
        token is valid."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.api("POST", accounts, {"metadata": {"name": name}})
        wanted = {"spec": {"expirationSeconds": seconds}}
        token: str = self.must("POST", f"{accounts}/{name}/token", wanted)["status"]["token"]
        return token

    def kubeconfig_for(self, token: str) -> str:
        return self.kubeconfig_text.replace(self.token, token)

    def part(self, name: str) -> psutil.Process:
        """Return the process of a part, such as kube-apiserver. A part that is killed starts again."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return next(process for process in below if _program(process) == name)

    def log(self, part: str) -> str:
        """Return all that a part has printed."""
        return (self.state_dir / "logs" / f"{part}.log").read_text(errors="replace")


def why_not(*, node: bool = False) -> str:
    """Return why no cluster can run here, in one sentence; "" if one can. Builds nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "A cluster of our own needs Linux and root (namespaces and a network)."
    if not _finds("ip"):
        return "A cluster of our own needs `ip`: apt-get install iproute2."
    if node and (missing := _missing_packages()):
        return f"A real node needs Debian's packages: apt-get install {' '.join(missing)}."
    return ""


@contextmanager
def kube_cluster(
    *,
    node: str = "",
    node_labels: Mapping[str, str] | None = None,
    has_csi: bool = False,
    more: Mapping[str, Sequence[str]] | None = None,
    state_dir: Path | None = None,
) -> Iterator[KubeCluster]:
    """Context manager with a cluster that answers. `node`: the name of a real node, "" for none; `node_labels`:
    its labels; `has_csi`: the node has a CSI driver; `more`: further flags by part; `state_dir`: None for a
    temporary directory.

    Raises KubeMissing. Builds missing programs, which takes minutes."""
    cluster = start(node=node, node_labels=node_labels, has_csi=has_csi, more=more, state_dir=state_dir)
    try:
        yield cluster
    finally:
        stop(cluster.process)


@contextmanager
def node_cluster(*, has_csi: bool = False) -> Iterator[KubeCluster]:
    """Context manager with a cluster of two nodes: node-a is real, node-b is fake. Their labels are those of the
    GPU operator.

    Its storage class `fast` (the default) stores volumes in directories of this machine. Raises KubeMissing."""
    labels = gpu_labels(32768, "train")
    with kube_cluster(node="node-a", node_labels=labels, has_csi=has_csi) as cluster:
        cluster.set_gpus("node-a", 8)
        cluster.add_node("node-b", gpus=2, labels=gpu_labels(16384, "default"))
        cluster.apply(STORAGE_CLASS)
        yield cluster


def gpu_labels(memory_mib: int, pool: str) -> dict[str, str]:
    """Return a node's labels as the GPU operator's feature discovery sets them, and the label of its pool."""
    return {f"{GPU}.product": "NVIDIA-TEST", f"{GPU}.memory": str(memory_mib), "trainyard.io/pool": pool}


def start(
    *,
    node: str = "",
    node_labels: Mapping[str, str] | None = None,
    has_csi: bool = False,
    more: Mapping[str, Sequence[str]] | None = None,
    state_dir: Path | None = None,
    is_ours: bool = True,
) -> KubeCluster:
    """Start a cluster and wait until it can be used; see `kube_cluster`. `is_ours`: it ends with this process.
    Raises KubeMissing."""
    if reason := why_not(node=bool(node)):
        raise KubeMissing(reason)
    try:
        programs = {name: str(path) for name, path in build.ready().items()}
    except build.CannotBuild as error:
        raise KubeMissing(str(error)) from error
    sweep.sweep()
    directory = state_dir or Path(tempfile.mkdtemp(prefix=sweep.PREFIX))
    (directory / "logs").mkdir(parents=True)
    token = secrets.token_urlsafe(24)
    plan = {
        "programs": programs,
        "token": token,
        "node": node,
        "node_labels": dict(node_labels or {}),
        "has_csi": has_csi,
    }
    plan |= {"more": {part: list(flags) for part, flags in (more or {}).items()}}
    (directory / "plan.json").write_text(json.dumps(plan))
    process = _supervisor(directory, is_ours=is_ours)
    try:
        # Opened now: its directory goes with the supervisor.
        with (directory / "logs" / "supervisor.log").open(encoding="utf-8", errors="replace") as log:
            wait_until(lambda: _is_published(process, directory, log), 30, "the cluster's cell")
            network = Network(**json.loads((directory / "cluster.json").read_text()))
            cluster = KubeCluster(directory, network, token, programs, process)
            _wait_until_usable(cluster, node, log)
    except BaseException:
        stop(process)
        raise
    return cluster


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a cluster by its supervisor's process and wait for its end."""
    if process.stdin:
        process.stdin.close()
    process.terminate()
    process.wait(patience(30))


def _supervisor(directory: Path, *, is_ours: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tools.kube.supervise", str(directory)]
    command += ["--until-stdin-closes"] if is_ours else []
    with (directory / "logs" / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=CHECKOUT,
            stdin=subprocess.PIPE if is_ours else subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the tests; the cluster ends after them
            umask=0o022,  # Django's settings close this process's files to others, and containers run as others
        )


def _is_published(process: subprocess.Popen[bytes], directory: Path, log: TextIO) -> bool:
    _must_live(process, log)
    return (directory / "cluster.json").exists()


def _must_live(process: subprocess.Popen[bytes], log: TextIO) -> None:
    """Raise KubeMissing if the supervisor has ended because this machine allows no namespaces, AssertionError if
    it has ended for any other reason."""
    if process.poll() is None:
        return
    words = log.read().strip()
    if process.returncode == CANNOT:
        raise KubeMissing(words.rpartition("\n")[2])
    raise AssertionError(f"the cluster's supervisor has ended with {process.returncode}: {words}")


def _wait_until_usable(cluster: KubeCluster, node: str, log: TextIO) -> None:
    def is_usable() -> bool:
        _must_live(cluster.process, log)
        return _answers(cluster) and (not node or cluster.is_node_ready(node))

    try:
        wait_until(is_usable, 90, "the API server, its first service account and the real node")
    except AssertionError as error:
        logs = sorted((cluster.state_dir / "logs").glob("*.log"))
        tails = "\n".join(f"--- {part.name}\n{part.read_text(errors='replace')[-1500:]}" for part in logs)
        raise AssertionError(f"{error}\n{tails}") from error


def _answers(cluster: KubeCluster) -> bool:
    try:
        return cluster.api("GET", "/api/v1/namespaces/default/serviceaccounts/default")[0] == 200
    except OSError:
        return False


def _missing_packages() -> list[str]:
    missing = {package for program, package in NODE_PACKAGES.items() if not _finds(program)}
    if not Path(CNI_PROGRAMS, "bridge").exists():
        missing.add("containernetworking-plugins")
    return sorted(missing)


def _close_all(connections: Sequence[http.client.HTTPSConnection]) -> None:
    for connection in connections:
        connection.close()


def _finds(program: str) -> bool:
    return shutil.which(program, path=PATH) is not None


def _program(process: psutil.Process) -> str:
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return ""
    return Path(words[0]).name if words else ""
