"""The version of a cache for the pod that fills it: with the cache's token, while it is being filled, and no more."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from controlplane.config.service_tokens import cache_token
from controlplane.models import Cluster
from datasets.actions.caches import cache_version, location_for
from datasets.models import Cache
from datasets.queries.caches import cache_refusal, location_of
from tests.cast import SYSTEM, Cast
from tests.datasets import make_dataset, make_version

pytestmark = pytest.mark.django_db
FILES = {"a/b.txt": "one", "c.txt": "two", "d.txt": "one"}
STATED = {"cache_storage_class": "nfs", "control_url": "http://control:8000", "default_image": "python:3"}


@pytest.fixture
def cache(cast: Cast, own_lakes: Path) -> Cache:
    """A cache that is being filled, on the volume of a project in a Kubernetes cluster."""
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes", settings=STATED)
    cast.project.refresh_from_db()
    version = make_version(make_dataset(cast.project), FILES)
    cache = cache_version(version, location_for(cast.project.cluster, cast.project), actor=SYSTEM)
    Cache.objects.filter(pk=cache.pk).update(state=Cache.FILLING)
    return cache


def send(cache: Cache, places: str = "", token: str | None = None) -> Any:
    path = f"/api/v1/pod-data/{cache.pk}" + (f"?places={places}" if places else "")
    stated = cache_token(settings.SECRET_KEY, str(cache.pk)) if token is None else token
    return Client().get(path, headers={"X-Trainyard-Cache-Token": stated})


def test_a_cluster_without_a_class_an_address_or_an_image_refuses_with_what_to_set(cast: Cast):
    cluster = cast.project.cluster
    cluster.engine, cluster.settings = "kubernetes", {"control_url": "http://control:8000"}
    assert "--set cache_storage_class=CLASS --set code_image=IMAGE" in cache_refusal(cluster)
    cluster.settings = STATED
    assert cache_refusal(cluster) == ""
    assert location_of(cluster, cast.project) is None


def test_each_project_has_a_location_of_its_own_that_others_do_not_see(cache: Cache, cast: Cast, api: Any):
    assert cache.location.name == f"{cast.project.cluster.name}.{cast.project.name}"
    seen = api("ben").get("cache-locations").body["results"]
    assert [(one["name"], one["room_bytes"]) for one in seen] == [(cache.location.name, 100 << 30)]
    assert api("chi").get("cache-locations").body["results"] == []
    assert api("chi").get(f"cache-locations/{cache.location.name}").status == 404


def test_contents_come_by_their_place_each_once(cache: Cache):
    answer = send(cache, "0-1,2")
    parts = {sha256(text).digest() + text for text in (b"one", b"two")}
    assert answer.content in {b"".join(order) for order in (sorted(parts), sorted(parts, reverse=True))}
    alone = b"".join(send(cache, "1"))
    assert alone == sha256(b"two").digest() + b"two"
    for wrong in ("abc", "3", "2-1", "0-99999", "1,,2", "1,", "0-2,2-0", "0-1,1-0"):
        assert (send(cache, wrong).status_code, send(cache, wrong).json()["code"]) == (400, "bad_places")


def test_the_token_is_of_one_cache_and_ends_with_its_fill(cache: Cache):
    assert send(cache).status_code == 200
    assert send(cache, token="").status_code == 404
    assert send(cache, token=cache_token(settings.SECRET_KEY, "another")).status_code == 404
    Cache.objects.filter(pk=cache.pk).update(state=Cache.READY)
    assert send(cache).status_code == 404
    assert send(cache, "0").status_code == 404
