"""Caches of datasets: jobs that wait for them, one fill for all, aging, room, and deletion."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict, Invalid
from controlplane.actions.projects import delete_project
from controlplane.commands.dispatch import carry_out_due
from controlplane.commands.run import CommandRun
from controlplane.loop.cycle import run_cycle
from controlplane.models import Cluster, Command, Event
from datasets.actions.cache_upkeep import keep_caches
from datasets.actions.caches import (
    EVICT_CACHE,
    FILL_CACHE,
    TREE,
    cache_version,
    clear_cache,
    location_for,
    pin_cache,
)
from datasets.actions.datasets import delete_dataset, edit_dataset, tag_version
from datasets.cache_shares import Charges, charges
from datasets.command_handlers.caches import FillCache, _Reporter
from datasets.live_topics import read_dataset
from datasets.manifests import Manifest
from datasets.models import Cache, CacheLocation, Dataset, DatasetUse
from datasets.queries.caches import cache_shape, directory_of
from datasets.queries.job_data import dataset_mounts
from datasets.storage.cache import CacheStore
from datasets.storage.tree_fill import Progress
from jobs.actions import clone_body, stop_job, submit_job
from jobs.models import Pod
from tests.app.cached import LONG, ONE, TWO, files_of, submit, work
from tests.cast import Cast
from tests.datasets import make_dataset, make_version
from tests.loop.plant import Plant


def refusal(cast: Cast, **mount: Any) -> tuple[str, str, str]:
    with pytest.raises(Invalid) as refused:
        submit(cast, "refused", **mount)
    [error] = refused.value.errors
    return error.pointer, error.code, error.detail


def test_a_job_waits_for_its_dataset_and_starts_when_the_files_are_there(
    people: Cast, xray: Dataset, plant: Plant
):
    job = submit(people)
    run_cycle(plant.clock())
    job.refresh_from_db()
    assert (job.state, job.reason) == ("queued", "waiting_for_data")
    assert job.details["dataset"] == "xray@2"
    assert "xray@2 is still to be brought" in job.message
    work()
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"
    assert files_of(job) == TWO
    [pod] = Command.objects.filter(kind="start_pod")
    assert pod.payload["mounts"] == dataset_mounts(job)[""]


def fill(cache: Cache) -> None:
    command = Command.objects.get(kind=FILL_CACHE, subject_id=cache.pk)
    FillCache().on_done(command, FillCache().run(CommandRun(command, "token")))


def test_a_cache_is_ready_before_the_charges_of_all_caches_are_known(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    """They need the manifests of all caches there."""
    location = location_for(plant.cluster)
    first, second = [cache_version(one, location, actor=SYSTEM) for one in xray.versions.order_by("number")]
    fill(first)
    seen: list[tuple[str, int, int]] = []

    def charged(manifests: dict[str, Manifest]) -> Charges[str]:
        second.refresh_from_db()
        location.refresh_from_db()
        seen.append((second.state, second.charged_bytes, location.used_bytes))
        return charges(manifests)

    monkeypatch.setattr(CommandRun, "report", lambda *_: None)
    monkeypatch.setattr("datasets.command_handlers.caches.charges", charged)
    # Only what it copied is charged until then; a fill that begins meanwhile finds no room that is taken.
    fill(second)
    # As if the process had been killed before it knew them.
    Cache.objects.filter(pk=second.pk).update(charged_bytes=4)
    fill(second)
    second.refresh_from_db()
    location.refresh_from_db()
    assert seen == [("ready", 4, 7 + 4), ("ready", 4, 11)]
    assert (second.charged_bytes, location.used_bytes) == (4 + 2, 11)


def test_latest_and_tags_are_written_down_as_numbers(people: Cast, xray: Dataset):
    tag_version(xray, "golden", xray.versions.get(number=1), actor=SYSTEM)
    jobs = [submit(people, f"job-{asked}", version=asked) for asked in ("latest", "golden", "1")]
    make_version(xray, {"c": "new"})
    assert [job.spec["datasets"][0]["version"] for job in jobs] == [2, 1, 1]
    assert [job.spec["datasets"][0]["asked"] for job in jobs] == ["latest", "golden", "1"]
    again = submit_job(people.project, clone_body(jobs[0], "again"), actor=people.actor("ben"))
    assert again.spec["datasets"][0]["version"] == 2


def test_what_cannot_be_mounted_is_refused_with_what_there_is(people: Cast, xray: Dataset):
    make_version(make_dataset(people.other, "secret"), ONE)
    make_version(make_dataset(people.other, "atlas", is_shared=True), ONE)
    tag_version(xray, "golden", xray.versions.get(number=1), actor=SYSTEM)
    pointer, code, detail = refusal(people, dataset="x-ray")
    assert (pointer, code) == ("/datasets/0/dataset", "dataset_unknown")
    assert "There are: xray, team-b/atlas." in detail
    assert refusal(people, dataset="team-b/secret")[1] == "dataset_unknown"
    assert refusal(people, dataset="secret")[1] == "dataset_unknown"
    pointer, code, detail = refusal(people, version="9")
    assert (pointer, code) == ("/datasets/0/version", "dataset_version_unknown")
    assert "numbers 1 to 2 and the tags golden" in detail
    assert refusal(people, mount_path="/")[:2] == ("/datasets/0/mount_path", "mounts_over_root")
    assert refusal(people, mount_path="data")[:2] == ("/datasets/0/mount_path", "not_an_absolute_path")
    assert refusal(people, colour="red")[:2] == ("/datasets/0/colour", "unknown_field")
    assert not DatasetUse.objects.exists()
    shared = submit(people, "shared", dataset="team-b/atlas")
    assert shared.spec["datasets"][0]["dataset"] == "team-b/atlas"


def test_clusters_whose_pods_cannot_mount_datasets_say_so(people: Cast, xray: Dataset):
    people.project.cluster.engine = "kubernetes"
    assert refusal(people)[:2] == ("/datasets", "datasets_not_supported")


def test_two_requests_for_one_cache_make_one_fill(people: Cast, xray: Dataset, plant: Plant):
    location = location_for(plant.cluster)
    version = xray.versions.get(number=2)
    cache = cache_version(version, location, actor=people.actor("ana"))
    assert cache_version(version, location, actor=people.actor("ben")).pk == cache.pk
    submit(people, cached=True)
    assert Command.objects.filter(kind=FILL_CACHE).count() == 1
    work()
    submit(people, "second", cached=True)
    cache.refresh_from_db()
    assert (cache.state, cache.hits) == ("ready", 1)
    assert Command.objects.filter(kind=FILL_CACHE).count() == 1


def test_a_job_is_one_hit_whatever_its_pods_attempts_and_mounts(people: Cast, xray: Dataset, plant: Plant):
    location = location_for(plant.cluster)
    cache = cache_version(xray.versions.get(number=2), location, actor=SYSTEM)
    work()
    mounts = [{"dataset": "xray", "mount_path": path, "cached": True} for path in ("/data", "/again")]
    body = {"name": "job", "kind": "elastic", "image": "quickstart", "gpus": 1, "datasets": mounts}
    sizes = {"workers": 3, "min_workers": 1, "max_workers": 4, "retries": 2}
    job = submit_job(people.project, body | sizes, actor=people.actor("ana"))
    plant.settle()
    for name in Pod.objects.values_list("name", flat=True):
        plant.engine.finish(name, 1)
    plant.settle()
    plant.in_seconds(60)
    job.refresh_from_db()
    assert (job.state, job.attempt) == ("running", 2)
    cache.refresh_from_db()
    assert cache.hits == 1
    submit(people, "next")
    cache.refresh_from_db()
    assert cache.hits == 2


def test_content_that_versions_share_is_stored_once_and_charged_in_parts(
    people: Cast, xray: Dataset, plant: Plant
):
    location = location_for(plant.cluster)
    caches = [cache_version(version, location, actor=SYSTEM) for version in xray.versions.order_by("number")]
    work()
    for cache in caches:
        cache.refresh_from_db()
    location.refresh_from_db()
    # "one" + "same" + "two!", of which "same" is shared
    assert location.used_bytes == sum(cache.bytes_moved for cache in caches) == 3 + 4 + 4
    assert [cache.charged_bytes for cache in caches] == [3 + 2, 4 + 2]
    assert [cache_shape(cache)["sharing"] for cache in caches] == ["copy", "copy"]
    assert caches[1].bytes_done == cache_shape(caches[1])["progress"]["total_bytes"] == 8
    trees = [directory_of(location) / "trees" / str(cache.version_id) / "b" for cache in caches]
    assert trees[0].stat().st_ino == trees[1].stat().st_ino
    clear_cache(caches[0], actor=SYSTEM)
    work()
    location.refresh_from_db()
    assert location.used_bytes == 8
    assert not trees[0].exists()
    assert trees[1].read_text() == "same"
    assert len([path for path in trees[1].parent.iterdir() if path.is_file()]) == 2


def test_what_an_unfinished_job_wants_is_neither_cleared_nor_deleted(
    people: Cast, xray: Dataset, plant: Plant
):
    job = submit(people, cached=True)
    cache = Cache.objects.get()
    with pytest.raises(Conflict, match="used by job job"):
        clear_cache(cache, actor=people.actor("ana"))
    with pytest.raises(Conflict, match="used by job job; delete it afterwards"):
        delete_dataset(xray, actor=people.actor("ana"))
    work()
    Cache.objects.update(used_at=timezone.now() - timedelta(days=9))
    keep_caches(timezone.now())
    work()
    assert Cache.objects.get().state == "ready"
    stop_job(job, actor=people.actor("ana"))
    Cache.objects.update(used_at=timezone.now() - timedelta(days=9))
    keep_caches(timezone.now())
    work()
    assert not Cache.objects.exists()
    delete_dataset(xray, actor=people.actor("ana"))


def test_a_pinned_cache_does_not_age_and_one_for_a_job_alone_goes_soon(
    people: Cast, xray: Dataset, plant: Plant
):
    location = location_for(plant.cluster)
    pinned = cache_version(xray.versions.get(number=1), location, actor=SYSTEM)
    pin_cache(pinned, True, actor=SYSTEM)
    job = submit(people)
    work()
    stop_job(job, actor=SYSTEM)
    long_ago = timezone.now() - timedelta(hours=1)
    Cache.objects.update(used_at=long_ago)
    keep_caches(timezone.now())
    work()
    assert [cache.pk for cache in Cache.objects.all()] == [pinned.pk]
    Cache.objects.update(used_at=timezone.now() - timedelta(days=30))
    keep_caches(timezone.now())
    assert Cache.objects.get().state == "ready"
    pin_cache(pinned, False, actor=SYSTEM)
    keep_caches(timezone.now() + timedelta(days=2))
    work()
    assert not Cache.objects.exists()


def test_a_cache_that_is_pinned_while_the_old_ones_are_chosen_stays(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    cache = cache_version(xray.versions.get(number=1), location_for(Cluster.objects.get()), actor=SYSTEM)
    work()

    def pinned_meanwhile(*_: object) -> list[str]:
        pin_cache(cache, True, actor=SYSTEM)
        return [str(cache.pk)]

    monkeypatch.setattr("datasets.actions.cache_upkeep.too_old", pinned_meanwhile)
    keep_caches(plant.clock())
    assert Cache.objects.get().state == Cache.READY
    clear_cache(cache, actor=SYSTEM)
    assert Cache.objects.get().state == Cache.EVICTING


def test_a_cache_that_does_not_fit_takes_the_place_of_the_oldest_or_says_what_is_missing(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(FillCache, "backoff_seconds", (0,))
    location = location_for(plant.cluster)
    CacheLocation.objects.update(room_bytes=10)
    old = cache_version(xray.versions.get(number=1), location, actor=SYSTEM)
    work()
    make_version(xray, {"c": "8 bytes."})
    new = cache_version(xray.versions.get(number=3), location, actor=SYSTEM)
    work()
    assert not Cache.objects.filter(pk=old.pk).exists()
    new.refresh_from_db()
    assert new.state == "ready"
    make_version(xray, {"c": "more than ten bytes"})
    too_large = cache_version(xray.versions.get(number=4), location, actor=SYSTEM)
    work()
    too_large.refresh_from_db()
    assert (too_large.state, too_large.reason) == ("failed", "no_room")
    assert "19 B are needed" in too_large.message
    new.refresh_from_db()
    assert new.state == "ready"


def test_a_job_whose_dataset_is_gone_ends_with_the_reason(people: Cast, xray: Dataset, plant: Plant):
    make_version(make_dataset(people.other, "atlas", is_shared=True), ONE)
    unshared = submit(people, "unshared", dataset="team-b/atlas")
    job = submit(people)
    edit_dataset(Dataset.objects.get(name="atlas"), {"is_shared": False}, actor=SYSTEM)
    # as the deletion of its project does it
    Dataset.objects.filter(pk=xray.pk).delete()
    run_cycle(plant.clock())
    assert plant.states() == {"job": "queued", "unshared": "queued"}
    keep_caches(timezone.now())
    for each, name in ((job, "xray@2"), (unshared, "team-b/atlas@1")):
        each.refresh_from_db()
        assert (each.state, each.reason) == ("failed", "dataset_gone")
        assert each.message.startswith(f"{name}: A dataset that it mounts was deleted")


def test_files_of_a_deleted_dataset_are_removed(people: Cast, xray: Dataset, plant: Plant):
    location = location_for(plant.cluster)
    cache_version(xray.versions.get(number=1), location, actor=SYSTEM)
    work()
    delete_dataset(xray, actor=SYSTEM)
    keep_caches(timezone.now())
    work()
    assert [
        path for path in directory_of(location).rglob("*") if path.is_file() and path.parent.name != "locks"
    ] == []


def test_a_cache_that_is_cleared_while_a_new_job_wants_it_is_filled_again(
    people: Cast, xray: Dataset, plant: Plant
):
    location = location_for(plant.cluster)
    cache = cache_version(xray.versions.get(number=2), location, actor=SYSTEM)
    work()
    clear_cache(cache, actor=SYSTEM)
    job = submit(people)
    run_cycle(plant.clock())
    job.refresh_from_db()
    assert job.reason == "waiting_for_data"
    work()
    plant.settle()
    job.refresh_from_db()
    assert job.state == "running"
    assert files_of(job) == TWO


def test_a_cache_that_a_person_requests_while_it_is_removed_is_filled_again(
    people: Cast, xray: Dataset, plant: Plant
):
    version, location = xray.versions.get(number=2), location_for(plant.cluster)
    cache = cache_version(version, location, actor=SYSTEM)
    work()
    clear_cache(cache, actor=SYSTEM)
    assert cache_version(version, location, actor=SYSTEM).state == Cache.QUEUED
    work()
    cache.refresh_from_db()
    assert cache.state == Cache.READY
    assert (directory_of(location) / "trees" / str(version.pk)).is_dir()


def test_how_large_files_came_is_known_also_after_a_fill_that_was_killed_at_once(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    make_version(xray, {"large": "x" * (1 << 20)})
    cache = cache_version(xray.versions.get(number=3), location_for(plant.cluster), actor=SYSTEM)
    with monkeypatch.context() as broken:

        def end(*names: object) -> None:
            raise KeyboardInterrupt

        broken.setattr("datasets.storage.cache.CacheStore._share", end)
        with pytest.raises(KeyboardInterrupt):
            carry_out_due()
    cache.refresh_from_db()
    assert cache.sharing in ("reflink", "hard_link", "copy")


def test_a_fill_shows_its_progress_on_the_feed(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("datasets.command_handlers.caches.REPORT_SECONDS", 0)
    seen: list[dict[str, Any]] = []
    append = Event.objects.append

    def note(events: list[Event]) -> int:
        if any(event.kind == "cache.progressed" for event in events):
            reading = read_dataset(str(xray.pk), people.project.pk)
            assert reading is not None
            seen.extend(reading.state["caches"].values())
        return append(events)

    cache = cache_version(xray.versions.get(number=2), location_for(plant.cluster), actor=SYSTEM)
    monkeypatch.setattr(Event.objects, "append", note)
    work()
    assert {row["state"] for row in seen} == {"filling"}
    assert seen[-1]["progress"]["bytes"] == 8
    assert seen[-1]["progress"]["eta_seconds"] == 0
    kinds = Event.objects.filter(kind__startswith="cache.", data__cache=str(cache.pk)).order_by("seq")
    found = list(dict.fromkeys(kinds.values_list("kind", flat=True)))
    assert found == ["cache.requested", "cache.filling", "cache.progressed", "cache.ready"]


def test_what_an_earlier_fill_left_is_not_in_the_rate_of_the_next(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    """After a worker was killed, 90 % seemed to come within a second, and the rest to be seconds away."""
    monkeypatch.setattr("datasets.command_handlers.caches.REPORT_SECONDS", 0)
    monkeypatch.setattr(CommandRun, "report", lambda *_: None)
    cache = cache_version(xray.versions.get(number=2), location_for(plant.cluster), actor=SYSTEM)
    Cache.objects.update(state="filling")
    report = _Reporter(CommandRun(Command.objects.get(kind=FILL_CACHE), "token"), cache)
    report._began -= 10
    report(Progress(files=9, bytes_done=9_000, bytes_moved=500))
    cache.refresh_from_db()
    assert cache.bytes_done == 9_000
    assert 0 < cache.bytes_per_second <= 50


def test_a_cache_that_is_cleared_while_it_is_filled_leaves_nothing(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("datasets.command_handlers.caches.REPORT_SECONDS", 0)
    cache = cache_version(xray.versions.get(number=2), location_for(plant.cluster), actor=SYSTEM)
    report = CommandRun.report

    def clear_first(run: CommandRun, *progress: Any) -> None:
        if Cache.objects.filter(state="filling").exists():
            clear_cache(cache, actor=SYSTEM)
        report(run, *progress)

    monkeypatch.setattr(CommandRun, "report", clear_first)
    work()
    assert not Cache.objects.exists()
    assert not (directory_of(cache.location) / "trees" / str(cache.version_id)).exists()
    states = Command.objects.of_kinds(LONG).order_by("pk").values_list("kind", "state")
    assert list(states) == [(FILL_CACHE, "cancelled"), (EVICT_CACHE, "done")]


def test_an_order_to_remove_that_comes_late_leaves_a_cache_that_was_filled_again(
    people: Cast, xray: Dataset, plant: Plant
):
    cache = cache_version(xray.versions.get(number=2), location_for(plant.cluster), actor=SYSTEM)
    work()
    payload = {"location": cache.location_id, "key": str(cache.version_id)}
    Command.objects.create(kind=EVICT_CACHE, subject_kind=TREE, subject_id="late", payload=payload)
    work()
    cache.refresh_from_db()
    assert cache.state == Cache.READY
    assert (directory_of(cache.location) / "trees" / str(cache.version_id)).is_dir()


def test_a_cluster_with_the_name_of_a_detached_one_has_a_location_of_its_own(people: Cast, plant: Plant):
    old = location_for(plant.cluster)
    Cluster.objects.filter(pk=plant.cluster.pk).update(detached_at=timezone.now())
    new = location_for(Cluster.objects.create(name=plant.cluster.name, engine="memory", settings={}))
    assert (new.name, new.pk != old.pk) == (plant.cluster.name, True)
    assert CacheLocation.objects.filter(pk=old.pk).exists()


def test_the_mounts_of_further_pods_of_a_job_cost_no_query(
    people: Cast, xray: Dataset, plant: Plant, django_assert_num_queries: Any
):
    job = submit(people)
    first = dataset_mounts(job)
    with django_assert_num_queries(0):
        assert dataset_mounts(job) == first
    assert not directory_of(location_for(plant.cluster)).exists()


def test_a_project_whose_datasets_other_projects_mount_is_not_deleted(people: Cast, xray: Dataset):
    edit_dataset(xray, {"is_shared": True}, actor=SYSTEM)
    submit(people, project=people.other, dataset="team-a/xray")
    with pytest.raises(Conflict, match="a job of team-b"):
        delete_project(people.project, actor=people.actor("root"))


def test_a_pass_of_the_upkeep_opens_the_store_of_each_location_once(
    people: Cast, xray: Dataset, plant: Plant, monkeypatch: pytest.MonkeyPatch
):
    location, opened, real = location_for(plant.cluster), list[Path](), CacheStore.__init__
    cache = cache_version(xray.versions.get(number=1), location, actor=SYSTEM)
    work()

    def open_store(store: CacheStore, root: Path) -> None:
        opened.append(root)
        real(store, root)

    monkeypatch.setattr(CacheStore, "__init__", open_store)
    keep_caches(timezone.now())
    cache.refresh_from_db()
    assert (opened, cache.state) == ([directory_of(location)], Cache.READY)
