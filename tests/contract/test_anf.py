"""What is Azure NetApp Files' alone: what blocks it and how that is named, deadlines, service tiers, and what is
deleted when. The answers are served by the tests in the published shapes; they are not a real system."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datasets.storage.anf import AnfVolumes, object_name
from datasets.storage.anf_client import AnfClient
from datasets.storage.base import Blocked, Budget, Cancelled, DeadlineExceeded
from datasets.storage.patience import Patience
from datasets.storage.volume_files import is_mounted
from tests.contract.test_volume_storage import QUICK, SIZE, filled, held, new_id
from tests.served_anf import SECRET, ServedAnf, served_anf


@pytest.fixture
def anf(tmp_path: Path) -> Iterator[ServedAnf]:
    with served_anf(tmp_path) as anf:
        yield anf


@pytest.fixture
def storage(anf: ServedAnf) -> AnfVolumes:
    return volumes_of(anf)


def volumes_of(anf: ServedAnf, patience: Patience = QUICK, size: int = SIZE, **place: Any) -> AnfVolumes:
    return AnfVolumes(AnfClient(anf.place(**place), "gold", patience), anf.namespace, size, "standard")


def with_wrong_secret(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    anf.credentials.write_text(
        "[default]\ntenant_id = tenant1\nclient_id = client1\nclient_secret = hunter2\n"
    )
    return volumes_of(anf)


def without_credentials(anf: ServedAnf, monkeypatch: pytest.MonkeyPatch) -> AnfVolumes:
    monkeypatch.delenv("AZURE_TENANT_ID", raising=False)
    return volumes_of(anf, credentials="")


def without_its_authority(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    return volumes_of(anf, ca_file="")


def without_an_answer(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    anf.hangs.set()
    return volumes_of(anf, Patience(answer_seconds=0.2))


def without_the_package(anf: ServedAnf, monkeypatch: pytest.MonkeyPatch) -> AnfVolumes:
    monkeypatch.setitem(sys.modules, "datasets.storage.anf_kinds", None)
    return volumes_of(anf)


def without_the_class(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    return AnfVolumes(AnfClient(None, "gold"), anf.namespace, SIZE, "standard")


def without_its_pool(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    return AnfVolumes(AnfClient(anf.place(), "gold", QUICK), anf.namespace, SIZE, "ultra")


def without_the_mount(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    client = AnfClient(anf.place(), "gold", QUICK)
    return AnfVolumes(client, anf.namespace / "elsewhere", SIZE, "standard", mount_seconds=0.0)


def with_a_directory_in_place_of_the_mount(anf: ServedAnf, monkeypatch: pytest.MonkeyPatch) -> AnfVolumes:
    monkeypatch.setattr("datasets.storage.volume_files.is_mounted", is_mounted)
    return AnfVolumes(
        AnfClient(anf.place(), "gold", QUICK), anf.namespace, SIZE, "standard", mount_seconds=0.0
    )


def too_small(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    return volumes_of(anf, size=1 << 30)


def with_a_fault(status: int, body: dict[str, Any] | str) -> Callable[..., AnfVolumes]:
    def make(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
        storage = volumes_of(anf)
        # signed in
        storage.remove(new_id())
        anf.faults.append((status, body, {}))
        return storage

    return make


def with_a_failing_operation(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    anf.next_error = {"code": "PoolFull", "message": "The pool pool-standard is full."}
    return volumes_of(anf)


def with_an_endless_operation(anf: ServedAnf, _: pytest.MonkeyPatch) -> AnfVolumes:
    anf.looks = 1_000_000
    return volumes_of(anf, Patience(job_seconds=0.05, pause_seconds=(0.01, 0.01)))


NOT_NOW = {"error": {"code": "Conflict", "message": "Another operation."}}
WRONG = {"error": {"code": "InvalidValueReceived", "message": "Not a field."}}
BLOCKED = [
    (with_wrong_secret, "not_permitted", True, "AADSTS7000215"),
    (without_credentials, "no_credentials", True, "AZURE_CLIENT_SECRET"),
    (without_its_authority, "not_trusted", True, "ca_file"),
    (without_an_answer, "unreachable", True, "timed out"),
    (without_the_package, "package_missing", False, "requirements-netapp.txt"),
    (without_the_class, "class_not_configured", True, "TRAINYARD_STORAGE_CLASSES"),
    (without_its_pool, "no_such_tier", False, "ultra"),
    (without_the_mount, "not_mounted", True, "10.0.0.4:/trainyard-"),
    (with_a_directory_in_place_of_the_mount, "not_mounted", True, "10.0.0.4:/trainyard-"),
    (too_small, "storage_refused", False, "50 GiB"),
    (with_a_fault(503, NOT_NOW), "storage_refused", True, "Another operation."),
    (with_a_fault(409, NOT_NOW), "storage_refused", True, "Conflict"),
    (with_a_fault(400, WRONG), "storage_refused", False, "Not a field."),
    (with_a_fault(403, WRONG), "not_permitted", True, "InvalidValueReceived"),
    (with_a_fault(200, "<html>"), "unreachable", True, "as expected"),
    (with_a_failing_operation, "storage_refused", False, "pool-standard is full"),
    (with_an_endless_operation, "job_not_done", True, "within 0.05 s"),
]


@pytest.mark.parametrize(("make", "code", "is_passing", "words"), BLOCKED)
def test_what_blocks_it_has_a_name_and_says_what_to_do(anf, monkeypatch, make, code, is_passing, words):
    storage = make(anf, monkeypatch)
    with pytest.raises(Blocked) as blocked:
        storage.provision(new_id())
    assert words in blocked.value.detail
    assert (blocked.value.code, blocked.value.is_passing) == (code, is_passing)
    assert "hunter2" not in blocked.value.detail
    assert SECRET not in blocked.value.detail


def test_a_volume_of_that_name_that_is_not_ours_is_neither_used_nor_deleted(anf, storage):
    volume = filled(storage)
    anf.named(object_name(volume))["tags"] = {"owner": "the finance department"}
    with pytest.raises(Blocked) as blocked:
        storage.provision(volume)
    assert (blocked.value.code, blocked.value.is_passing) == ("name_in_use", False)
    storage.remove(volume)
    assert held(storage, volume) == "weights"


@pytest.mark.parametrize(
    ("budget", "ends"),
    [(Budget(0.1), DeadlineExceeded), (Budget(is_cancelled=lambda: True), Cancelled)],
)
def test_a_call_ends_while_an_operation_runs_and_its_repeat_finds_what_it_made(anf, storage, budget, ends):
    volume = new_id()
    anf.looks = 1_000_000
    with pytest.raises(ends):
        storage.provision(volume, budget)
    anf.looks = 0
    storage.provision(volume)
    assert [row["tags"] for row in anf.volumes.values()] == [{"trainyard-volume": volume}]


def test_another_service_tier_moves_the_volume_with_its_snapshots_to_another_pool(anf, storage):
    volume, snapshot, restored = filled(storage), new_id(), new_id()
    storage.take(snapshot, volume)
    for _ in range(2):
        storage.retier(volume, "premium")
    assert [key.split("/")[-3] for key in anf.volumes] == ["pool-premium"]
    assert held(storage, volume) == "weights"
    storage.restore(restored, snapshot)
    assert held(storage, restored) == "weights"
    with pytest.raises(Blocked) as blocked:
        storage.retier(volume, "ultra")
    assert blocked.value.code == "no_such_tier"


def test_sizes_are_full_gibibytes(anf, storage):
    volume = filled(storage)
    storage.resize(volume, SIZE + 1)
    assert anf.named(object_name(volume))["properties"]["usageThreshold"] == SIZE + (1 << 30)


def test_a_clone_leaves_no_snapshot_at_its_source(anf, storage):
    storage.clone(new_id(), filled(storage))
    assert anf.snapshots == {}


def test_a_clone_that_was_made_by_a_repeat_leaves_no_snapshot_either(anf, storage, monkeypatch):
    volume, cloned = filled(storage), new_id()
    with pytest.raises(Blocked):
        without_the_mount(anf, monkeypatch).clone(cloned, volume)
    assert len(anf.snapshots) == 1
    storage.clone(cloned, volume)
    assert (anf.snapshots, held(storage, cloned)) == ({}, "weights")


def test_a_volume_in_a_pool_that_is_configured_no_more_is_found(anf, storage):
    volume, snapshot, pools = filled(storage), new_id(), {"premium": "pool-premium"}
    storage.take(snapshot, volume)
    other = AnfVolumes(AnfClient(replace(anf.place(), pools=pools), "gold", QUICK), anf.namespace)
    other.remove(volume)
    assert not storage.path(volume).exists()
    other.remove_snapshot(snapshot)
    assert (anf.volumes, anf.snapshots) == ({}, {})


def test_what_another_account_does_not_have_is_not_taken_for_removed(anf, storage):
    volume, snapshot = filled(storage), new_id()
    storage.take(snapshot, volume)
    other = AnfVolumes(AnfClient(replace(anf.place(), account="other"), "gold", QUICK), anf.namespace)
    for removal in (lambda: other.remove(volume), lambda: other.remove_snapshot(snapshot)):
        with pytest.raises(Blocked) as blocked:
            removal()
        assert "was not found" in blocked.value.detail


def test_a_removed_volume_keeps_the_tags_of_others(anf, storage):
    volume = filled(storage)
    storage.take(new_id(), volume)
    anf.named(object_name(volume))["tags"]["cost-center"] = "42"
    storage.remove(volume)
    tags = anf.named(object_name(volume))["tags"]
    assert (tags["cost-center"], tags["trainyard-retired"]) == ("42", volume)


def test_a_volume_that_is_being_moved_is_waited_for(anf, storage):
    volume = filled(storage)
    anf.named(object_name(volume))["properties"]["provisioningState"] = "Moving"
    with pytest.raises(Blocked) as blocked:
        storage.retier(volume, "premium")
    assert blocked.value.code == "job_not_done"


def test_a_removed_volume_is_exported_to_no_client_and_goes_with_its_last_snapshot(anf, storage):
    volume, snapshots = filled(storage), [new_id(), new_id()]
    for snapshot in snapshots:
        storage.take(snapshot, volume)
    storage.remove(volume)
    assert anf.named(object_name(volume))["properties"]["exportPolicy"] == {"rules": []}
    storage.remove_snapshot(snapshots[0])
    assert len(anf.volumes) == 1
    storage.remove_snapshot(snapshots[1])
    assert (anf.volumes, anf.snapshots) == ({}, {})


@pytest.mark.parametrize(
    ("state", "code", "is_passing"),
    [("Creating", "job_not_done", True), ("Failed", "storage_refused", False)],
)
def test_what_azure_has_not_finished_is_not_ready(anf, storage, state, code, is_passing):
    volume, snapshot = filled(storage), new_id()
    storage.take(snapshot, volume)
    (taken,) = anf.snapshots.values()
    calls = (
        (taken, lambda: storage.take(snapshot, volume)),
        (anf.named(object_name(volume)), lambda: storage.provision(volume)),
    )
    for row, call in calls:
        row["properties"]["provisioningState"] = state
        with pytest.raises(Blocked) as blocked:
            call()
        assert (blocked.value.code, blocked.value.is_passing) == (code, is_passing)
