"""The pod that shows files of a claim on Kubernetes: whether it is made, where it runs, and what stayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.engines.kubernetes.claim_reader import ClaimReader
from controlplane.engines.kubernetes.config import ClusterProfile
from datasets.storage.base import UNLIMITED, Blocked, ContentMissing
from datasets.storage.claims import ReadTask

TASK = ReadTask("7", "v", b"", b"", 10, is_file=False)
ENDED = {
    "metadata": {"name": "trainyard-reader-7", "resourceVersion": "1"},
    "status": {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}],
    },
}


def pod(name: str, claim: str = "", node: str = "", made_at: str = "2026-01-01T11:58:00Z") -> Any:
    """A pod of the namespace."""
    volumes = [{"name": "x", "emptyDir": {}}, {"name": "y", "persistentVolumeClaim": {"claimName": claim}}]
    spec = {"volumes": volumes, **({"nodeName": node} if node else {})}
    return {"metadata": {"name": name, "creationTimestamp": made_at}, "spec": spec}


class Cluster:
    """A cluster in which the pod ends well. `claim`: None where there is none; `pods`: of jobs; `readers`: earlier
    pods that show volumes."""

    def __init__(self, phase: str = "Bound", mode: str = "ReadWriteOnce") -> None:
        self.claim: Any = {
            "metadata": {"name": "volume-v"},
            "spec": {"accessModes": [mode]},
            "status": {"phase": phase},
        }
        self.pods, self.readers = list[Any](), list[Any]()
        self.created, self.deleted = list[Any](), list[str]()

    def create(self, path: str, body: Any) -> None:
        self.created.append(body)

    def find(self, path: str, query: Any = None) -> Any:
        if "persistentvolumeclaims" in path:
            return self.claim
        if query and "labelSelector" in query:
            assert query["labelSelector"] == "trainyard.io/data-of=trainyard,trainyard.io/reads=volumes"
            return {"items": self.readers}
        return {"items": self.pods} if query else ENDED

    @contextmanager
    def stream(self, path: str, query: Any, **limits: float) -> Iterator[list[bytes]]:
        yield [b'{"done": false}']

    def delete(self, path: str, **how: int) -> None:
        self.deleted.append(path.rpartition("/")[2])

    def server_time(self) -> datetime:
        return datetime(2026, 1, 1, 12, tzinfo=UTC)


def look(cluster: Cluster) -> Any:
    reader = ClaimReader(cluster, "team", ClusterProfile(node_selector={"pool": "cpu"}))  # type: ignore[arg-type]  # a double
    return reader.read(TASK, UNLIMITED)


def test_a_claim_that_waits_for_its_first_pod_does_not_get_it_from_a_look():
    cluster = Cluster("Pending")
    with pytest.raises(Blocked) as blocked:
        look(cluster)
    assert (blocked.value.code, cluster.created) == ("not_bound", [])
    cluster.claim = None
    with pytest.raises(ContentMissing):
        look(cluster)
    assert cluster.created == []


@pytest.mark.parametrize(
    ("mode", "claim", "node"),
    [
        ("ReadWriteOnce", "volume-v", "n2"),
        ("ReadWriteOnce", "volume-w", ""),
        ("ReadWriteMany", "volume-v", ""),
    ],
)
def test_a_volume_of_one_node_is_read_where_a_job_has_it(mode: str, claim: str, node: str):
    cluster = Cluster(mode=mode)
    cluster.pods = [pod("waits", "volume-v"), pod("other", "volume-x", "n1"), pod("job", claim, "n2")]
    assert look(cluster) == ([], b"", False)
    [made] = cluster.created
    assert made["spec"].get("nodeName", "") == node
    assert ("nodeSelector" in made["spec"]) == (not node)


def test_a_look_deletes_its_pod_and_old_ones_that_stayed():
    cluster = Cluster()
    cluster.readers = [pod("left", made_at="2026-01-01T11:49:59Z"), pod("at-work")]
    look(cluster)
    assert cluster.deleted == ["left", "trainyard-reader-7"]
    assert cluster.created[0]["metadata"]["labels"]["trainyard.io/reads"] == "volumes"
