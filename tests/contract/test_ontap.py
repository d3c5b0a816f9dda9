"""What is ONTAP's alone: deadlines, and what is deleted when. The answers are served by the tests in ONTAP's
published shapes; they are not a real system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from datasets.storage.base import Blocked, Budget, Cancelled, DeadlineExceeded
from datasets.storage.ontap import OntapVolumes, base_name, volume_name
from datasets.storage.ontap_client import OntapClient
from tests.contract.test_volume_storage import GIB, QUICK, filled, held, new_id
from tests.served_ontap import ServedOntap, served_ontap


@pytest.fixture
def ontap(tmp_path: Path) -> Iterator[ServedOntap]:
    with served_ontap(tmp_path) as ontap:
        yield ontap


@pytest.fixture
def storage(ontap: ServedOntap) -> OntapVolumes:
    return OntapVolumes(OntapClient(ontap.config(), "gold", QUICK), ontap.namespace, GIB)


def test_a_volume_of_that_name_that_is_not_ours_is_neither_used_nor_deleted(ontap, storage):
    volume = filled(storage)
    ontap.named(volume_name(volume))["comment"] = "of the finance department"
    with pytest.raises(Blocked) as blocked:
        storage.provision(volume)
    assert (blocked.value.code, blocked.value.is_passing) == ("name_in_use", False)
    storage.remove(volume)
    assert held(storage, volume) == "weights"


@pytest.mark.parametrize(
    ("budget", "ends"),
    [(Budget(0.1), DeadlineExceeded), (Budget(is_cancelled=lambda: True), Cancelled)],
)
def test_a_call_ends_while_a_job_runs_and_its_repeat_finds_what_the_job_made(ontap, storage, budget, ends):
    volume = new_id()
    ontap.looks = 1_000_000
    with pytest.raises(ends):
        storage.provision(volume, budget)
    ontap.looks = 0
    storage.provision(volume)
    assert [one["name"] for one in ontap.volumes.values()] == [volume_name(volume)]


def test_a_restore_is_a_flexclone_with_the_size_that_is_asked_for(ontap, storage):
    volume, snapshot, restored = filled(storage), new_id(), new_id()
    storage.take(snapshot, volume)
    larger = OntapVolumes(OntapClient(ontap.config(), "gold", QUICK), ontap.namespace, 3 * GIB)
    larger.restore(restored, snapshot)
    made = ontap.named(volume_name(restored))
    assert made["clone"]["is_flexclone"]
    assert made["clone"]["parent_volume"]["name"] == volume_name(volume)
    assert made["size"] == 3 * GIB


def test_a_size_that_ontap_refuses_is_refused_with_its_words(storage):
    volume = filled(storage)
    with pytest.raises(Blocked, match="too small"):
        storage.resize(volume, 1 << 20)


def test_a_snapshot_stays_while_a_clone_needs_it_and_the_clone_is_named(storage):
    volume, snapshot, restored = filled(storage), new_id(), new_id()
    storage.take(snapshot, volume)
    storage.restore(restored, snapshot)
    with pytest.raises(Blocked) as blocked:
        storage.remove_snapshot(snapshot)
    assert (blocked.value.code, blocked.value.is_passing) == ("in_use", True)
    assert volume_name(restored) in blocked.value.detail
    storage.remove(restored)
    storage.remove_snapshot(snapshot)


def test_nothing_is_left_when_a_clone_with_a_snapshot_goes_before_its_snapshot(ontap, storage):
    volume, cloned, snapshot = filled(storage), new_id(), new_id()
    storage.clone(cloned, volume)
    storage.take(snapshot, cloned)
    for _ in range(2):
        storage.remove(cloned)
        storage.remove(volume)
    assert not any(storage.path(one).exists() for one in (volume, cloned))
    storage.restore(restored := new_id(), snapshot)
    assert held(storage, restored) == "weights"
    storage.remove(restored)
    storage.remove_snapshot(snapshot)
    assert (ontap.volumes, ontap.snapshots) == ({}, {})


def test_what_a_killed_process_left_of_a_clone_is_deleted_with_its_parent(ontap, storage):
    volume, cloned = filled(storage), new_id()
    storage.clone(cloned, volume)
    made = ontap.named(volume_name(cloned))
    ontap._change(made, {"nas": {"path": ""}})
    ontap._delete(made)
    assert [one["name"] for one in ontap.snapshots.values()] == [base_name(cloned)]
    storage.remove(volume)
    assert (ontap.volumes, ontap.snapshots) == ({}, {})


def test_a_removal_that_was_cut_off_before_it_unmounted_is_finished(ontap, storage):
    volume = filled(storage)
    ontap.named(volume_name(volume))["comment"] = f"trainyard retired {volume}"
    storage.remove(volume)
    assert ontap.volumes == {}


def test_what_another_svm_does_not_have_is_not_taken_for_removed(ontap, storage):
    volume, snapshot = filled(storage), new_id()
    storage.take(snapshot, volume)
    client = OntapClient(replace(ontap.config(), svm="other"), "gold", QUICK)
    other = OntapVolumes(client, ontap.namespace, GIB)
    for removal in (lambda: other.remove(volume), lambda: other.remove_snapshot(snapshot)):
        with pytest.raises(Blocked) as blocked:
            removal()
        assert blocked.value.code == "no_such_svm"


def test_a_snapshot_that_is_not_listed_yet_is_waited_for(ontap, storage, monkeypatch):
    volume = filled(storage)
    monkeypatch.setattr(ontap, "_take", lambda *about: None)
    with pytest.raises(Blocked) as blocked:
        storage.take(new_id(), volume)
    assert (blocked.value.code, blocked.value.is_passing) == ("job_not_done", True)
