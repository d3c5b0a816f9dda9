"""Volumes and snapshots of a cluster with the real sidecars of CSI: made, mounted, enlarged, snapshotted and restored;
what a driver refuses ends with its words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import Mount
from controlplane.engines.kubernetes.engine import KubernetesEngine
from controlplane.engines.kubernetes.preflight import check_cluster
from datasets.storage.base import Blocked, Budget, Cancelled, ContentMissing
from datasets.storage.claims import NOT_DELETED, claim_name, snapshot_name
from datasets.storage.csi import PROVISION_SECONDS, CsiVolumes
from tests.contract.harness import PROJECT, EngineCase, make_case
from tests.kube import KubeCluster
from tests.kubernetes import csi_rig
from tests.kubernetes.chart import engine_kubeconfig
from tests.waiting import wait_until

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster(kube_node: KubeCluster) -> KubeCluster:
    if reason := csi_rig.why_no_definitions():
        pytest.skip(reason)
    csi_rig.set_up(kube_node)
    kube_node.apply(csi_rig.OF_TESTS)
    return kube_node


@pytest.fixture
def case(kube_node: KubeCluster, cluster: KubeCluster, tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("kubernetes", tmp_path, cluster)
    yield case
    case.close()


def volumes(case: EngineCase, storage_class: str = csi_rig.CLASS, size: int = 16 * MIB) -> CsiVolumes:
    assert isinstance(case.engine, KubernetesEngine)
    return case.engine.volumes(PROJECT, storage_class, size, "ReadWriteMany")


def new_id() -> str:
    return str(uuid.uuid4())


def run(case: EngineCase, script: str, *mounts: Mount) -> str:
    """What a pod prints that mounts these and succeeds."""
    spec = case.start("bash", "-c", script, mounts=mounts, devices=())
    assert case.wait_end(spec, 120).state == base.SUCCEEDED, case.text(spec)
    return case.text(spec)


def remove_snapshot(storage: CsiVolumes, snapshot: str) -> None:
    """Remove a snapshot, however long its driver takes."""

    def is_removed() -> bool:
        try:
            storage.remove_snapshot(snapshot)
        except Blocked as blocked:
            if blocked.code != NOT_DELETED:
                raise
            return False
        return True

    wait_until(is_removed, 60, "the end of the snapshot")


def mounted(volume: str, path: str = "/data", *, is_read_only: bool = False) -> Mount:
    return Mount("", path, is_read_only, claim_name(volume))


def test_what_a_pod_writes_is_in_the_snapshot_in_what_is_restored_and_in_a_clone(
    case: EngineCase, cluster: KubeCluster
):
    storage, volume, snapshot, restored, cloned = volumes(case), *(new_id() for _ in range(4))
    storage.provision(volume)
    storage.provision(volume)
    run(case, "echo one > /data/model", mounted(volume))
    taken = storage.take(snapshot, volume)
    assert taken.size_bytes == MIB
    assert storage.take(snapshot, volume) == taken
    storage.resize(volume, 32 * MIB)
    storage.restore(restored, snapshot)
    storage.clone(cloned, volume)
    script = (
        "echo two > /data/model; cat /restored/model /cloned/model; touch /cloned/x 2> /dev/null || echo kept"
    )
    places = mounted(restored, "/restored"), mounted(cloned, "/cloned", is_read_only=True)
    assert run(case, script, mounted(volume), *places) == "one\none\nkept\n"
    found = cluster.kubectl("get", "pvc", "-A", "-o", "name")
    assert all(claim_name(one) in found for one in (volume, restored, cloned))
    for one in (volume, restored, cloned):
        storage.remove(one)
        storage.remove(one)
    remove_snapshot(storage, snapshot)
    with pytest.raises(ContentMissing):
        storage.restore(new_id(), snapshot)


def test_a_snapshot_is_noticed_when_the_driver_has_it(case: EngineCase, cluster: KubeCluster):
    storage, volume, snapshot = volumes(case), new_id(), new_id()
    storage.provision(volume)
    storage.take(snapshot, volume)
    noticed = time.time()
    newest = max(file.stat().st_mtime for file in (cluster.state_dir / "csi" / "snapshots").glob("*.ready"))
    # The sidecars' own way from the driver to the API server is in it, on whatever machine this runs.
    assert 0 <= noticed - newest < 10
    remove_snapshot(storage, snapshot)
    storage.remove(volume)


def test_what_the_driver_refuses_ends_with_its_words(case: EngineCase):
    with pytest.raises(Blocked, match=r"no storage class nothing; there are: .*directories") as refused:
        volumes(case, "nothing").provision(new_id())
    assert (refused.value.code, refused.value.is_passing) == ("no_such_class", False)
    storage = volumes(case, csi_rig.REFUSING_CLASS)
    storage._seconds = 3
    volume = new_id()
    with pytest.raises(Blocked, match=csi_rig.REFUSAL) as refused:
        storage.provision(volume)
    assert refused.value.code == "not_provisioned"
    storage.remove(volume)


def test_a_snapshot_that_is_never_ready_ends_with_the_drivers_words(case: EngineCase, cluster: KubeCluster):
    storage, volume, snapshot = volumes(case), new_id(), new_id()
    storage.provision(volume)
    cluster.apply(csi_rig.REFUSING_SNAPSHOTS)
    storage._seconds = 3
    try:
        with pytest.raises(Blocked, match=csi_rig.REFUSAL) as refused:
            storage.take(snapshot, volume)
    finally:
        cluster.kubectl("delete", "volumesnapshotclass", "refusing")
    assert refused.value.code == "snapshot_not_ready"
    assert snapshot_name(snapshot) in cluster.kubectl("get", "volumesnapshots", "-A", "-o", "name")
    remove_snapshot(storage, snapshot)
    storage.remove(volume)


def test_a_volume_that_waits_for_its_first_pod_is_ready_and_keeps_its_size(case: EngineCase):
    storage, volume = volumes(case, csi_rig.FIXED_CLASS), new_id()
    storage.provision(volume)
    assert run(case, "echo kept > /data/x; cat /data/x", mounted(volume)) == "kept\n"
    with pytest.raises(Blocked, match="resize"):
        storage.resize(volume, 64 * MIB)
    storage.remove(volume)


def test_the_clusters_check_finds_its_classes(cluster: KubeCluster):
    checks = check_cluster({"credentials": {"kubeconfig": engine_kubeconfig(cluster)}})
    found = {check.name: check for check in checks}
    assert {csi_rig.CLASS, csi_rig.FIXED_CLASS} < set(found["storage_classes"].found)
    assert found["storage_classes"].found[0] == "fast"
    assert "directories" in found["snapshots"].message


def test_a_cancelled_wait_ends(case: EngineCase):
    storage, volume = volumes(case, csi_rig.REFUSING_CLASS), new_id()
    with pytest.raises(Cancelled):
        storage.provision(volume, Budget(is_cancelled=lambda: True))
    storage.remove(volume)


def test_a_wait_gives_way_to_other_work_and_goes_on(case: EngineCase):
    """Four snapshots that were never ready kept every thread of the worker for five minutes."""
    storage, volume = volumes(case, csi_rig.REFUSING_CLASS), new_id()

    def give_way() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        storage.provision(volume, Budget(give_way=give_way))
    with pytest.raises(Blocked, match=csi_rig.REFUSAL) as refused:
        storage.provision(volume, Budget(give_way=give_way, waited_seconds=PROVISION_SECONDS))
    assert refused.value.code == "not_provisioned"
    storage.remove(volume)
