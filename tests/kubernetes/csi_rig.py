"""CSI on the real node: the driver of tools/kube/csi with the real sidecars, its classes, and classes that fail.

The CRDs of snapshots are in the same directory as those of KAI (kai_rig)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.kube import KubeCluster
from tests.kubernetes.kai_rig import crds
from tests.waiting import wait_until

DRIVER = "directories.test.trainyard.io"
CLASS, REFUSING_CLASS, FIXED_CLASS = "directories", "refusing", "fixed"
REFUSAL = "the pool is full"
OBJECTS = f"""
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {{name: {DRIVER}}}
spec: {{attachRequired: false, podInfoOnMount: false, fsGroupPolicy: None}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {CLASS}}}
provisioner: {DRIVER}
allowVolumeExpansion: true
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {{name: directories}}
driver: {DRIVER}
deletionPolicy: Delete
"""
OF_TESTS = f"""
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {FIXED_CLASS}}}
provisioner: {DRIVER}
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: {REFUSING_CLASS}}}
provisioner: {DRIVER}
parameters: {{refuse: "{REFUSAL}"}}
"""
REFUSING_SNAPSHOTS = f"""
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata:
  name: refusing
  annotations: {{snapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: {DRIVER}
deletionPolicy: Delete
parameters: {{refuse: "{REFUSAL}"}}
"""


def why_no_definitions() -> str:
    """Return why the cluster cannot have snapshots here, in one sentence; "" if it can."""
    found = crds() / "external-snapshotter"
    return "" if found.is_dir() else f"The definitions of snapshots are not at {found}: set TRAINYARD_CRDS."


def set_up(kube: KubeCluster, node: str = "node-a") -> None:
    """Create CRDs and classes, and wait until the node has the driver."""
    for path in sorted((crds() / "external-snapshotter").glob("*.yaml")):
        kube.apply(path)
    names = [f"crd/{kind}.snapshot.storage.k8s.io" for kind in ("volumesnapshots", "volumesnapshotclasses")]
    kube.kubectl("wait", "--for=condition=Established", "--timeout=60s", *names)
    kube.apply(OBJECTS)

    def is_registered() -> bool:
        _, found = kube.api("GET", f"/apis/storage.k8s.io/v1/csinodes/{node}")
        return any(one["name"] == DRIVER for one in (found.get("spec") or {}).get("drivers") or ())

    wait_until(is_registered, 60, "the driver on the node")


@contextmanager
def fault(kube: KubeCluster, method: str, words: str, part: str) -> Iterator[None]:
    """Context manager inside which the driver's `method` fails with the error `words`, or with "hang" does not answer,
    for objects whose name or id contains `part`."""
    path = kube.state_dir / "csi" / "faults" / method
    path.write_text(f"{words}\n{part}\n")
    try:
        yield
    finally:
        path.unlink()
