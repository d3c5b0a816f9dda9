"""A cluster that refuses a request or lacks what it needs: the reason reaches the user."""

import json
from typing import Any

import pytest

from controlplane.kubernetes_api.errors import ApiError
from datasets.storage.base import Blocked
from datasets.storage.csi import ClaimKind, CsiVolumes


class RefusingClient:
    """Refuses every deletion, as an API server does for an account without the right."""

    def delete(self, path: str) -> None:
        status = {"kind": "Status", "reason": "Forbidden", "message": f"cannot delete {path}"}
        raise ApiError(403, json.dumps(status).encode())


@pytest.mark.parametrize(
    ("verb", "kind"), [("remove", "persistentvolumeclaims"), ("remove_snapshot", "volumesnapshots")]
)
def test_a_deletion_that_the_cluster_refuses_is_blocked_with_its_words(verb: str, kind: str) -> None:
    client: Any = RefusingClient()
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("", 1, "ReadWriteOnce"))
    with pytest.raises(Blocked, match=f"Forbidden: cannot delete .*{kind}") as refused:
        getattr(storage, verb)("v1")
    assert (refused.value.code, refused.value.is_passing) == ("refused", True)


class StubClient:
    """A cluster with one storage class and one claim, which stays unbound. `absent`: paths that it answers with 404;
    requests to watch are forbidden."""

    def __init__(self, *absent: str) -> None:
        self.absent, self.asked = absent, 0

    def get(self, path: str, query: Any = None) -> Any:
        self.asked += 1
        if path in self.absent:
            raise ApiError(404, b"404 page not found")
        about = {"name": "slow", "resourceVersion": "1"}
        one = {"metadata": about, "provisioner": "slow.io", "spec": {"storageClassName": "slow"}}
        return {**one, "items": [one]}

    def create(self, path: str, body: Any) -> None:
        pass

    def stream(self, path: str, query: Any, **_: Any) -> Any:
        raise ApiError(403, json.dumps({"kind": "Status", "reason": "Forbidden"}).encode())


def test_without_the_right_to_watch_a_claim_is_asked_for_once_a_second() -> None:
    client: Any = StubClient()
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("slow", 1, "ReadWriteOnce"), seconds=2)
    with pytest.raises(Blocked, match="No volume within 2 s"):
        storage.provision("v1")
    assert client.asked < 10


def test_a_snapshot_in_a_cluster_without_their_definitions_says_what_to_install() -> None:
    client: Any = StubClient("/apis/snapshot.storage.k8s.io/v1/volumesnapshotclasses")
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("slow", 1, "ReadWriteOnce"))
    with pytest.raises(Blocked, match="CustomResourceDefinitions of VolumeSnapshots") as refused:
        storage.take("s1", "v1")
    assert (refused.value.code, refused.value.is_passing) == ("no_snapshots", False)


class FixedSizeClient(StubClient):
    """A cluster that refuses every change of a claim with `message`; its storage class has these `fields`."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__()
        self.message, self.fields = message, fields

    def get(self, path: str, query: Any = None) -> Any:
        found = super().get(path, query)
        return {**found, "items": [{**one, **self.fields} for one in found["items"]]}

    def merge(self, path: str, body: Any) -> None:
        status = {"kind": "Status", "reason": "Forbidden", "message": self.message}
        raise ApiError(403, json.dumps(status).encode())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "Its size was not changed: the storage class slow does not allow expansion. An admin"),
        (
            {},
            "can set allowVolumeExpansion: true on the class if its driver supports it; then resize it again.",
        ),
        (
            {"allowVolumeExpansion": True},
            "Its size was not changed; the cluster refused: exceeded quota: 5Gi.",
        ),
    ],
)
def test_a_refused_resize_is_a_sentence_that_says_what_to_do(fields: dict[str, Any], words: str) -> None:
    client: Any = FixedSizeClient("exceeded quota: 5Gi", **fields)
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("slow", 1, "ReadWriteOnce"))
    with pytest.raises(Blocked) as refused:
        storage.resize("v1", 2)
    assert (refused.value.code, refused.value.is_passing) == ("not_resized", False)
    assert words in str(refused.value)
