"""The caches of a project on Kubernetes: what counts as the pod's last word about them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controlplane.engines.kubernetes.cache_volume import CacheVolume
from controlplane.engines.kubernetes.config import ClusterProfile
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
    """A cluster in which the pod has ended well; `log`: what is read of it, None while its kubelet is away."""

    def __init__(self, log: list[bytes] | None) -> None:
        self.log, self.deleted = log, list[str]()

    def create(self, path: str, body: Any) -> None:
        pass

    def get(self, path: str, query: Any = None) -> Any:
        return ENDED

    @contextmanager
    def stream(self, path: str, query: Any, **limits: float) -> Iterator[list[bytes]]:
        if self.log is None:
            raise Unreachable("The kubelet does not answer.")
        yield self.log

    def delete(self, path: str, **how: int) -> None:
        self.deleted.append(path)


def run(cluster: Cluster) -> Any:
    volume = CacheVolume(cluster, "team", ClusterProfile(default_image="p"), CacheClaim())  # type: ignore[arg-type]  # a double
    return volume.run(CacheTask("7", ()), UNLIMITED)


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
