"""The lake, which may be a bucket or be locked by a collection, and the disks of cache locations, which may be mounted,
are used before the transaction of a request: on SQLite all other writers would wait for them."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from controlplane.access import SYSTEM
from datasets.actions.caches import cache_version, location_for
from datasets.models import Cache, CacheLocation, Dataset
from datasets.queries.lake import lake_of
from tests.app.api.test_datasets import FILES, sent
from tests.app.cached import work
from tests.builders import make_cluster
from tests.cast import Cast
from tests.datasets import make_dataset, make_version

pytestmark = pytest.mark.django_db
CALLS = ("in_use", "keep_of", "manifest", "put_manifest", "renew_manifest")


@pytest.fixture
def dataset(own_lakes, cast) -> Dataset:
    return make_dataset(cast.project)


@pytest.fixture
def calls(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Fixture: the calls of the dataset's lake, each with whether a transaction of the request was open."""
    lake, outside = lake_of(dataset.project), len(connection.atomic_blocks)
    made: list[tuple[str, bool]] = []

    def watch(name: str) -> Any:
        real = getattr(lake, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made.append((name, len(connection.atomic_blocks) > outside))
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        monkeypatch.setattr(lake, name, watch(name))
    return made


@pytest.mark.parametrize("headers", [{}, {"idempotency_key": "k1"}])
def test_a_version_is_read_before_the_transaction_that_creates_it(api, dataset, calls, headers):
    ben = api("ben")
    manifest = sent(ben, dataset, FILES)
    calls.clear()
    path, body = f"datasets/{dataset.pk}/versions", {"manifest": manifest, "parent": 0}
    assert ben.post(path, body, **headers).status == 201
    assert {name for name, _ in calls} >= {"in_use", "keep_of", "renew_manifest"}
    assert not [name for name, is_inside in calls if is_inside]


def test_a_subset_is_stored_before_the_transaction_that_saves_it(api, dataset, calls):
    version = make_version(dataset, FILES)
    calls.clear()
    made = api("ben").post(f"versions/{version.pk}/subsets", {"name": "some", "include": ["a*"]})
    assert made.status == 201
    assert {name for name, _ in calls} >= {"in_use", "put_manifest"}
    assert not [name for name, is_inside in calls if is_inside]


def test_a_repeated_commit_gets_its_first_answer_though_the_dataset_has_moved(api, dataset):
    ben = api("ben")
    path, body = f"datasets/{dataset.pk}/versions", {"manifest": sent(ben, dataset, FILES), "parent": 0}
    first = ben.post(path, body, idempotency_key="k1")
    make_version(dataset, {"z": "zeta"})
    again = ben.post(path, body, idempotency_key="k1")
    assert (again.status, again.body) == (201, first.body)
    refused = [ben.post(path, body, idempotency_key="k2") for _ in range(2)]
    assert [(one.status, one.code) for one in refused] == [(409, "parent_moved")] * 2
    assert refused[1].headers["Idempotency-Replayed"] == "true"


def test_a_refused_commit_and_a_dry_run_write_nothing(api, dataset):
    ben = api("ben")
    path, body = f"datasets/{dataset.pk}/versions", {"manifest": sent(ben, dataset, FILES), "parent": 0}
    assert ben.post(f"{path}?dry_run=true", body).status == 200
    assert api("vera").post(path, body).status == 403
    assert ben.post(path, {**body, "colour": "red"}).code == "unknown_field"
    assert not dataset.versions.exists()


@pytest.fixture
def looks(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Fixture: for each look at a disk, whether a transaction of the request was open."""
    outside, made = len(connection.atomic_blocks), list[bool]()

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            made.append(len(connection.atomic_blocks) > outside)
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    watch(Path, "exists")
    watch(shutil, "disk_usage")
    return made


def test_the_disk_of_a_cache_location_is_looked_at_before_the_transaction(api, looks, tmp_path):
    root, place = api("root"), {"node_labels": {"zone": "b"}, "directory": str(tmp_path / "fast")}
    made = root.post("cache-locations", {"name": "fast", "cluster": "memory", **place})
    assert (made.status, made.body["free_bytes"] > 0) == (201, True)
    assert (bool(looks), any(looks)) == (True, False)
    looks.clear()
    changed = root.patch("cache-locations/fast", {"room_bytes": 1000})
    assert (changed.status, changed.body["free_bytes"]) == (200, 1000)
    assert (bool(looks), any(looks)) == (True, False)


def test_the_disk_is_looked_at_before_the_transaction_that_reserves_room_for_a_fill(dataset, looks):
    cache = cache_version(make_version(dataset, FILES), location_for(make_cluster()), actor=SYSTEM)
    looks.clear()
    work()
    cache.refresh_from_db()
    assert (cache.state, bool(looks), any(looks)) == (Cache.READY, True, False)


def test_a_refused_directory_of_a_cache_location_is_named_after_the_right_to_create_one(api, tmp_path):
    sent = {"name": "fast", "cluster": "memory", "node_labels": {"zone": "b"}, "directory": "fast"}
    assert api("ana").post("cache-locations", sent).status == 403
    assert api("root").post("cache-locations", sent).pointers == ["/directory"]
    assert api("root").post("cache-locations?dry_run=true", sent | {"directory": str(tmp_path)}).status == 200
    assert not CacheLocation.objects.filter(name="fast").exists()
