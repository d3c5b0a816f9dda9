"""Jobs of a Kubernetes cluster with volumes: made at submit, written, snapshotted at the end, restored, read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from datasets.actions.snapshot_events import snapshot_on_events
from datasets.actions.snapshots import delete_snapshot, restore_snapshot, take_snapshot
from datasets.actions.volume_readings import ask_for
from datasets.actions.volumes import create_volume, delete_volume
from datasets.claim_watching import check_claims
from datasets.models import Snapshot, Volume
from datasets.queries.volume_files import BeingRead, file_response, list_files
from datasets.storage.claims import CLAIM_DELETED, NOT_DELETED, claim_name, snapshot_name
from jobs.models import Pod
from tests.builders import make_job
from tests.cast import SYSTEM
from tests.kube import KubeCluster
from tests.kubernetes import csi_rig
from tests.kubernetes.by_hand import Yard
from tests.waiting import patience, wait_until
from tools.kube.parts import IMAGE

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
# The other node runs no containers.
SMALL = {"gpus": 0, "cpus": 0.1, "memory_mib": 128, "node_pool": "train"}


@pytest.fixture
def yard(kube_node: KubeCluster, tmp_path: Path) -> Iterator[Yard]:
    if reason := csi_rig.why_no_definitions():
        pytest.skip(reason)
    csi_rig.set_up(kube_node)
    kube_node.apply(csi_rig.OF_TESTS)
    # Pods of the control plane, too, are not for the node that runs no containers.
    selector = {"nvidia.com/gpu.memory": "32768"}
    yard = Yard(kube_node, tmp_path, default_image=IMAGE, image_pull_policy="Never", node_selector=selector)
    yield yard
    yard.close()


def test_a_job_writes_a_new_volume_and_another_reads_what_was_restored_of_its_snapshot(yard: Yard) -> None:
    project = yard.project()
    new = {"storage_class": csi_rig.CLASS, "size": "16Mi", "name": "models"}
    mounts = [{"new": new, "mount_path": "/out"}]
    first = make_job(
        project,
        "first",
        command=["sh", "-c", "echo best > /out/model"],
        volumes=mounts,
        snapshot_on=["success"],
        **SMALL,
    )
    yard.until_succeeded(first)
    written = Volume.objects.get()
    assert [row["name"] for row in seen(yard, written, lambda: list_files(written, "", "", 10))[0]] == [
        "model"
    ]
    read = seen(yard, written, lambda: file_response(written, "model"))
    assert b"".join(read.streaming_content) == b"best\n"

    def snapshot() -> Snapshot | None:
        snapshot_on_events()
        return Snapshot.objects.filter(state="ready").first()

    yard.until(snapshot, "the snapshot of its end", 60)
    taken = Snapshot.objects.get()
    assert (taken.job, taken.causes, taken.consistency) == (first, ["success"], "idle")
    restore_snapshot(taken, "again", actor=SYSTEM)
    script = "grep best /in/model && ! touch /in/x"
    mounts = [{"volume": "again", "mount_path": "/in", "read_only": True}]
    second = make_job(project, "second", command=["sh", "-c", script], volumes=mounts, **SMALL)
    yard.until_succeeded(second)
    restored = Volume.objects.get(name="again")
    namespace = f"{yard.prefix}{project.name}"
    yard.kube.kubectl("-n", namespace, "delete", "pvc", "--wait=false", claim_name(str(restored.pk)))

    def is_noticed() -> bool:
        check_claims()
        restored.refresh_from_db()
        # At first it is kept for the pod that had it.
        return restored.reason == CLAIM_DELETED

    yard.until(is_noticed, "the claim that was deleted by hand")
    assert restored.state == "failed"
    assert Volume.objects.get(name="models").state == "ready"
    delete_snapshot(taken, actor=SYSTEM)
    for volume in Volume.objects.all():
        delete_volume(volume, actor=SYSTEM)
    yard.until(lambda: not (Volume.objects.exists() or Snapshot.objects.exists()), "their end")
    kept = yard.kube.kubectl("-n", namespace, "get", "volumesnapshots", "-o", "name")
    assert str(taken.pk) not in kept


WRITES = """
import time
from workloads.common import quiesce
with quiesce.answering():
    while True:
        with quiesce.writing():
            open("/out/model", "w").write("best")
        time.sleep(0.05)
"""


def test_a_program_pauses_while_a_snapshot_is_taken_of_what_it_writes(yard: Yard) -> None:
    project = yard.project()
    new = {"storage_class": csi_rig.CLASS, "size": "16Mi", "name": "models"}
    mounts = [{"new": new, "mount_path": "/out"}]
    job = make_job(project, "writer", command=["python", "-c", WRITES], volumes=mounts, **SMALL)
    yard.until(lambda: Pod.objects.filter(job=job, state="running").exists(), "the pod", 90)
    inside = ("exec", "-n", f"{yard.prefix}{project.name}", Pod.objects.get(job=job).name, "--", "ls")
    listening = (*inside, "/out/.trainyard/listening")
    wait_until(lambda: str(job.pk) in yard.kube.kubectl(*listening, check=False), 60, "the program")
    take_snapshot(Volume.objects.get(), actor=SYSTEM)
    yard.until(lambda: Snapshot.objects.get().state == "ready", "the snapshot", 60)
    assert Snapshot.objects.get().consistency == "quiesced"
    assert yard.kube.kubectl(*inside, "/out/.trainyard").split() == ["listening"]


def test_a_volume_that_its_driver_refuses_is_failed_with_the_drivers_words(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.storage.csi.PROVISION_SECONDS", patience(2.0))
    project = yard.project()
    fields = {"name": "full", "size": 1 << 24, "storage_class": csi_rig.REFUSING_CLASS}
    volume = create_volume(project, fields, actor=SYSTEM)
    yard.until(lambda: Volume.objects.get().state != "creating", "the refusal")
    volume.refresh_from_db()
    assert (volume.state, volume.reason) == ("failed", "not_provisioned")
    assert csi_rig.REFUSAL in volume.message
    delete_volume(volume, actor=SYSTEM)
    yard.until(lambda: not Volume.objects.exists(), "its end")


def seen(yard: Yard, volume: Volume, reads: Callable[[], Any]) -> Any:
    """What a pod saw of a volume."""
    with pytest.raises(BeingRead) as waits:
        reads()
    ask_for(volume, waits.value)

    def is_read() -> bool:
        return not volume.readings.filter(state="pending").exists()

    yard.until(is_read, "the pod that reads the volume", 60)
    return reads()


@pytest.mark.parametrize("fault", ["the pool is read-only", "hang"])
def test_a_snapshot_that_its_driver_does_not_delete_stays_until_the_driver_works(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr("datasets.command_handlers.snapshots.UNSHOWN_TRIES", 1)
    project = yard.project()
    fields = {"name": "data", "size": 1 << 24, "storage_class": csi_rig.CLASS}
    volume = create_volume(project, fields, actor=SYSTEM)
    yard.until(lambda: Volume.objects.get().state == "ready", "the volume")
    kept, deleted = (take_snapshot(volume, actor=SYSTEM) for _ in range(2))
    yard.until(lambda: Snapshot.objects.filter(state="ready").count() == 2, "the snapshots", 60)
    namespace = f"{yard.prefix}{project.name}"
    name = snapshot_name(str(deleted.pk))
    uid = yard.kube.kubectl("-n", namespace, "get", "volumesnapshot", name, "-o", "jsonpath={.metadata.uid}")
    with csi_rig.fault(yard.kube, "DeleteSnapshot", fault, uid):
        delete_snapshot(deleted, actor=SYSTEM)

        def is_shown() -> bool:
            deleted.refresh_from_db()
            return deleted.reason == NOT_DELETED

        yard.until(is_shown, "the reason", 60)
        assert deleted.state == "deleting"
        assert deleted.message.startswith("It is not deleted yet: ")
        delete_snapshot(kept, actor=SYSTEM)
        yard.until(lambda: not Snapshot.objects.filter(pk=kept.pk).exists(), "the end of the other one", 60)
        assert name in yard.kube.kubectl("-n", namespace, "get", "volumesnapshots", "-o", "name")
    yard.until(lambda: not Snapshot.objects.exists(), "its end", 120)
    assert not yard.kube.kubectl(
        "-n", namespace, "get", "volumesnapshots", "-o", "name", "--ignore-not-found"
    )
