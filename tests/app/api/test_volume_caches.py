"""Caches on volumes of projects in a Kubernetes cluster: moves, rights, and manifests that are lost."""

from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict
from controlplane.actions.projects import edit_project
from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Cluster, Command, Event, Membership, Project
from datasets.actions.caches import EVICT_CACHE, FILL_CACHE, cache_version, clear_cache, location_for
from datasets.actions.volumes import create_volume
from datasets.models import Cache, CacheLocation, Dataset, DatasetVersion, Volume
from datasets.storage.base import Blocked
from datasets.storage.claims import CacheTask
from tests.builders import make_cluster
from tests.cast import Cast
from tests.datasets import make_dataset, make_version
from tests.volumes import make_snapshot, make_volume
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_lakes", "own_volumes")]
STATED = {"cache_storage_class": "nfs", "control_url": "http://control:8000", "default_image": "python:3"}


class Engine:
    """Carries every task out at once."""

    def caches(self, project: str, claim: Any) -> "Engine":
        return self

    def run(self, task: CacheTask, budget: Any, report: Any = None) -> Sequence[str]:
        return task.keep


@pytest.fixture
def dataset(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """A dataset of team-a, whose cluster keeps caches on volumes of its projects."""
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes", settings=STATED)
    monkeypatch.setattr("datasets.cache_volumes.engine_for", lambda cluster: Engine())
    for project in (cast.project, cast.other):
        project.refresh_from_db()
    dataset = make_dataset(cast.project)
    make_version(dataset, {"a": "one"})
    return dataset


def cached(version: DatasetVersion, cast: Cast) -> Cache:
    return cache_version(version, location_for(cast.project.cluster, cast.project), actor=SYSTEM)


def work() -> None:
    long = Command.objects.of_kinds((FILL_CACHE, EVICT_CACHE))
    wait_until(lambda: not (carry_out_due() or long.unfinished().exists()), what="the work on caches")


def refused_move(cast: Cast, target: Cluster) -> str:
    with pytest.raises(Conflict) as refused:
        edit_project(cast.project, {"cluster": target}, actor=cast.actor("root"))
    assert refused.value.code == "project_has_volumes"
    cast.project.refresh_from_db()
    assert cast.project.cluster != target
    return refused.value.detail


def test_a_volume_is_not_made_of_a_project_that_has_moved_meanwhile(cast: Cast) -> None:
    second, stale = make_cluster("second", nodes=0), Project.objects.get(pk=cast.project.pk)
    edit_project(cast.project, {"cluster": second}, actor=cast.actor("root"))
    with pytest.raises(Conflict) as refused:
        create_volume(stale, {"name": "late", "size": 1 << 20}, actor=cast.actor("ben"))
    assert refused.value.code == "project_moved"
    assert not Volume.objects.exists()


@pytest.mark.skipif(not connection.features.has_select_for_update, reason="SQLite has one writer at a time")
def test_a_move_holds_the_project_before_it_looks_for_volumes(cast: Cast) -> None:
    second = make_cluster("second", nodes=0)
    with CaptureQueriesContext(connection) as asked:
        edit_project(cast.project, {"cluster": second}, actor=cast.actor("root"))
    statements = [one["sql"] for one in asked]
    held = next(
        place for place, sql in enumerate(statements) if "FOR NO KEY UPDATE" in sql and "_project" in sql
    )
    assert held < next(place for place, sql in enumerate(statements) if "datasets_volume" in sql)


def test_a_project_with_volumes_or_snapshots_does_not_move(cast: Cast) -> None:
    volume, second = make_volume(cast.project), make_cluster("second", nodes=0)
    make_snapshot(volume)
    detail = refused_move(cast, second)
    assert "1 volumes and 1 snapshots" in detail
    assert "delete them first" in detail
    cast.project.volumes.all().delete()
    assert "0 volumes and 1 snapshots" in refused_move(cast, second)
    assert not Command.objects.filter(kind=Command.FORGET_PROJECT).exists()
    # A removal may never end where the cluster is gone: the move is the way out.
    cast.project.snapshots.update(state="deleting")
    edit_project(cast.project, {"cluster": second}, actor=cast.actor("root"))


def test_a_move_fails_the_caches_on_the_volume_that_goes(cast: Cast, dataset: Dataset) -> None:
    ready = cached(dataset.versions.get(), cast)
    work()
    queued = cached(make_version(dataset, {"a": "two"}), cast)
    first, second = cast.project.cluster, make_cluster("second", nodes=0)
    foreign = location_for(first, cast.other)
    CacheLocation.objects.filter(pk=foreign.pk).update(kept_keys=["x"])
    assert Cache.objects.get(pk=ready.pk).state == Cache.READY
    for target in (second, first):
        edit_project(cast.project, {"cluster": target}, actor=cast.actor("root"))
        Command.objects.filter(kind=Command.FORGET_PROJECT).update(state="done")
    for cache in (ready, queued):
        cache.refresh_from_db()
        assert (cache.state, cache.reason) == (Cache.FAILED, "project_moved")
        assert "moved" in cache.message
    location = CacheLocation.objects.get(pk=ready.location_id)
    assert (location.kept_keys, location.used_bytes) == ([], 0)
    assert CacheLocation.objects.get(pk=foreign.pk).kept_keys == ["x"]
    assert Event.objects.filter(kind="cache.failed").count() == 2
    assert not Command.objects.of_kinds([FILL_CACHE]).unfinished().exists()
    assert cached(dataset.versions.get(number=1), cast).state == Cache.QUEUED


def test_the_volume_of_a_project_is_for_its_members_to_fill(api: Any, cast: Cast, dataset: Dataset) -> None:
    shared = make_version(make_dataset(cast.other, "atlas", is_shared=True), {"b": "two"})
    location = location_for(cast.project.cluster, cast.project)
    body = {"version_id": str(shared.pk), "location": location.name}
    membership = Membership.objects.create(project=cast.project, user=cast.chi, role="viewer")
    refused = api("chi").post("caches", body)
    assert (refused.status, "member in team-a" in refused.body["detail"]) == (403, True)
    assert not Cache.objects.exists()
    Membership.objects.filter(pk=membership.pk).update(role="member")
    assert api("chi").post("caches", body).status == 201


def test_a_version_goes_to_no_cluster_with_volumes_that_its_project_is_not_in(
    api: Any, cast: Cast, dataset: Dataset
) -> None:
    make_cluster("second", "kubernetes", nodes=0)
    Cluster.objects.filter(name="second").update(settings=STATED)
    body = {"version_id": str(dataset.versions.get().pk)}
    left = location_for(cast.project.cluster, cast.project).name
    refused = api("ben").post("caches", {**body, "location": "second"})
    assert [(one["pointer"], one["code"]) for one in refused.body["errors"]] == [("/location", "no_location")]
    cast.project.cluster = Cluster.objects.get(name="second")
    cast.project.save()
    refused = api("ben").post("caches", {**body, "location": left})
    assert [(one["pointer"], one["code"]) for one in refused.body["errors"]] == [("/location", "no_location")]
    assert api("ben").post("caches", {**body, "location": "second"}).body["location"] == "second.team-a"


def test_a_manifest_that_is_lost_keeps_no_other_cache_from_being_filled(cast: Cast, dataset: Dataset) -> None:
    lost, kept = cached(dataset.versions.get(), cast), cached(make_version(dataset, {"a": "two"}), cast)
    work()
    DatasetVersion.objects.filter(pk=lost.version_id).update(manifest="0" * 64)
    Cache.objects.filter(pk=kept.pk).update(state=Cache.FAILED)
    cached(kept.version, cast)
    work()
    kept.refresh_from_db()
    assert (kept.state, kept.message, kept.charged_bytes) == (Cache.READY, "", 3)


@pytest.mark.parametrize("kind", [FILL_CACHE, EVICT_CACHE])
def test_a_lake_that_is_away_when_charges_are_counted_is_the_reason(
    cast: Cast, dataset: Dataset, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cache = cached(dataset.versions.get(), cast)
    if kind == EVICT_CACHE:
        work()
        clear_cache(cache, actor=SYSTEM)

    def refuse(manifests: object) -> None:
        raise Blocked("unreachable", "The bucket does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr("datasets.command_handlers.caches.charges", refuse)
        wait_until(carry_out_due, what="the try that is refused")
    assert Command.objects.get(kind=kind).error == "The bucket does not answer."


def test_verify_names_the_caches_that_it_cannot_read(api: Any, cast: Cast, dataset: Dataset) -> None:
    version = dataset.versions.get()
    cached(version, cast)
    work()
    foreign = location_for(cast.project.cluster, cast.other)
    cache_version(version, foreign, actor=SYSTEM)
    work()
    found = api("ben").post(f"versions/{version.pk}/verify").body
    # The volume of another project is not named.
    assert (found["is_intact"], found["unread_caches"]) == (True, ["memory.team-a"])
    Cache.objects.update(state=Cache.FAILED)
    assert api("ben").post(f"versions/{version.pk}/verify").body["unread_caches"] == []
