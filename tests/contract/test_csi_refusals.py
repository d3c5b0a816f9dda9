"""A cluster that refuses a request or lacks what it needs: the reason reaches the user."""

import json
from typing import Any

import pytest

from controlplane.engines.kubernetes.data_pods import DataPod
from controlplane.kubernetes_api.errors import ApiError
from datasets.storage.base import Blocked
from datasets.storage.csi import ClaimKind, CsiVolumes


class RefusingClient:
    """Refuses every deletion, as an API server does for an account without the right."""

    def find(self, path: str) -> Any:
        return {"metadata": {"name": "one"}}

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


RIGHT = (
    'volumesnapshots.snapshot.storage.k8s.io "s" is forbidden: User "system:serviceaccount:t:y" cannot delete resource'
    ' "volumesnapshots" in API group "snapshot.storage.k8s.io" in the namespace "yard-team-a"'
)


class RightlessClient:
    """Refuses every request, as an API server does for an account without rights."""

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: Any, **__: Any) -> Any:
            status = {"kind": "Status", "reason": "Forbidden", "message": RIGHT}
            raise ApiError(403, json.dumps(status).encode())

        return refuse


@pytest.mark.parametrize(
    ("call", "is_passing"),
    [
        (lambda storage: storage.remove("v1"), True),
        (lambda storage: storage.remove_snapshot("s1"), True),
        (lambda storage: storage.take("s1", "v1"), True),
        (lambda storage: storage.provision("v1"), True),
        (lambda storage: storage.trouble("v1"), True),
        (lambda storage: storage._create("/x", {}), False),
        (lambda storage: DataPod(storage._client, "ns", "pod", "reads").claim("c"), True),
    ],
)
def test_a_right_that_the_account_lacks_is_named(call: Any, is_passing: bool) -> None:
    client: Any = RightlessClient()
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("slow", 1, "ReadWriteOnce"))
    with pytest.raises(Blocked, match=r"may not delete volumesnapshots.*Grant it that verb") as refused:
        call(storage)
    assert (refused.value.code, refused.value.is_passing) == ("not_permitted", is_passing)


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


def test_a_resize_without_the_right_names_it() -> None:
    client: Any = FixedSizeClient(RIGHT, allowVolumeExpansion=True)
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("slow", 1, "ReadWriteOnce"))
    with pytest.raises(Blocked, match=r"not changed.*Trainyard's account .* may not delete volumesnapshots"):
        storage.resize("v1", 2)


class DeletingClient(StubClient):
    """A cluster whose driver deletes a snapshot after `looks` looks at it, and says why not before."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks, self.deleted = looks, 0

    def find(self, path: str) -> Any:
        self.looks -= 1
        about = {"name": "snapshot-s1", "resourceVersion": "1"}
        about |= {"deletionTimestamp": "2026-01-01T00:00:00Z"} if self.deleted else {}
        return (
            {"metadata": about, "status": {"boundVolumeSnapshotContentName": "c1"}}
            if self.looks > 0
            else None
        )

    def delete(self, path: str) -> None:
        self.deleted += 1

    def get(self, path: str, query: Any = None) -> Any:
        name = query["fieldSelector"].partition("=")[2]
        times = {"c1": "2026-01-01T00:00:01Z", "snapshot-s1": "2025-12-31T23:59:59Z"}
        return {"items": [{"message": f"{name} {path}", "type": "Warning", "lastTimestamp": times[name]}]}


def test_a_snapshot_is_removed_when_its_driver_has_deleted_it() -> None:
    client: Any = DeletingClient(looks=3)
    CsiVolumes(client, "yard-team-a", {}, ClaimKind("", 1, "ReadWriteOnce")).remove_snapshot("s1")
    assert (client.looks, client.deleted) == (0, 1)


def test_a_snapshot_that_its_driver_does_not_delete_says_why_and_later_tries_do_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("datasets.storage.csi.DELETE_SECONDS", 0.1)
    client: Any = DeletingClient(looks=100)
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("", 1, "ReadWriteOnce"))
    # Three looks find nothing: a later try must do with two.
    for client.looks in (100, 3):
        with pytest.raises(Blocked, match="not deleted yet: c1 /api/v1/namespaces/default/events") as refused:
            storage.remove_snapshot("s1")
        assert (refused.value.code, refused.value.is_passing) == ("not_deleted", True)


class SlowDriver(StubClient):
    """A cluster whose driver has the content of a snapshot at once, and has it ready at the third look."""

    def get(self, path: str, query: Any = None) -> Any:
        found = super().get(path, query)
        is_ready = "volumesnapshots/" in path and self.asked > 5
        items = [one | {"driver": "slow.io"} for one in found["items"]]
        return found | {"items": items, "status": {"creationTime": "2026-01-01", "readyToUse": is_ready}}


def test_a_snapshot_that_its_driver_has_taken_has_longer_to_become_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of clouds are copied for an hour, and counted as failed after five minutes."""
    monkeypatch.setattr("datasets.storage.csi.SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr("datasets.storage.csi.UNWATCHED_SECONDS", 0.01)
    client: Any = SlowDriver()
    assert CsiVolumes(client, "yard-team-a", {}, ClaimKind("slow", 1, "ReadWriteOnce")).take("s1", "v1")
    monkeypatch.setattr("datasets.storage.csi.UPLOAD_SECONDS", 0.0)
    client = SlowDriver()
    with pytest.raises(Blocked, match="not ready within 0 s") as refused:
        CsiVolumes(client, "yard-team-a", {}, ClaimKind("slow", 1, "ReadWriteOnce")).take("s1", "v1")
    assert (refused.value.code, refused.value.is_passing) == ("snapshot_not_ready", False)


def test_a_copy_that_its_driver_has_not_made_yet_is_waited_for_again() -> None:
    client: Any = StubClient()
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("slow", 1, "ReadWriteOnce"), seconds=0.1)
    with pytest.raises(Blocked, match="It is not made yet") as refused:
        storage.restore("v2", "s1")
    assert (refused.value.code, refused.value.is_passing) == ("not_provisioned", True)
