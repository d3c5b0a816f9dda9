"""What every storage of volumes does that the control plane sees as directories. ONTAP and Azure NetApp Files are
answers served by the tests in the vendors' published shapes, not the real systems (tests/served_ontap.py and others);
claims of Kubernetes pass the same in tests/kubernetes/test_csi.py, where there is a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from datasets.storage.anf import AnfVolumes
from datasets.storage.anf_client import AnfClient
from datasets.storage.base import Budget, Cancelled, ContentMissing
from datasets.storage.ontap import OntapVolumes
from datasets.storage.ontap_client import OntapClient
from datasets.storage.quiesce import quiesced
from datasets.storage.timeouts import Timeouts
from datasets.storage.volume_files import is_mounted
from datasets.storage.volumes import FolderVolumes
from tests.served_anf import served_anf
from tests.served_ontap import served_ontap

GIB = 1 << 30
SIZE = 50 * GIB
QUICK = Timeouts(answer_seconds=5.0, pause_seconds=(0.01, 0.05))
Storage = FolderVolumes | OntapVolumes | AnfVolumes


@pytest.fixture(params=["folder", "ontap", "anf"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "folder":
        yield FolderVolumes(tmp_path / "class")
    elif request.param == "ontap":
        with served_ontap(tmp_path) as ontap:
            yield OntapVolumes(OntapClient(ontap.config(), "gold", QUICK), ontap.namespace, SIZE)
    else:
        with served_anf(tmp_path) as anf:
            yield AnfVolumes(AnfClient(anf.config(), "gold", QUICK), anf.namespace, SIZE, "standard")


def new_id() -> str:
    return str(uuid4())


def filled(storage: Storage, text: str = "weights") -> str:
    """A volume with one file."""
    volume = new_id()
    storage.provision(volume)
    (storage.path(volume) / "model.pt").write_text(text)
    return volume


def held(storage: Storage, volume: str) -> str:
    return (storage.path(volume) / "model.pt").read_text()


def test_a_mount_point_without_its_mount_is_not_mounted(tmp_path):
    (tmp_path / "svm1" / "volume").mkdir(parents=True)
    assert not is_mounted(tmp_path / "svm1" / "volume", tmp_path / "svm1")
    assert not is_mounted(tmp_path / "svm1" / "missing", tmp_path / "svm1")
    assert is_mounted(Path("/proc/self"), Path("/proc"))


def test_a_volume_is_made_once_and_empty(storage):
    volume = new_id()
    storage.provision(volume)
    (storage.path(volume) / "kept").write_text("")
    storage.provision(volume)
    assert [one.name.decode() for one in storage.children(volume, b"", b"", 9)] == ["kept"]


def test_a_snapshot_and_what_is_restored_of_it_are_what_the_volume_was(storage):
    volume, snapshot, restored = filled(storage), new_id(), new_id()
    taken = storage.take(snapshot, volume, None)
    assert taken.size_bytes >= len("weights")
    (storage.path(volume) / "model.pt").write_text("worse")
    assert storage.take(snapshot, volume, None) == taken
    for _ in range(2):
        storage.restore(restored, snapshot)
    assert (held(storage, restored), held(storage, volume)) == ("weights", "worse")
    (storage.path(restored) / "model.pt").write_text("better")
    storage.restore(again := new_id(), snapshot)
    assert (held(storage, again), held(storage, volume)) == ("weights", "worse")


def test_a_clone_is_another_volume_and_outlives_the_first(storage):
    volume, cloned = filled(storage), new_id()
    for _ in range(2):
        storage.clone(cloned, volume)
    (storage.path(cloned) / "model.pt").write_text("other")
    assert held(storage, volume) == "weights"
    storage.remove(volume)
    assert (held(storage, cloned), storage.path(volume).exists()) == ("other", False)
    storage.remove(cloned)


def test_a_snapshot_outlives_its_volume(storage):
    volume, snapshot, restored = filled(storage), new_id(), new_id()
    storage.take(snapshot, volume, None)
    storage.remove(volume)
    storage.remove(volume)
    assert not storage.path(volume).exists()
    storage.restore(restored, snapshot)
    assert held(storage, restored) == "weights"
    storage.remove(restored)
    storage.remove_snapshot(snapshot)
    storage.remove_snapshot(snapshot)
    with pytest.raises(ContentMissing):
        storage.restore(new_id(), snapshot)


def test_a_new_size_changes_nothing_that_a_volume_holds(storage):
    volume = filled(storage)
    storage.resize(volume, 2 * SIZE)
    assert held(storage, volume) == "weights"
    assert storage.measure(volume, Budget(), 100).size_bytes == len("weights")


def test_what_is_not_there_is_missing_and_its_removal_is_no_error(storage):
    volume, snapshot = new_id(), new_id()
    for attempt in (
        lambda: storage.clone(new_id(), volume),
        lambda: storage.restore(new_id(), snapshot),
        lambda: storage.take(snapshot, volume, None),
    ):
        with pytest.raises(ContentMissing):
            attempt()
    storage.remove(volume)
    storage.remove_snapshot(snapshot)


def test_a_cancelled_call_ends_and_the_next_one_does_it(storage):
    volume, snapshot = filled(storage), new_id()
    with pytest.raises(Cancelled):
        storage.take(snapshot, volume, None, Budget(is_cancelled=lambda: True))
    assert storage.take(snapshot, volume, None) == storage.take(snapshot, volume, None)


def test_what_pauses_programs_for_a_snapshot_is_in_no_copy(storage):
    volume, snapshot, restored, cloned = filled(storage), new_id(), new_id(), new_id()
    listening = storage.path(volume) / ".trainyard" / "listening"
    listening.mkdir(parents=True)
    (listening / "job.0").write_text("")
    with quiesced(storage.path(volume), snapshot, ["job"], wait_seconds=0.01):
        storage.take(snapshot, volume, None)
        storage.clone(cloned, volume)
    storage.restore(restored, snapshot)
    kept = [sorted(os.listdir(storage.path(one))) for one in (restored, cloned)]
    assert kept == [["model.pt"], ["model.pt"]]
