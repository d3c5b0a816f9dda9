"""The caches of a project on Kubernetes: what counts as the pod's last word about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controlplane.engines.kubernetes.cache_volume import CacheVolume
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.kubernetes_api.errors import ApiError
from controlplane.remote_errors import Unreachable
from datasets.storage.base import UNLIMITED
from datasets.storage.claims import CacheClaim, CacheTask

ENDED = {
    "metadata": {"resourceVersion": "1", "labels": {}},
    "status": {
        "phase": "Succeeded",
        "containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}],
    },
}


class Cluster:
    """A cluster in which the pod has ended well; `log`: what is read of it, None while its kubelet is away.
    `has_claim`: False after its namespace was deleted."""

    def __init__(self, log: list[bytes] | None, *, has_claim: bool = True) -> None:
        self.log, self.has_claim, self.deleted, self.created = log, has_claim, list[str](), list[str]()

    def create(self, path: str, body: Any) -> None:
        self.created.append(body["kind"])

    def get(self, path: str, query: Any = None) -> Any:
        if "persistentvolumeclaims" in path and not self.has_claim:
            raise ApiError(404, b"")
        return ENDED

    @contextmanager
    def stream(self, path: str, query: Any, **limits: float) -> Iterator[list[bytes]]:
        if self.log is None:
            raise Unreachable("The kubelet does not answer.")
        yield self.log

    def delete(self, path: str, **how: int) -> None:
        self.deleted.append(path)


def run(cluster: Cluster, key: str = "") -> Any:
    def prepare() -> None:
        cluster.created.append("Namespace")

    profile = ClusterProfile(default_image="p")
    volume = CacheVolume(cluster, "team", profile, CacheClaim(), prepare)  # type: ignore[arg-type]  # a double
    return volume.run(CacheTask("7", (), key), UNLIMITED)


@pytest.mark.parametrize("log", [None, [], [b'{"progress": [1, 1, 1]}']], ids=["away", "empty", "cut"])
def test_without_its_last_line_nothing_is_known_of_the_caches_and_the_pod_stays(log: list[bytes] | None):
    cluster = Cluster(log)
    with pytest.raises(Unreachable):
        run(cluster)
    assert cluster.deleted == []


@pytest.mark.parametrize("keys", [[], ["one"]])
def test_the_trees_are_those_of_its_last_line(keys: list[str]):
    cluster = Cluster(
        [b'{"progress": [1, 1, 1]}', b'{"keys": [%s]}' % b"".join(b'"%s"' % key.encode() for key in keys)]
    )
    assert run(cluster) == keys
    assert len(cluster.deleted) == 1


def test_a_removal_makes_no_namespace_and_no_claim_and_a_fill_makes_both():
    gone = Cluster([], has_claim=False)
    assert list(run(gone)) == []
    assert gone.created == []
    there = Cluster([b'{"keys": []}'])
    run(there)
    assert there.created == ["Pod"]
    there.created.clear()
    run(there, key="one")
    assert there.created == ["Namespace", "PersistentVolumeClaim", "Pod"]
