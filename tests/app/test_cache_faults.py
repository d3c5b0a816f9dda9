"""Caches whose fill fails, ends early or is not flushed, and whose files are gone."""

import errno
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from django.utils import timezone
from pytest_django import Settings

from controlplane.access import SYSTEM
from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Command
from datasets.actions.cache_locations import create_location
from datasets.actions.cache_upkeep import distrust_caches, keep_caches
from datasets.actions.caches import EVICT_CACHE, cache_version, clear_cache, location_for
from datasets.command_handlers.caches import EvictCache, FillCache
from datasets.ingest.worker import WorkerFailed
from datasets.models import Cache, CacheLocation, Dataset
from datasets.queries.caches import directory_of
from datasets.queries.job_data import dataset_mounts
from datasets.queries.lake import lake_address
from datasets.storage.base import ContentMissing
from datasets.storage.cache import CacheStore
from datasets.storage.unflushed import UnflushedMarks
from jobs.models import Job
from tests.app.cached import TWO, files_of, submit, work
from tests.cast import Cast
from tests.loop.plant import Plant
from tests.waiting import wait_until


def test_a_failed_fill_is_in_the_reason_and_is_tried_again(people: Cast, xray: Dataset, plant: Plant):
    CacheLocation.objects.create(cluster=plant.cluster, name="small", room_bytes=1)
    job = submit(people)
    work()
    plant.settle()
    job.refresh_from_db()
    assert job.reason == "waiting_for_data"
    assert "could not be brought to the cluster: small has room for 1 B more" in job.message
    CacheLocation.objects.update(room_bytes=None)
    keep_caches(timezone.now() + timedelta(minutes=2))
    work()
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"


def test_a_fill_whose_writing_process_was_killed_says_so_and_goes_on(
    xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    cache = cache_version(xray.versions.get(number=1), location_for(plant.cluster), actor=SYSTEM)
    monkeypatch.setattr(FillCache, "backoff_seconds", (0,))
    with monkeypatch.context() as patched:
        patched.setattr(CacheStore, "fill", Mock(side_effect=WorkerFailed("It was killed.")))
        wait_until(carry_out_due)
    cache.refresh_from_db()
    assert (cache.state, cache.reason, cache.message) == ("filling", "process_ended", "It was killed.")
    assert not caplog.records  # a traceback would be a fault of ours
    work()
    cache.refresh_from_db()
    assert (cache.state, cache.reason) == ("ready", "")


def test_a_job_starts_before_its_data_is_flushed_and_after_a_power_cut_only_once_it_is_verified(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(UnflushedMarks, "may_add", lambda _: True)
    job, states = submit(people), list[str]()

    def flush(descriptor: int) -> None:
        plant.settle()
        states.append(Job.objects.get(pk=job.pk).state)
        raise KeyboardInterrupt  # the process is killed

    with monkeypatch.context() as broken:
        broken.setattr("datasets.storage.cache.sync_from", flush)
        with pytest.raises(KeyboardInterrupt):
            carry_out_due()
    assert states == ["running"]
    # Otherwise the killed worker's claim holds the command for half a minute.
    Command.objects.update(claim_expires_at=timezone.now() - timedelta(minutes=1))
    distrust_caches()
    assert Cache.objects.get().state == Cache.READY
    monkeypatch.setattr("datasets.storage.unflushed.machine_mark", lambda: "after the power cut")
    distrust_caches()
    cache = Cache.objects.get()
    assert (cache.state, cache.reason) == (Cache.FAILED, "not_flushed")
    assert not Path(dataset_mounts(job)[""][0][0]).exists()
    keep_caches(timezone.now() + timedelta(minutes=2))
    work()
    assert Cache.objects.get().state == Cache.READY
    assert files_of(job) == TWO


def test_a_ready_cache_that_cannot_be_flushed_is_filled_again(
    xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(UnflushedMarks, "may_add", lambda _: True)
    cache = cache_version(xray.versions.get(number=1), location_for(plant.cluster), actor=SYSTEM)
    monkeypatch.setattr(FillCache, "backoff_seconds", (0,))
    with monkeypatch.context() as broken:
        broken.setattr("datasets.storage.cache.sync_from", Mock(side_effect=OSError(errno.EIO, "lost")))
        wait_until(carry_out_due)
    cache.refresh_from_db()
    assert (cache.state, cache.reason) == ("filling", "unreachable")
    work()
    cache.refresh_from_db()
    assert (cache.state, cache.reason) == ("ready", "")


def test_a_cache_whose_files_are_gone_is_filled_again_for_the_next_job(
    people: Cast, xray: Dataset, plant: Plant, settings: Settings
):
    # The directory is the instance's own, not one on a disk of its own.
    settings.STATE_DIR = settings.CACHE_DIR.parent
    cache = cache_version(xray.versions.get(number=2), location_for(plant.cluster), actor=SYSTEM)
    work()
    Cache.objects.update(changed_at=timezone.now() - timedelta(hours=1))
    keep_caches(timezone.now())
    assert Cache.objects.get(pk=cache.pk).state == Cache.READY
    shutil.rmtree(directory_of(cache.location))
    keep_caches(timezone.now())
    cache.refresh_from_db()
    assert (cache.state, cache.reason) == (Cache.FAILED, "files_gone")
    job = submit(people)
    work()
    assert files_of(job) == TWO


@pytest.fixture
def on_a_disk(plant: Plant, tmp_path: Path) -> CacheLocation:
    """The default location in a directory that an operator named, as a mount point."""
    location = location_for(plant.cluster)
    CacheLocation.objects.filter(pk=location.pk).update(directory=str(tmp_path / "disk"))
    location.refresh_from_db()
    return location


@pytest.mark.parametrize(
    ("owner", "name", "reason"),
    # At the start it must be known which trees were flushed.
    [(UnflushedMarks, "interrupted", "unreachable"), (Path, "iterdir", "")],
)
def test_a_disk_that_does_not_answer_keeps_neither_the_loop_nor_other_locations_from_working(
    xray: Dataset,
    plant: Plant,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    owner: Any,
    name: str,
    reason: str,
):
    values = {"name": "away", "node_labels": {"zone": "b"}, "directory": str(tmp_path / "away")}
    away, local = create_location(plant.cluster, values, actor=SYSTEM), location_for(plant.cluster)
    version = xray.versions.get(number=1)
    caches = [cache_version(version, location, actor=SYSTEM) for location in (away, local)]
    work()
    (directory_of(local) / "manifests" / str(version.pk)).unlink()
    real = getattr(owner, name)

    def call(one: Any) -> Any:
        where = one if isinstance(one, Path) else one._folder
        if where.is_relative_to(directory_of(away)):
            raise OSError(errno.EIO, "Input/output error")
        return real(one)

    with monkeypatch.context() as broken:
        broken.setattr(owner, name, call)
        distrust_caches()
        keep_caches(timezone.now())
    for cache in caches:
        cache.refresh_from_db()
    assert [cache.reason for cache in caches] == [reason, "files_gone"]


def test_a_tree_that_was_not_flushed_is_not_read_though_its_disk_cannot_be_written(
    xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    cache = cache_version(xray.versions.get(number=1), location_for(plant.cluster), actor=SYSTEM)
    work()
    monkeypatch.setattr(UnflushedMarks, "interrupted", lambda _: {str(cache.version_id)})
    read_only = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr(CacheStore, "_distrust", Mock(side_effect=read_only))
    distrust_caches()
    cache.refresh_from_db()
    assert (cache.state, cache.reason) == (Cache.FAILED, "not_flushed")


def test_caches_of_a_disk_that_is_not_mounted_are_not_filled_into_its_mount_point(
    people: Cast, xray: Dataset, plant: Plant, on_a_disk: CacheLocation, tmp_path: Path
):
    cache = cache_version(xray.versions.get(number=2), on_a_disk, actor=SYSTEM)
    work()
    disk, away = tmp_path / "disk", tmp_path / "away"
    disk.rename(away)
    disk.mkdir()
    keep_caches(timezone.now())
    cache.refresh_from_db()
    assert (cache.state, cache.reason) == (Cache.FAILED, "not_mounted")
    job = submit(people)
    work()
    plant.settle()
    job.refresh_from_db()
    assert (job.state, job.reason) == ("queued", "waiting_for_data")
    assert f"The directory {directory_of(on_a_disk).name} of {on_a_disk.name} is not there" in job.message
    assert not list(disk.iterdir())
    disk.rmdir()
    away.rename(disk)
    keep_caches(timezone.now())
    work()
    cache.refresh_from_db()
    assert (cache.state, cache.reason, cache.bytes_moved) == (Cache.READY, "", 0)
    assert files_of(job) == TWO


def test_a_fill_whose_lake_is_unmounted_meanwhile_is_repeated(
    xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    cache = cache_version(xray.versions.get(number=1), location_for(plant.cluster), actor=SYSTEM)
    folder, _ = lake_address(str(xray.project_id))
    away = folder.with_name("away")

    def unmounted(*_: object) -> None:
        folder.rename(away)
        raise ContentMissing("The lake has lost content.")

    with monkeypatch.context() as broken:
        broken.setattr(CacheStore, "fill", unmounted)
        work()
    cache.refresh_from_db()
    assert (cache.state, cache.reason) == (Cache.FAILED, "not_mounted")
    away.rename(folder)
    keep_caches(timezone.now())
    work()
    assert Cache.objects.get().state == Cache.READY


def test_the_directory_of_lost_caches_is_made_again_beside_other_files(
    xray: Dataset, on_a_disk: CacheLocation
):
    cache = cache_version(xray.versions.get(number=2), on_a_disk, actor=SYSTEM)
    work()
    shutil.rmtree(directory_of(on_a_disk))
    directory_of(on_a_disk).with_name("lost+found").mkdir()
    keep_caches(timezone.now())
    cache.refresh_from_db()
    assert (cache.state, cache.reason) == (Cache.FAILED, "files_gone")


def test_a_cache_of_a_disk_that_is_not_mounted_is_removed_once_it_is(
    xray: Dataset, on_a_disk: CacheLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(EvictCache, "backoff_seconds", (0,))
    cache = cache_version(xray.versions.get(number=2), on_a_disk, actor=SYSTEM)
    work()
    disk, away = tmp_path / "disk", tmp_path / "away"
    disk.rename(away)
    clear_cache(cache, actor=SYSTEM)
    wait_until(carry_out_due)
    assert "is not there" in Command.objects.of_kinds([EVICT_CACHE]).unfinished().get().error
    away.rename(disk)
    work()
    assert not Cache.objects.exists()
    assert not list((directory_of(on_a_disk) / "trees").glob("*"))
