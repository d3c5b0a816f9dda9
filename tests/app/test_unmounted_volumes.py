"""Volumes and snapshots whose disk is not mounted: what needs them waits, and nothing is put in their place."""

from pathlib import Path

import pytest
from pytest_django import Settings

from controlplane.access import SYSTEM
from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Command
from datasets.actions.snapshots import restore_snapshot, take_snapshot
from datasets.actions.volumes import create_volume, delete_volume
from datasets.command_handlers.snapshots import RemoveSnapshot, TakeSnapshot
from datasets.command_handlers.volumes import ProvisionVolume, RemoveVolume
from datasets.models import Volume
from tests.cast import Cast
from tests.volumes import GIB, directory_of, make_snapshot, make_volume, read, work
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes")]
HANDLERS = (ProvisionVolume, RemoveVolume, TakeSnapshot, RemoveSnapshot)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for handler in HANDLERS:
        monkeypatch.setattr(handler, "backoff_seconds", (0,))


@pytest.fixture
def volume(cast: Cast) -> Volume:
    return make_volume(cast.project, files={"model.pt": "weights"})


@pytest.fixture
def disk(volume: Volume, settings: Settings) -> Path:
    """The directory of the storage class, on a disk of its own."""
    directory: Path = settings.STORAGE_CLASSES[volume.storage_class].directory
    return directory


def unmount(disk: Path) -> Path:
    """Leave an empty mount point; return where the content of the disk is."""
    away = disk.rename(disk.with_name("away"))
    disk.mkdir()
    return away


def mount(away: Path, disk: Path) -> None:
    disk.rmdir()
    away.rename(disk)


def test_new_volumes_snapshots_and_restores_wait_for_the_disk(cast: Cast, volume: Volume, disk: Path):
    first = make_snapshot(volume)
    away = unmount(disk)
    snapshot = take_snapshot(volume, actor=SYSTEM)
    rows = [
        create_volume(cast.project, {"name": "fresh", "size": GIB}, actor=SYSTEM),
        create_volume(cast.other, {"name": "theirs", "size": GIB}, actor=SYSTEM),
        restore_snapshot(first, "back", actor=SYSTEM),
    ]
    wait_until(carry_out_due)
    # As after an hour of tries.
    Command.objects.unfinished().update(tries=100)
    wait_until(carry_out_due)
    for row in (snapshot, *rows):
        row.refresh_from_db()
        assert (row.state, row.reason) in (("pending", "not_mounted"), ("creating", "not_mounted"))
        assert f"of the storage class {volume.storage_class} is not there" in row.message
    assert not list(disk.iterdir())
    mount(away, disk)
    work()
    for row in (snapshot, *rows):
        row.refresh_from_db()
        assert (row.state, row.reason) == ("ready", "")
    assert read(rows[2]) == {"model.pt": "weights"}


def test_a_volume_is_not_forgotten_while_its_disk_is_not_mounted(volume: Volume, disk: Path):
    content = directory_of(volume)
    away = unmount(disk)
    delete_volume(volume, actor=SYSTEM)
    wait_until(carry_out_due)
    volume.refresh_from_db()
    assert (volume.state, volume.reason) == ("deleting", "not_mounted")
    mount(away, disk)
    work()
    assert not Volume.objects.exists()
    assert not content.exists()


def test_volumes_are_made_where_there_were_none(cast: Cast, disk: Path, volume: Volume):
    Volume.objects.all().delete()
    unmount(disk)
    fresh = make_volume(cast.project, "fresh")
    assert fresh.state == "ready"
    assert not Command.objects.unfinished().exists()
