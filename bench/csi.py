"""Time until the control plane notices that a CSI snapshot is ready, beside `kubectl wait` and polling.

The cluster runs the real CSI sidecars; all figures include their delay from the driver to the API server. The poll runs
every five seconds, as in the wait loops of the NetApp DataOps Toolkit.
Run: python -m bench.csi    (TRAINYARD_CRDS: the directory of the snapshot CRDs)
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from bench.harness import RESULTS, Row, report
from controlplane.engines.base import ProjectReport
from controlplane.engines.kubernetes.engine import KubernetesEngine
from datasets.storage.claims import claim_name, snapshot_name
from tests.kube import KubeCluster, KubeMissing, node_cluster
from tests.kubernetes import csi_rig

PROJECT = "team-a"
SNAPSHOTS, POLLS, POLL_SECONDS = 15, 4, 5.0


def main() -> None:
    """Measure and report; without a Kubernetes cluster print the reason and remove the old results."""
    try:
        if reason := csi_rig.why_no_definitions():
            raise KubeMissing(reason)
        with node_cluster(has_csi=True) as kube, tempfile.TemporaryDirectory() as directory:
            csi_rig.set_up(kube)
            report("csi", measure(kube, Path(directory)))
    except KubeMissing as reason:
        print(f"Not measured, there is no Kubernetes here: {reason}")
        (RESULTS / "csi.json").unlink(missing_ok=True)


def measure(kube: KubeCluster, directory: Path) -> list[Row]:
    """Take snapshots of one small volume on the cluster one after another: by our engine, by `kubectl wait`, and
    by polling. Return the rows. `directory`: the engine's state."""
    credentials = {"kubeconfig": kube.kubeconfig_text}
    settings = {"installation": "bench", "namespace_prefix": "bench-", "credentials": credentials}
    engine = KubernetesEngine(settings, directory)
    engine.sync_projects((ProjectReport(PROJECT, 1000, None, 1000),))
    storage = engine.volumes(PROJECT, csi_rig.CLASS, 16 << 20, "ReadWriteMany")
    volume = str(uuid.uuid4())
    storage.provision(volume)
    namespace = f"bench-{PROJECT}"
    ours = [late(kube, lambda: storage.take(str(uuid.uuid4()), volume)) for _ in range(SNAPSHOTS)]
    waited = [late(kube, lambda: wait_by_kubectl(kube, namespace, volume)) for _ in range(SNAPSHOTS)]
    polled = [late(kube, lambda: poll(kube, namespace, volume)) for _ in range(POLLS)]
    engine.close()
    work = "snapshot of a CSI driver, ready to noticed"
    return [
        Row(work, "<= 300 ms", "ms", ours, limit=300, peer="kubectl wait", peer_samples=waited),
        Row(f"{work}, beside a poll", "-", "ms", ours, peer="a look every 5 s", peer_samples=polled),
    ]


def late(kube: KubeCluster, take: Callable[[], object]) -> float:
    """Return the milliseconds from the driver's ready mark of the newest snapshot on the cluster to the end of
    `take`."""
    take()
    noticed = time.time()
    marks = (kube.state_dir / "csi" / "snapshots").glob("*.ready")
    return 1000 * (noticed - max(mark.stat().st_mtime for mark in marks))


def wait_by_kubectl(kube: KubeCluster, namespace: str, volume: str) -> None:
    name = make(kube, namespace, volume)
    wait = ("wait", "--for=jsonpath={.status.readyToUse}=true", "--timeout=60s", f"volumesnapshot/{name}")
    kube.kubectl("-n", namespace, *wait)


def poll(kube: KubeCluster, namespace: str, volume: str) -> None:
    path = f"/apis/snapshot.storage.k8s.io/v1/namespaces/{namespace}/volumesnapshots/"
    name = make(kube, namespace, volume)
    while not (kube.must("GET", path + name).get("status") or {}).get("readyToUse"):
        time.sleep(POLL_SECONDS)


def make(kube: KubeCluster, namespace: str, volume: str) -> str:
    """Create a VolumeSnapshot of a volume in `namespace` as a cluster admin would; return its name."""
    name = snapshot_name(str(uuid.uuid4()))
    body = {
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": {"name": name},
        "spec": {
            "volumeSnapshotClassName": "directories",
            "source": {"persistentVolumeClaimName": claim_name(volume)},
        },
    }
    kube.must("POST", f"/apis/snapshot.storage.k8s.io/v1/namespaces/{namespace}/volumesnapshots", body)
    return name


if __name__ == "__main__":
    main()
