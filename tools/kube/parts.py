"""Command lines and files of each program of a cluster. All paths are in its state directory."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.kube.cell import DNS_ADDRESS, SERVICE_ADDRESS, Network

HERE = Path(__file__).resolve().parent
CNI_PROGRAMS = "/usr/lib/cni"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
IMAGE, QUICKSTART_IMAGE = "trainyard.test/python:1", "trainyard.test/quickstart:1"
JUPYTER_IMAGE, PAUSE_IMAGE = "trainyard.test/jupyter:1", "trainyard.test/pause:1"
FAKE_NODE = "kwok.x-k8s.io/node=fake"


@dataclass(frozen=True, slots=True)
class Plan:
    """The composition of a cluster. `programs`: paths by name; `token`: an admin's. `node`: the real node's name, ""
    for none. `has_csi`: whether it has the CSI test driver with its sidecars and definitions. `more`: additional
    flags by program."""

    programs: Mapping[str, str]
    token: str
    node: str = ""
    node_labels: Mapping[str, str] = field(default_factory=dict)
    has_csi: bool = False
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """One process. `after`: what it waits for: "" (nothing), "api" or "images"."""

    name: str
    command: tuple[str, ...]
    after: str = ""


def names_of_server() -> list[str]:
    """Return the names under which clients address the API server."""
    return [
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ]


def addresses_of_server(network: Network) -> list[str]:
    """Return the addresses at which clients reach the API server."""
    return ["127.0.0.1", SERVICE_ADDRESS, network.inside]


def parts(plan: Plan, network: Network, state_dir: Path) -> list[Part]:
    """Return every process of the cluster, in start order."""
    found = [
        Part("etcd", _etcd(state_dir)),
        Part("kube-apiserver", _api_server(network, state_dir)),
        Part("kube-controller-manager", _controllers(state_dir), "api"),
        Part("kube-scheduler", _scheduler(state_dir), "api"),
        Part("kwok", _kwok(network, state_dir), "api"),
    ]
    if plan.node:
        found.insert(0, Part("containerd", ("containerd", "--config", f"{state_dir}/containerd.toml")))
        found.append(Part("coredns", ("coredns", "-conf", f"{state_dir}/Corefile"), "api"))
        found.append(Part("kubelet", _kubelet(plan, network, state_dir), "images"))
        if plan.has_csi:
            found += _csi(plan, state_dir)
    return [_complete(part, plan) for part in found]


def write_files(plan: Plan, network: Network, state_dir: Path) -> None:
    """Write the files that the processes read, except certificates and images, into `state_dir`."""
    (state_dir / "tokens.csv").write_text(f'{plan.token},admin,admin,"system:masters"\n')
    (state_dir / "kubeconfig").write_text(json.dumps(kubeconfig(plan.token, network, state_dir), indent=1))
    if plan.node:
        (state_dir / "containerd.toml").write_text(_containerd_toml(state_dir))
        (state_dir / "kubelet.json").write_text(json.dumps(_kubelet_configuration(state_dir)))
        names = f"kubernetes cluster.local {{\n kubeconfig {state_dir}/kubeconfig\n ttl 1\n }}"
        (state_dir / "Corefile").write_text(f"cluster.local:53 {{\n errors\n {names}\n}}\n")
        (state_dir / "cni").mkdir(exist_ok=True)
        (state_dir / "cni" / "bridge.conflist").write_text(json.dumps(_pod_network(network)))


def kubeconfig(token: str, network: Network, state_dir: Path) -> dict[str, Any]:
    """Return an admin's kubeconfig as JSON data, which is valid YAML. Reads the certificate authority in
    `state_dir`."""
    authority = base64.b64encode((state_dir / "ca.crt").read_bytes()).decode()
    cluster = {"server": url(network), "certificate-authority-data": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "trainyard",
        "clusters": [{"name": "trainyard", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "trainyard", "context": {"cluster": "trainyard", "user": "admin"}}],
    }


def url(network: Network) -> str:
    """Return the API server's URL."""
    # Port 443, so that the service's own address works in pods without a proxy.
    return f"https://{network.inside}:443"


def _complete(part: Part, plan: Plan) -> Part:
    program, *flags = part.command
    command = (plan.programs.get(program, program), *flags, *plan.more.get(part.name, ()))
    return Part(part.name, command, part.after)


def _etcd(state_dir: Path) -> tuple[str, ...]:
    # Nothing here outlives the cluster, so no write needs to be flushed.
    return ("etcd", "--data-dir", f"{state_dir}/etcd", "--unsafe-no-fsync", "--log-level", "warn")


def _api_server(network: Network, state_dir: Path) -> tuple[str, ...]:
    return (
        "kube-apiserver",
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=443",
        "--bind-address=0.0.0.0",
        f"--advertise-address={network.inside}",
        "--service-cluster-ip-range=10.96.0.0/16",
        f"--cert-dir={state_dir}",
        f"--tls-cert-file={state_dir}/server.crt",
        f"--tls-private-key-file={state_dir}/server.key",
        f"--client-ca-file={state_dir}/ca.crt",
        f"--kubelet-client-certificate={state_dir}/client.crt",
        f"--kubelet-client-key={state_dir}/client.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={state_dir}/sa.pub",
        f"--service-account-signing-key-file={state_dir}/sa.key",
        f"--token-auth-file={state_dir}/tokens.csv",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--runtime-config=api/all=true",
    )


def _controllers(state_dir: Path) -> tuple[str, ...]:
    return (
        "kube-controller-manager",
        f"--kubeconfig={state_dir}/kubeconfig",
        f"--service-account-private-key-file={state_dir}/sa.key",
        f"--root-ca-file={state_dir}/ca.crt",
        "--leader-elect=false",
        "--secure-port=0",
        "--enable-hostpath-provisioner=true",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    )


def _scheduler(state_dir: Path) -> tuple[str, ...]:
    # The default limit of 50 requests a second would dominate benchmarks.
    limits = ("--kube-api-qps=1000", "--kube-api-burst=2000")
    return (
        "kube-scheduler",
        f"--kubeconfig={state_dir}/kubeconfig",
        "--leader-elect=false",
        "--secure-port=0",
        *limits,
    )


def _kwok(network: Network, state_dir: Path) -> tuple[str, ...]:
    return (
        "kwok",
        f"--kubeconfig={state_dir}/kubeconfig",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE_NODE}",
        f"--config={HERE / 'stages.yaml'}",
        f"--node-ip={network.inside}",
        "--cidr=10.64.0.1/16",
        "--node-lease-duration-seconds=40",
        "--v=WARN",
    )


def _csi(plan: Plan, state_dir: Path) -> list[Part]:
    """Return the CSI driver, which runs beside the kubelet, and its sidecars."""
    socket, beside = f"{state_dir}/csi.sock", f"--kubeconfig={state_dir}/kubeconfig"
    driver = ("csi-directories", "-endpoint", socket, "-data", f"{state_dir}/csi", "-node", plan.node)
    found = [Part("csi-directories", driver, "api")]
    # The default limit of 5 requests a second would dominate benchmarks.
    limits = ("--kube-api-qps=100", "--kube-api-burst=200")
    more = {
        "csi-provisioner": ("--retry-interval-start=200ms", "--retry-interval-max=5s"),
        "csi-resizer": ("--retry-interval-start=200ms", "--handle-volume-inuse-error=false"),
        "csi-snapshotter": ("--retry-interval-start=200ms", *limits),
    }
    for name, flags in more.items():
        found.append(Part(name, (name, beside, f"--csi-address={socket}", *flags), "api"))
    controller = (
        "snapshot-controller",
        beside,
        "--retry-interval-start=200ms",
        "--retry-crd-interval-max=1s",
        *limits,
    )
    return [*found, Part("snapshot-controller", controller, "api")]


def _kubelet(plan: Plan, network: Network, state_dir: Path) -> tuple[str, ...]:
    labels = ",".join(f"{name}={value}" for name, value in plan.node_labels.items())
    return (
        "kubelet",
        f"--config={state_dir}/kubelet.json",
        f"--kubeconfig={state_dir}/kubeconfig",
        f"--hostname-override={plan.node}",
        f"--node-ip={network.inside}",
        f"--node-labels={labels}",
    )


def _kubelet_configuration(state_dir: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": f"{state_dir}/ca.crt"},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": f"{state_dir}/server.crt",
        "tlsPrivateKeyFile": f"{state_dir}/server.key",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "failCgroupV1": False,
        # A lower value requires a capability that root in a container may lack.
        "oomScoreAdj": 0,
        "clusterDNS": [DNS_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{state_dir}/resolv.conf",
        # Nothing is evicted because of a full disk, which is not what is tested.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "10s",
        "containerLogMonitorInterval": "3s",
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "shutdownGracePeriod": "0s",
    }


def _pod_network(network: Network) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": network.pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/run/cni-addresses",
        },
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def _containerd_toml(state_dir: Path) -> str:
    """Return containerd's configuration. `native` copies layers instead of overlaying them, which works on
    any file system; the images are a few files."""
    disabled = ", ".join(
        f'"io.containerd.snapshotter.v1.{name}"' for name in ("aufs", "btrfs", "devmapper", "zfs")
    )
    return f"""\
version = 2
root = "{state_dir}/containerd"
state = "/run/containerd"
disabled_plugins = [{disabled}]
[grpc]
address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "{state_dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI_PROGRAMS}"
conf_dir = "{state_dir}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "{state_dir}/container.json"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
