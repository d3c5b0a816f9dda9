"""Volumes of storage classes with a driver, over REST: the same verbs as for folders, carried out at the storage."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Command, Event
from datasets.actions.volume_care import note_storage_classes
from datasets.actions.volumes import create_volume
from datasets.command_handlers.volumes import ProvisionVolume
from datasets.models import Volume
from datasets.queries.volumes import volume_mount
from datasets.storage.base import Blocked, Budget
from datasets.storage.classes import storage_classes
from tests.served_anf import ServedAnf, served_anf
from tests.served_ontap import ServedOntap, served_ontap
from tests.volumes import GIB, directory_of, make_snapshot, make_volume, read, work, write
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedOntap]:
    """A storage system, and a class `gold` beside the default one."""
    with served_ontap(tmp_path) as ontap:
        stated = {"standard": {}, "gold": ontap.statement()}
        monkeypatch.setattr("django.conf.settings.STORAGE_CLASSES", storage_classes(stated, tmp_path))
        yield ontap


def test_a_volume_is_made_resized_mounted_and_deleted_at_the_storage(api, cast, system):
    classes = {one["name"]: one["driver"] for one in api("vera").get("storage-classes").body["results"]}
    assert classes == {"standard": "folder", "gold": "ontap"}
    volume = make_volume(cast.project, files={"deep/a.txt": "alpha"}, storage_class="gold")
    path, ben = f"volumes/{volume.pk}", api("ben")
    shown = ben.get(path).body
    assert (shown["status"]["state"], shown["is_size_enforced"], shown["service_tier"]) == ("ready", True, "")
    assert [row["name"] for row in ben.get(f"{path}/files").body["results"]] == ["deep"]
    asked = {"volume_id": str(volume.pk), "storage_class": "gold", "mount_path": "/mnt", "read_only": False}
    assert volume_mount(cast.project, asked).source == str(directory_of(volume))
    assert ben.post(f"{path}/resize", {"size": 2 * GIB}).body["size_bytes"] == GIB
    work()
    assert ben.get(path).body["size_bytes"] == 2 * GIB
    assert [one["size"] for one in system.volumes.values()] == [2 * GIB]
    api("ana").delete(path)
    work()
    assert (Volume.objects.count(), system.volumes) == (0, {})


def test_a_restore_is_a_new_volume_and_names_what_keeps_its_snapshot(api, cast, system):
    volume = make_volume(cast.project, files={"model.pt": "weights"}, storage_class="gold")
    snapshot = make_snapshot(volume)
    assert (snapshot.state, snapshot.consistency) == ("ready", "idle")
    write(volume, {"model.pt": "worse"})
    made = api("ben").post(f"snapshots/{snapshot.pk}/restore", {"name": "back"})
    assert made.status == 201
    work()
    back = Volume.objects.get(name="back")
    assert (back.state, read(back), read(volume)) == ("ready", {"model.pt": "weights"}, {"model.pt": "worse"})
    api("ana").delete(f"snapshots/{snapshot.pk}")
    wait_until(carry_out_due, what="the try that is refused")
    status = api("ana").get(f"snapshots/{snapshot.pk}").body["status"]
    assert (status["state"], status["reason"]) == ("deleting", "in_use")
    assert status["message"].startswith("Volumes made of it: back.")
    api("ana").delete(f"volumes/{back.pk}")
    Command.objects.unfinished().update(not_before=timezone.now())
    work()
    assert api("ana").get(f"snapshots/{snapshot.pk}").status == 404


def test_what_the_storage_refuses_is_the_reason_of_the_volume(api, cast, system):
    system.next_job_error = {"code": "917534", "message": "Aggregate aggr1 is full."}
    volume = make_volume(cast.project, storage_class="gold")
    status = api("vera").get(f"volumes/{volume.pk}").body["status"]
    assert (status["state"], status["reason"]) == ("failed", "storage_refused")
    assert "aggr1 is full" in status["message"]


def test_volumes_of_a_class_that_is_configured_no_more_say_so_and_are_no_folders(
    api, cast, system, monkeypatch, tmp_path
):
    volume = make_volume(cast.project, storage_class="gold")
    note_storage_classes()
    monkeypatch.setattr("django.conf.settings.STORAGE_CLASSES", storage_classes({"standard": {}}, tmp_path))
    assert api("vera").get(f"volumes/{volume.pk}").body["is_size_enforced"] is True
    api("ana").delete(f"volumes/{volume.pk}")
    wait_until(carry_out_due, what="the try that is refused")
    status = api("vera").get(f"volumes/{volume.pk}").body["status"]
    assert (status["state"], status["reason"]) == ("deleting", "class_not_configured")
    assert len(system.volumes) == 1


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedAnf]:
    """An account of Azure NetApp Files, and a class `azure` beside the default one."""
    with served_anf(tmp_path) as anf:
        stated = {"standard": {}, "azure": anf.statement()}
        monkeypatch.setattr("django.conf.settings.STORAGE_CLASSES", storage_classes(stated, tmp_path))
        yield anf


def test_a_service_tier_is_changed_at_the_storage_while_the_volume_is_mounted(api, client, cast, azure):
    volume = make_volume(cast.project, files={"a": "alpha"}, storage_class="azure", size=1024 * GIB)
    path, ben, before = f"volumes/{volume.pk}", api("ben"), directory_of(volume)
    shown = ben.get(path).body
    assert (shown["service_tier"], shown["throughput_mib_per_second"]) == ("standard", 16)
    assert ben.post(f"{path}/service-tier", {"service_tier": "ultra"}).code == "no_such_tier"
    assert ben.post(f"{path}/service-tier", {"service_tier": "premium"}).body["service_tier"] == "standard"
    assert ben.post(f"{path}/resize", {"size": 2048 * GIB}).code == "volume_in_use"
    work()
    shown = ben.get(path).body
    assert (shown["service_tier"], shown["throughput_mib_per_second"]) == ("premium", 64)
    assert [key.split("/")[-3] for key in azure.volumes] == ["pool-premium"]
    assert (directory_of(volume), read(volume)) == (before, {"a": "alpha"})
    client.force_login(cast.ben)
    assert "not enforced" not in client.get(f"/volumes/{volume.pk}").content.decode()


def test_a_tier_that_the_storage_refuses_stays_and_the_volume_says_why(api, cast, azure):
    volume = make_volume(cast.project, storage_class="azure", size=100 * GIB)
    azure.next_error = {"code": "PoolFull", "message": "The pool pool-premium is full."}
    api("ben").post(f"volumes/{volume.pk}/service-tier", {"service_tier": "premium"})
    work()
    shown = api("ben").get(f"volumes/{volume.pk}").body
    assert (shown["service_tier"], shown["status"]["state"]) == ("standard", "ready")
    assert "pool-premium is full" in shown["status"]["message"]


def tried() -> None:
    """Carry out one try of each command that waits."""
    Command.objects.unfinished().update(not_before=timezone.now())
    wait_until(carry_out_due, what="a try")


def test_a_volume_waits_for_its_mount_without_end_and_says_which(api, cast, azure, monkeypatch):
    def blocked(path: Path, root: Path, seconds: float, budget: Budget, words: str) -> None:
        raise Blocked("not_mounted", words)

    with monkeypatch.context() as patched:
        patched.setattr("datasets.storage.anf.wait_until_mounted", blocked)
        fields = {"name": "data", "size": 50 * GIB, "storage_class": "azure"}
        volume = create_volume(cast.project, fields, actor=SYSTEM)
        for _ in range(ProvisionVolume.max_tries + 1):
            tried()
    status = api("vera").get(f"volumes/{volume.pk}").body["status"]
    assert (status["state"], status["reason"]) == ("creating", "not_mounted")
    assert "10.0.0.4:/trainyard-" in status["message"]
    assert str(directory_of(volume)) in status["message"]
    assert Event.objects.filter(kind="volume.waiting").count() == 1
    Command.objects.unfinished().update(not_before=timezone.now())
    work()
    status = api("vera").get(f"volumes/{volume.pk}").body["status"]
    assert (status["state"], status["reason"], status["message"]) == ("ready", "", "")


def test_a_tier_that_takes_long_is_waited_for(api, cast, azure, monkeypatch):
    volume = make_volume(cast.project, storage_class="azure", size=100 * GIB)

    def unfinished(*about: Any) -> None:
        raise Blocked("job_not_done", "Azure did not end begin_pool_change.")

    with monkeypatch.context() as patched:
        patched.setattr("datasets.storage.anf_client.AnfClient.move", unfinished)
        api("ben").post(f"volumes/{volume.pk}/service-tier", {"service_tier": "premium"})
        for _ in range(2):
            tried()
    Command.objects.unfinished().update(not_before=timezone.now())
    work()
    assert api("ben").get(f"volumes/{volume.pk}").body["service_tier"] == "premium"
