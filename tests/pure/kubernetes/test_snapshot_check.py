"""What the check of a cluster says about snapshots of volumes."""

from typing import Any

import pytest

from controlplane.engines.kubernetes import preflight
from controlplane.engines.kubernetes.config import ClusterProfile

GROUP = "/apis/snapshot.storage.k8s.io/v1"
CLASSES = f"{GROUP}/volumesnapshotclasses"


class Cluster:
    """Answers what `objects` has at a path, otherwise None as for 404."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.objects = objects

    def find(self, path: str, query: Any = None, **_: Any) -> Any:
        return self.objects.get(path)


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ({}, "The CustomResourceDefinitions of VolumeSnapshots are not installed, nor is their controller."),
        ({GROUP: {"resources": []}, CLASSES: {"items": []}}, "There is no volume snapshot class."),
        ({CLASSES: {"items": [{"metadata": {"name": "fast"}}]}}, "Snapshot classes: fast."),
    ],
)
def test_what_snapshots_lack_is_named(objects: dict[str, Any], message: str):
    client: Any = Cluster(objects)
    (check,) = preflight._snapshots(client, ClusterProfile())
    assert (check.message, check.without_it) == (
        message,
        "" if objects.get(CLASSES, {}).get("items") else "Volumes have no snapshots.",
    )
