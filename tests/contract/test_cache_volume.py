"""The caches of a project on Kubernetes: what counts as the pod's last word about them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controlplane.commands.errors import GivesWay
from controlplane.engines.kubernetes import data_pods
from controlplane.engines.kubernetes.cache_volume import CacheVolume
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.kubernetes_api.errors import ApiError
from controlplane.remote_errors import Unreachable
from datasets.storage.base import UNLIMITED, Blocked, Budget
from datasets.storage.claims import CacheClaim, CacheTask

ENDED = {
    "metadata": {"resourceVersion": "1", "labels": {}},
    "status": {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}],
    },
}


RUNNING = {
    "metadata": {"resourceVersion": "1", "labels": {}},
    "spec": {"nodeName": "node-7"},
    "status": {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
}


class Cluster:
    """A cluster in which the pod has ended well; `log`: what is read of it, None while its kubelet is away.
    `has_claim`: False after its namespace was deleted."""

    def __init__(self, log: list[bytes] | None, *, has_claim: bool = True, pod: Any = ENDED) -> None:
        self.log, self.has_claim, self.deleted, self.created = log, has_claim, list[str](), list[str]()
        self.pod, self.phase = pod, "Bound"

    def create(self, path: str, body: Any) -> None:
        self.created.append(body["kind"])
        if self.phase == "Lost":
            raise ApiError(409, b'{"reason": "AlreadyExists"}')

    def find(self, path: str, query: Any = None) -> Any:
        if "persistentvolumeclaims" not in path:
            return self.pod
        return {"metadata": {}, "status": {"phase": self.phase}} if self.has_claim else None

    @contextmanager
    def stream(self, path: str, query: Any, **limits: float) -> Iterator[list[bytes]]:
        if self.log is None:
            raise Unreachable("The kubelet does not answer.")
        yield self.log

    def delete(self, path: str, **how: int) -> None:
        self.deleted.append(path)


def run(cluster: Cluster, key: str = "", budget: Budget = UNLIMITED) -> Any:
    def prepare() -> None:
        cluster.created.append("Namespace")

    profile = ClusterProfile(default_image="p")
    volume = CacheVolume(cluster, "team", profile, CacheClaim(), prepare)  # type: ignore[arg-type]  # a double
    return volume.run(CacheTask("7", (), key), budget)


@pytest.mark.parametrize("log", [None, [], [b'{"progress": [1, 1, 1]}']], ids=["away", "empty", "cut"])
def test_without_its_last_line_nothing_is_known_of_the_caches_and_the_pod_stays(log: list[bytes] | None):
    cluster = Cluster(log)
    with pytest.raises(Unreachable):
        run(cluster)
    assert cluster.deleted == []


def test_a_pod_whose_log_cannot_be_read_does_not_hold_the_volume_for_ever(monkeypatch: pytest.MonkeyPatch):
    now = itertools.count(step=10.0)
    monkeypatch.setattr(f"{data_pods.__name__}.time.monotonic", lambda: next(now))
    cluster = Cluster(None, pod=RUNNING)
    with pytest.raises(Blocked) as blocked:
        run(cluster)
    assert (blocked.value.code, blocked.value.is_passing) == ("log_not_read", True)
    assert "runs on node-7, and its log cannot be read: The kubelet does not answer." in blocked.value.detail
    assert len(cluster.deleted) == 1


def test_a_pod_that_does_not_start_leaves_the_thread_to_other_work_and_is_followed_later():
    """Fills of four projects without room for their pods kept all threads of the worker for ten minutes."""

    def give_way() -> None:
        raise GivesWay(0.0)

    cluster = Cluster([], pod={"metadata": {"resourceVersion": "1"}, "status": {"phase": "Pending"}})
    with pytest.raises(GivesWay):
        run(cluster, budget=Budget(give_way=give_way))
    assert cluster.deleted == []
    late = Budget(give_way=give_way, waited_seconds=data_pods.START_SECONDS + 1)
    with pytest.raises(Blocked) as blocked:
        run(cluster, budget=late)
    assert blocked.value.code == "pod_not_started"
    assert len(cluster.deleted) == 1


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
    # The pod of an earlier task, whose caller died.
    assert len(gone.deleted) == 1
    assert gone.created == []
    lost = Cluster([])
    lost.phase = "Lost"
    assert list(run(lost)) == []
    assert (len(lost.deleted), lost.created) == (1, [])
    there = Cluster([b'{"keys": []}'])
    run(there)
    assert there.created == ["Pod"]
    there.created.clear()
    run(there, key="one")
    assert there.created == ["Namespace", "PersistentVolumeClaim", "Pod"]


def test_a_fill_on_a_claim_whose_volume_is_lost_says_so_at_once():
    lost = Cluster([])
    lost.phase = "Lost"
    with pytest.raises(Blocked) as blocked:
        run(lost, key="one")
    assert (blocked.value.code, "Pod" in lost.created) == ("claim_lost", False)
    assert "Delete the claim trainyard-caches" in blocked.value.detail
