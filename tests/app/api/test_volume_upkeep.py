"""Volumes, snapshots, caches and imports over time: what must hold when rows, classes and room go."""

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from controlplane.commands.dispatch import carry_out_due
from controlplane.commands.errors import CommandRefused
from controlplane.models import AuditEntry, Command, Event
from datasets.actions.caches import location_for
from datasets.actions.snapshot_events import remove_old_snapshots, snapshot_on_schedule
from datasets.actions.volumes import volume_failed
from datasets.command_handlers import caches as cache_handlers
from datasets.loop_steps import STEPS
from datasets.models import Cache, CacheLocation, CodeImport, Volume
from datasets.queries.caches import store_of
from datasets.queries.lake import manifest_named
from datasets.storage.base import Blocked
from datasets.storage.classes import storage_classes
from datasets.storage.volumes import FolderVolumes
from jobs.models import Job
from tests.builders import make_job
from tests.datasets import make_dataset, make_version
from tests.volumes import directory_of, make_snapshot, make_volume, read, work
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_volumes", "own_lakes")]
NEW = {"new": {"storage_class": "standard", "size": "1Gi", "name": "state"}, "mount_path": "/mnt"}


def run_steps(*names: str) -> None:
    """Run steps of the loop, of those that there are."""
    for step in STEPS:
        if step.name in names:
            step.run(None)  # type: ignore[arg-type]  # the steps used here need no time


def submitted(api: Any, **fields: Any) -> Any:
    body = {"name": "train1", "kind": "train", "command": ["true"], **fields}
    return api("ben").post("projects/team-a/jobs", body)


def test_the_number_of_a_deleted_snapshot_is_not_used_again(api, cast):
    volume = make_volume(cast.project)
    make_snapshot(volume)
    newest = make_snapshot(volume)
    api("ana").delete(f"snapshots/{newest.pk}")
    work()
    assert str(make_snapshot(volume)) == "data@3"
    volume.snapshots.all().delete()
    assert str(make_snapshot(volume)) == "data@4"


@pytest.mark.parametrize("kind", ["volumes", "snapshots"])
def test_a_refused_removal_shows_why_and_is_repeated_until_it_is_done(api, cast, monkeypatch, kind):
    volume = make_volume(cast.project)
    path = f"volumes/{volume.pk}" if kind == "volumes" else f"snapshots/{make_snapshot(volume).pk}"

    def refuse(*_: Any) -> None:
        raise Blocked("in_use", "A clone depends on it.", is_passing=False)

    with monkeypatch.context() as patch:
        patch.setattr(FolderVolumes, "_remove", refuse)
        api("ana").delete(path)
        wait_until(carry_out_due, what="the try that is refused")
    status = api("ana").get(path).body["status"]
    shown = (status["state"], status["reason"], status["message"])
    assert shown == ("deleting", "in_use", "A clone depends on it.")
    assert Event.objects.filter(kind=f"{kind[:-1]}.not_removed").count() == 1
    Command.objects.unfinished().update(not_before=timezone.now())
    work()
    assert api("ana").get(path).status == 404


def test_a_job_ends_with_the_reason_when_its_new_volume_cannot_be_made(api, cast):
    job = Job.objects.get(pk=submitted(api, volumes=[NEW]).body["id"])
    volume_failed(str(Volume.objects.get().pk), "disk_full", "The disk is full.")
    run_steps("volumes-failed")
    job.refresh_from_db()
    assert (job.state, job.reason) == ("failed", "volume_failed")
    assert "state" in job.message
    assert "The disk is full." in job.message


def test_volumes_that_a_submission_creates_are_audited_and_in_the_event_log(api):
    submitted(api, volumes=[NEW])
    key = str(Volume.objects.get().pk)
    assert AuditEntry.objects.get(verb="volume.create", object_name=key).actor == "ben"
    assert Event.objects.get(kind="volume.created").data["volume"] == key


def test_snapshots_are_taken_by_the_clock_once_per_period_and_kept_by_rules(api, cast):
    volume, now = make_volume(cast.project, files={"a": "a"}), timezone.now()
    path, ana = f"volumes/{volume.pk}", api("ana")
    assert ana.patch(path, {"snapshot_minutes": 60}).body["errors"][0]["code"] == "schedule_without_rule"
    assert ana.patch(path, {"snapshot_minutes": 2, "keep_last": 2}).status == 400
    shown = ana.patch(path, {"snapshot_minutes": 60, "keep_last": 2}).body
    assert shown["snapshot_minutes"] == 60
    for hours in (0.5, 1.1, 1.2, 2.2, 9, 9.1):
        snapshot_on_schedule(now + timedelta(hours=hours))
        work()
    remove_old_snapshots()
    work()
    rows = volume.snapshots.order_by("number").values_list("number", "cause_rows__cause", "state")
    assert list(rows) == [(2, "schedule", "ready"), (3, "schedule", "ready")]
    assert ana.patch(path, {"snapshot_minutes": None}).body["next_snapshot_at"] is None
    snapshot_on_schedule(now + timedelta(days=9))
    assert volume.snapshots.count() == 2


def test_scheduled_snapshots_do_not_pile_up_and_none_is_lost_with_its_process(api, cast, monkeypatch):
    volume, now = make_volume(cast.project, files={"a": "a"}), timezone.now()
    api("ana").patch(f"volumes/{volume.pk}", {"snapshot_minutes": 60, "keep_last": 2})
    with monkeypatch.context() as patch:
        patch.setattr("datasets.actions.snapshot_events.take_snapshot", lambda *_, **__: sys.exit())
        with pytest.raises(SystemExit):
            snapshot_on_schedule(now + timedelta(hours=2))
    for hours in (2, 4, 6):
        snapshot_on_schedule(now + timedelta(hours=hours))
    assert volume.snapshots.count() == 1
    work()
    snapshot_on_schedule(now + timedelta(hours=8))
    assert volume.snapshots.count() == 2


def test_only_owners_change_which_snapshots_are_kept(api, cast):
    path = f"volumes/{make_volume(cast.project).pk}"
    assert api("ben").patch(path, {"keep_last": 3}).status == 403
    assert api("ana").patch(path, {"keep_last": 3}).body["keep_last"] == 3


def test_a_shared_cache_names_no_user_of_another_project(api, cast):
    dataset = make_dataset(cast.other, "atlas", is_shared=True)
    make_version(dataset, {"a": "1"})
    mount = {"dataset": "team-b/atlas", "version": "1", "mount_path": "/data"}
    make_job(cast.project, "train1", cast.ben, datasets=[mount])
    [shown] = api("chi").get("caches").body["results"]
    assert shown["created_by"] == "team-a"


def test_a_project_has_a_bounded_number_of_imports_under_way(api, cast, settings):
    settings.GIT_SOURCES = ["https://example.org"]
    body = {"url": "https://example.org/x", "ref": "main"}
    CodeImport.objects.bulk_create(CodeImport(project=cast.project, **body) for _ in range(20))
    refused = api("ben").post("projects/team-a/code-imports", body)
    assert (refused.status, refused.code) == (409, "too_many_imports")
    CodeImport.objects.update(state="failed")
    assert api("ben").post("projects/team-a/code-imports", body).status in (201, 202)


def test_volumes_of_a_class_that_is_configured_no_more_stay_where_they_are(cast, settings, tmp_path):
    settings.STORAGE_CLASSES = storage_classes({"nvme": {"directory": str(tmp_path / "nvme")}}, tmp_path)
    volume = make_volume(cast.project, files={"a": "a"}, storage_class="nvme")
    run_steps("storage-classes")
    settings.STORAGE_CLASSES = storage_classes({"standard": {}}, tmp_path)
    assert read(volume) == {"a": "a"}
    assert directory_of(volume).is_relative_to(tmp_path / "nvme")


def test_two_fills_at_once_do_not_both_take_the_last_room(cast):
    location = location_for(cast.project.cluster)
    CacheLocation.objects.filter(pk=location.pk).update(room_bytes=1000)
    dataset = make_dataset(cast.project)
    versions = [make_version(dataset, {"a": text * 700}) for text in "xy"]
    first, second = (
        Cache.objects.create(version=version, location=location, state=Cache.FILLING, created_by="ben")
        for version in versions
    )
    assert reserve(first) is None
    assert reserve(second) == "making_room"
    # both are tried again, such as after a crash
    Cache.objects.update(reserved_bytes=700)
    assert [cache_handlers._begin(one) for one in (first, second)] == [True, True]
    assert reserve(first) is None
    assert reserve(second) == "making_room"
    Cache.objects.filter(pk=first.pk).update(state=Cache.FAILED)
    assert reserve(second) is None


def test_what_a_fill_has_written_is_not_counted_twice(cast, monkeypatch):
    location, dataset = location_for(cast.project.cluster), make_dataset(cast.project)
    wanted = {"location": location, "state": Cache.FILLING, "created_by": "ben"}
    versions = [make_version(dataset, {"a": text}) for text in ("x" * 700, "y" * 250)]
    Cache.objects.create(version=versions[0], reserved_bytes=700, bytes_moved=600, **wanted)
    second = Cache.objects.create(version=versions[1], **wanted)
    disk = SimpleNamespace(free=349)
    monkeypatch.setattr("datasets.queries.caches.shutil.disk_usage", lambda _: disk)
    assert reserve(second) == "making_room"
    disk.free = 350
    assert reserve(second) is None


def test_a_fill_waits_for_a_lake_that_is_away():
    handler, tried = cache_handlers.FillCache(), Command(kind=cache_handlers.FILL_CACHE, tries=99)
    assert handler.may_retry(tried, CommandRefused("unreachable", "", is_passing=True))
    assert not handler.may_retry(tried, CommandRefused("engine_error", ""))


def reserve(cache: Cache) -> str | None:
    """Reserve the room that a fill needs, as its handler does; return the refusal's code."""
    manifest = manifest_named(cache.version.dataset.project, cache.version.manifest)
    try:
        cache_handlers._make_room(cache, store_of(cache.location), manifest)
    except CommandRefused as refused:
        return refused.code
    return None
