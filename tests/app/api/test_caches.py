"""Caches over REST: roles, lists, pins, room, and datasets of a submission."""

import errno
from hashlib import sha256
from unittest.mock import Mock

import pytest

from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Cluster, NodePool
from datasets.actions.cache_upkeep import verify_caches
from datasets.models import Cache, CacheLocation, Dataset
from datasets.queries.caches import store_of
from datasets.queries.lake import lake_of
from datasets.storage.base import Blocked
from datasets.storage.cache import CacheStore
from tests.datasets import make_dataset, make_version
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def own_lake(own_lakes):
    """Ids of projects come again after each test's rollback; their lakes do not."""


@pytest.fixture
def dataset(cast) -> Dataset:
    dataset = make_dataset(cast.project)
    make_version(dataset, {"a": "one"})
    return dataset


def body(dataset: Dataset) -> dict[str, str]:
    return {"version_id": str(dataset.versions.get().pk)}


def test_members_cache_pin_and_clear_and_viewers_read(api, cast, dataset):
    assert api("vera").post("caches", body(dataset)).status == 403
    assert api("chi").post("caches", body(dataset)).status == 404
    made = api("ben").post("caches", body(dataset))
    assert made.status == 201
    assert (made.body["dataset"], made.body["version"], made.body["location"]) == ("xray", 1, "memory")
    assert (made.body["state"], made.body["progress"]["total_bytes"]) == ("queued", 3)
    path = f"caches/{made.body['id']}"
    assert api("vera").get(path).body == made.body
    assert api("ben").post(f"{path}/pin", {}).body["is_pinned"] is True
    assert api("ben").post(f"{path}/unpin", {}).body["is_pinned"] is False
    assert api("vera").delete(path).status == 403
    assert api("ben").delete(path).body["state"] == "evicting"


def test_caches_that_share_damaged_content_are_out_of_use_and_repaired_from_the_lake(api, cast):
    large = "x" * (1 << 20)
    dataset = make_dataset(cast.project)
    version = make_version(dataset, {"a": large, "b": "small"})
    made = api("ben").post("caches", body(dataset)).body
    wait_until(
        lambda: not carry_out_due() and api("ben").get(f"caches/{made['id']}").body["state"] == "ready"
    )
    store, digest = store_of(CacheLocation.objects.get()), sha256(large.encode()).digest()
    path = store.tree(str(version.pk)) / "a"
    path.chmod(0o644)
    for damaged in {path, lake_of(cast.project).path_of(*lake_of(cast.project).locate([digest]))}:
        damaged.chmod(0o644)
        with damaged.open("r+") as file:
            file.write("damaged")
    assert api("ben").post(f"versions/{version.pk}/verify").body["damaged"] == [digest.hex()]
    found = api("ben").get(f"caches/{made['id']}").body
    assert (found["state"], found["reason"]["code"]) == ("failed", "content_damaged")
    lake_of(cast.project).put_part(digest, 0, memoryview(large.encode()), len(large))
    api("ben").post("caches", body(dataset))
    wait_until(
        lambda: not carry_out_due() and api("ben").get(f"caches/{made['id']}").body["state"] == "ready"
    )
    assert (store.tree(str(version.pk)) / "a").read_text() == large


def test_a_damaged_file_of_a_cache_is_found_and_repaired_though_the_lake_is_intact(api, cast, dataset):
    made = api("ben").post("caches", body(dataset)).body
    wait_until(
        lambda: not carry_out_due() and api("ben").get(f"caches/{made['id']}").body["state"] == "ready"
    )
    version = dataset.versions.get()
    assert api("ben").post(f"versions/{version.pk}/verify").body["damaged_caches"] == []
    path = store_of(CacheLocation.objects.get()).tree(str(version.pk)) / "a"
    path.chmod(0o644)
    path.write_text("ONE")
    path.chmod(0o444)
    found = api("ben").post(f"versions/{version.pk}/verify").body
    assert (found["is_intact"], found["damaged_caches"]) == (True, ["memory"])
    reason = api("ben").get(f"caches/{made['id']}").body["reason"]
    assert reason["code"] == "content_damaged"
    api("ben").post("caches", body(dataset))
    wait_until(
        lambda: not carry_out_due() and api("ben").get(f"caches/{made['id']}").body["state"] == "ready"
    )
    assert path.read_text() == "one"
    assert api("ben").post(f"versions/{version.pk}/verify").body["damaged_caches"] == []


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("datasets.actions.cache_upkeep.store_of", Blocked("unreachable", "The disk does not answer.")),
        ("datasets.storage.cache._is_damaged", OSError(errno.EROFS, "Read-only file system")),
    ],
)
def test_verify_names_a_cache_whose_directory_cannot_be_used(api, dataset, monkeypatch, where, error):
    made = api("ben").post("caches", body(dataset)).body
    wait_until(
        lambda: not carry_out_due() and api("ben").get(f"caches/{made['id']}").body["state"] == "ready"
    )
    monkeypatch.setattr(where, Mock(side_effect=error))
    found = api("ben").post(f"versions/{dataset.versions.get().pk}/verify").body
    assert (found["is_intact"], found["damaged_caches"], found["unread_caches"]) == (True, [], ["memory"])


def test_a_fill_that_ends_while_its_tree_is_found_damaged_is_repeated_before_jobs_may_use_it(
    api, cast, monkeypatch
):
    large = "x" * (1 << 20)
    version = make_version(make_dataset(cast.project), {"a": large})
    lake, digest = lake_of(cast.project), sha256(large.encode()).digest()
    made, filled, states = api("ben").post("caches", {"version_id": str(version.pk)}).body, [], []

    def fill_and_damage(store, key, *given):
        *given, on_usable = given
        fill(store, key, *given, lambda: damage(store, key, on_usable))

    def damage(store, key, on_usable):
        filled.append(key)
        if len(filled) == 1:
            path = store.tree(key) / "a"
            path.chmod(0o644)
            path.write_text("damaged")
            path.chmod(0o444)
            verify_caches([digest])
            lake.verify([digest])
            lake.put_part(digest, 0, memoryview(large.encode()), len(large))
        on_usable()

    fill = CacheStore.fill
    monkeypatch.setattr(CacheStore, "fill", fill_and_damage)

    def is_ready() -> bool:
        is_idle = not carry_out_due()
        states.append((api("ben").get(f"caches/{made['id']}").body["state"], len(filled)))
        return is_idle and states[-1][0] == "ready"

    wait_until(is_ready)
    store = store_of(CacheLocation.objects.get())
    assert (store.tree(str(version.pk)) / "a").read_text() == large
    assert {fills for state, fills in states if state == "ready"} == {2}
    assert "failed" not in dict(states)
    assert api("ben").get(f"caches/{made['id']}").body["reason"] == {"code": "", "message": ""}


def test_lists_show_what_the_caller_may_see(api, cast, dataset):
    api("ben").post("caches", body(dataset))
    shared = make_dataset(cast.other, "atlas", is_shared=True)
    make_version(shared, {"b": "two"})
    assert api("chi").post("caches", body(shared)).status == 201
    assert [row["dataset"] for row in api("chi").get("caches").body["results"]] == ["atlas"]
    assert [row["dataset"] for row in api("vera").get("caches").body["results"]] == ["atlas", "xray"]
    assert [row["dataset"] for row in api("vera").get("caches?project=team-a").body["results"]] == ["xray"]
    assert api("vera").get("caches?version_id=1").status == 404
    assert api("vera").get("caches?state=lost").status == 400


def test_a_location_is_edited_by_admins(api, cast, dataset):
    api("ben").post("caches", body(dataset) | {"location": "memory"})
    [location] = api("vera").get("cache-locations").body["results"]
    assert (location["name"], location["caches"], location["unused_days"]) == ("memory", 1, 1)
    assert location["free_bytes"] > 0
    assert api("ana").patch("cache-locations/memory", {"unused_days": 7}).status == 403
    changed = api("root").patch("cache-locations/memory", {"unused_days": 7, "room_bytes": 100})
    assert (changed.body["unused_days"], changed.body["room_bytes"], changed.body["free_bytes"]) == (
        7,
        100,
        100,
    )
    assert api("root").patch("cache-locations/memory", {"unused_days": 0}).status == 400
    assert api("ben").post("caches", body(dataset) | {"location": "elsewhere"}).status == 404


def test_a_job_shows_the_version_that_it_mounts(api, cast, dataset):
    job = {"name": "job", "kind": "train", "image": "quickstart"}
    mount = {"dataset": "xray", "version": "latest", "cached": True, "mount_path": "/data"}
    made = api("ben").post("projects/team-a/jobs", job | {"datasets": [mount]})
    assert made.status == 201
    [shown] = made.body["datasets"]
    assert shown == mount | {
        "version": 1,
        "asked": "latest",
        "version_id": str(dataset.versions.get().pk),
    }
    assert Cache.objects.get().is_kept
    again = api("ben").post("projects/team-a/jobs", job | {"name": "again", "datasets": [shown]})
    assert again.body["datasets"][0]["version"] == 1
    twice = api("ben").post("projects/team-a/jobs", job | {"name": "twice", "datasets": [mount, mount]})
    assert twice.body["errors"][0]["code"] == "mounted_twice"
    in_use = api("ana").delete(f"datasets/{dataset.pk}")
    assert (in_use.status, in_use.body["code"]) == (409, "dataset_in_use")


def test_a_dry_run_reserves_nothing(api, cast, dataset):
    job = {"name": "job", "kind": "train", "image": "quickstart"}
    mount = {"dataset": "xray", "mount_path": "/data"}
    assert api("ben").post("projects/team-a/jobs?dry_run=true", job | {"datasets": [mount]}).status == 200
    assert api("ben").post("caches?dry_run=true", body(dataset)).status == 200
    assert not Cache.objects.exists()


def test_admins_name_locations_of_some_nodes(api, cast, dataset):
    NodePool.objects.create(cluster=cast.project.cluster, name="a100")
    fresh = {"name": "fast", "cluster": "memory", "node_pools": ["a100"], "room_bytes": 1000}
    assert api("ana").post("cache-locations", fresh).status == 403
    made = api("root").post("cache-locations", fresh)
    assert (made.status, made.body["node_pools"], made.body["room_bytes"]) == (201, ["a100"], 1000)
    labels = {"topology.kubernetes.io/zone": "b"}
    changed = api("root").patch("cache-locations/fast", {"node_labels": labels})
    assert (changed.status, changed.body["node_labels"]) == (200, labels)
    assert api("root").patch("cache-locations/fast", {"node_labels": {"-": "b"}}).status == 400
    assert api("root").post("cache-locations", fresh | {"cluster": "none"}).status == 404
    assert api("root").post("cache-locations", fresh).status == 409
    assert api("ben").post("caches", body(dataset) | {"location": "fast"}).body["location"] == "fast"
    assert api("root").delete("cache-locations/fast").body["code"] == "cache_location_in_use"
    assert api("root").post("cache-locations", fresh | {"name": "more"}).status == 201
    assert api("root").delete("cache-locations/more").status == 204


def test_a_location_names_pools_of_its_cluster(api, cast, dataset):
    root, cluster = api("root"), cast.project.cluster
    gone = NodePool.objects.create(cluster=cluster, name="a100")
    NodePool.objects.create(cluster=Cluster.objects.create(name="other", engine="memory"), name="far")
    fresh = {"name": "fast", "cluster": "memory"}
    for name in ("a10O", "far"):
        refused = root.post("cache-locations", fresh | {"node_pools": ["a100", name]})
        assert (refused.status, refused.code, refused.pointers) == (
            400,
            "no_such_node_pool",
            ["/node_pools/1"],
        )
        assert refused.body["detail"] == f"memory has no node pool {name}; its pools are: a100, default."
    assert root.post("cache-locations", fresh | {"node_pools": ["a100"]}).status == 201
    assert root.patch("cache-locations/fast", {"node_pools": ["far"]}).pointers == ["/node_pools/0"]
    # One that was deleted since may stay: the form sends all of them.
    gone.delete()
    assert root.patch("cache-locations/fast", {"node_pools": ["a100", "default"]}).status == 200
    assert root.patch("cache-locations/fast", {"node_pools": ["default"]}).status == 200
    assert root.patch("cache-locations/fast", {"node_pools": ["a100"]}).code == "no_such_node_pool"
