"""What is ONTAP's alone: what blocks it and how that is named, deadlines, and what is deleted when. The answers are
served by the tests in ONTAP's published shapes; they are not a real system."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from datasets.storage.base import Blocked, Budget, Cancelled, DeadlineExceeded
from datasets.storage.ontap import OntapVolumes, base_name, volume_name
from datasets.storage.ontap_client import OntapClient
from datasets.storage.patience import Patience
from datasets.storage.volume_files import is_mounted
from tests.contract.test_volume_storage import GIB, QUICK, filled, held, new_id
from tests.served_ontap import PASSWORD, ServedOntap, served_ontap


@pytest.fixture
def ontap(tmp_path: Path) -> Iterator[ServedOntap]:
    with served_ontap(tmp_path) as ontap:
        yield ontap


@pytest.fixture
def storage(ontap: ServedOntap) -> OntapVolumes:
    return volumes_of(ontap)


def volumes_of(ontap: ServedOntap, patience: Patience = QUICK, **place: Any) -> OntapVolumes:
    return OntapVolumes(OntapClient(ontap.place(**place), "gold", patience), ontap.namespace, GIB)


def with_wrong_password(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    ontap.credentials.write_text("[default]\nusername = trainyard\npassword = hunter2\n")
    return volumes_of(ontap)


def with_half_of_the_credentials(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    ontap.credentials.write_text(f"[default]\npassword = {PASSWORD}\n")
    return volumes_of(ontap)


def without_credentials(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    return volumes_of(ontap, credentials="")


def without_its_authority(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    return volumes_of(ontap, ca_file="")


def without_an_answer(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    ontap.hangs.set()
    return volumes_of(ontap, Patience(answer_seconds=0.2))


def without_the_package(ontap: ServedOntap, monkeypatch: pytest.MonkeyPatch) -> OntapVolumes:
    monkeypatch.setitem(sys.modules, "datasets.storage.ontap_kinds", None)
    return volumes_of(ontap)


def without_the_class(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    return OntapVolumes(OntapClient(None, "gold"), ontap.namespace, GIB)


def without_the_mount(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    client = OntapClient(ontap.place(), "gold", QUICK)
    return OntapVolumes(client, ontap.namespace / "elsewhere", GIB, mount_seconds=0.0)


def with_a_directory_in_place_of_the_mount(
    ontap: ServedOntap, monkeypatch: pytest.MonkeyPatch
) -> OntapVolumes:
    monkeypatch.setattr("datasets.storage.volume_files.is_mounted", is_mounted)
    return OntapVolumes(OntapClient(ontap.place(), "gold", QUICK), ontap.namespace, GIB, mount_seconds=0.0)


def of_another_svm(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    client = OntapClient(replace(ontap.place(), svm="other"), "gold", QUICK)
    return OntapVolumes(client, ontap.namespace, GIB)


def with_a_fault(status: int, body: dict[str, Any] | str) -> Callable[..., OntapVolumes]:
    def make(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
        ontap.faults.append((status, body, {}))
        return volumes_of(ontap)

    return make


def with_a_failing_job(code: str, message: str) -> Callable[..., OntapVolumes]:
    def make(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
        ontap.next_job_error = {"code": code, "message": message}
        return volumes_of(ontap)

    return make


def with_an_endless_job(ontap: ServedOntap, _: pytest.MonkeyPatch) -> OntapVolumes:
    ontap.looks = 1_000_000
    return volumes_of(ontap, Patience(job_seconds=0.05, pause_seconds=(0.01, 0.01)))


BLOCKED = [
    (with_wrong_password, "not_permitted", True, "not authorized"),
    (with_half_of_the_credentials, "no_credentials", True, "username"),
    (without_credentials, "no_credentials", True, "ONTAP_PASSWORD"),
    (without_its_authority, "not_trusted", True, "ca_file"),
    (without_an_answer, "unreachable", True, "does not answer"),
    (without_the_package, "package_missing", False, "requirements-netapp.txt"),
    (without_the_class, "class_not_configured", True, "TRAINYARD_STORAGE_CLASSES"),
    (without_the_mount, "not_mounted", True, "svm1"),
    (with_a_directory_in_place_of_the_mount, "not_mounted", True, "svm1"),
    (of_another_svm, "no_such_svm", False, "other"),
    (with_a_fault(503, {"error": {"code": "9", "message": "Busy."}}), "storage_refused", True, "Busy."),
    (with_a_fault(400, {"error": {"code": "262197", "message": "Not a field."}}), "storage_refused", False, "262197"),
    (with_a_fault(200, "<html>"), "unreachable", True, "other than ONTAP"),
    (with_a_failing_job("917534", "Aggregate aggr1 is full."), "storage_refused", False, "aggr1 is full"),
    (with_a_failing_job("13107406", "Another operation."), "storage_refused", True, "Another operation"),
    (with_an_endless_job, "job_not_done", True, "within 0.05 s"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code", "is_passing", "words"), BLOCKED)
def test_what_blocks_it_has_a_name_and_says_what_to_do(ontap, monkeypatch, make, code, is_passing, words):
    monkeypatch.delenv("ONTAP_USERNAME", raising=False)
    storage = make(ontap, monkeypatch)
    with pytest.raises(Blocked) as blocked:
        storage.provision(new_id())
    assert (blocked.value.code, blocked.value.is_passing) == (code, is_passing)
    assert words in blocked.value.detail
    assert "hunter2" not in blocked.value.detail
    assert PASSWORD not in blocked.value.detail


def test_new_credentials_are_used_by_the_next_try(ontap):
    right = ontap.credentials.read_text()
    storage, volume = with_wrong_password(ontap, pytest.MonkeyPatch()), new_id()
    with pytest.raises(Blocked):
        storage.provision(volume)
    ontap.credentials.write_text(right)
    storage.provision(volume)
    assert storage.path(volume).is_dir()


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
    larger = OntapVolumes(OntapClient(ontap.place(), "gold", QUICK), ontap.namespace, 3 * GIB)
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


def test_what_another_svm_does_not_have_is_not_taken_for_removed(ontap, storage, monkeypatch):
    volume, snapshot = filled(storage), new_id()
    storage.take(snapshot, volume)
    other = of_another_svm(ontap, monkeypatch)
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
