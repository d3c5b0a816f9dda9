"""What is Azure NetApp Files' alone: deadlines, service tiers, and what is deleted when. The answers are served
by the tests in the published shapes; they are not a real system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from datasets.storage.anf import AnfVolumes, object_name
from datasets.storage.anf_client import AnfClient
from datasets.storage.base import Blocked, Budget, Cancelled, DeadlineExceeded
from tests.contract.test_volume_storage import QUICK, SIZE, filled, held, new_id
from tests.served_anf import ServedAnf, served_anf


@pytest.fixture
def anf(tmp_path: Path) -> Iterator[ServedAnf]:
    with served_anf(tmp_path) as anf:
        yield anf


@pytest.fixture
def storage(anf: ServedAnf) -> AnfVolumes:
    return AnfVolumes(AnfClient(anf.config(), "gold", QUICK), anf.namespace, SIZE, "standard")


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


def test_a_clone_that_was_made_by_a_repeat_leaves_no_snapshot_either(anf, storage):
    volume, cloned = filled(storage), new_id()
    client = AnfClient(anf.config(), "gold", QUICK)
    unmounted = AnfVolumes(client, anf.namespace / "elsewhere", SIZE, "standard", mount_seconds=0.0)
    with pytest.raises(Blocked):
        unmounted.clone(cloned, volume)
    assert len(anf.snapshots) == 1
    storage.clone(cloned, volume)
    assert (anf.snapshots, held(storage, cloned)) == ({}, "weights")


def test_a_volume_in_a_pool_that_is_configured_no_more_is_found(anf, storage):
    volume, snapshot, pools = filled(storage), new_id(), {"premium": "pool-premium"}
    storage.take(snapshot, volume)
    other = AnfVolumes(AnfClient(replace(anf.config(), pools=pools), "gold", QUICK), anf.namespace)
    other.remove(volume)
    assert not storage.path(volume).exists()
    other.remove_snapshot(snapshot)
    assert (anf.volumes, anf.snapshots) == ({}, {})


def test_what_another_account_does_not_have_is_not_taken_for_removed(anf, storage):
    volume, snapshot = filled(storage), new_id()
    storage.take(snapshot, volume)
    other = AnfVolumes(AnfClient(replace(anf.config(), account="other"), "gold", QUICK), anf.namespace)
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
