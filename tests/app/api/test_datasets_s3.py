"""Datasets whose lake is a bucket: from upload to cache, and what clients see while the server is away."""

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from uuid import uuid4

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from controlplane.commands.dispatch import carry_out_due
from controlplane.models import Cluster, Command, Project
from datasets.actions.caches import FILL_CACHE, cache_version, location_for
from datasets.actions.lake_collection import COLLECT_LAKE, collect_all_lakes
from datasets.checks import check_lake
from datasets.models import Cache, Dataset
from datasets.queries import lake as lake_module
from datasets.queries.caches import key_of, store_of
from datasets.storage.bucket import Bucket, ClientConfig
from datasets.storage.pieces import Pieces
from tests.app.api.test_datasets import BYTES, FILES, sent
from tests.cast import Cast
from tests.datasets import make_dataset, make_version, pack_of
from tests.s3_server import S3Server
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def place(own_lakes, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Lakes in a prefix of their own."""
    prefix = f"app/{uuid4().hex}"
    monkeypatch.setattr(settings, "LAKE_BUCKET", s3.config(prefix))
    monkeypatch.setattr(settings, "LAKE_MAY_BE_INSIDE", True)
    yield prefix
    for opened in lake_module._lakes.values():
        opened.close()


@pytest.fixture
def dataset(cast: Cast) -> Dataset:
    return make_dataset(cast.project)


def work(kind: str) -> None:
    wait_until(lambda: not (carry_out_due() or Command.objects.of_kinds([kind]).unfinished().exists()))


def test_a_version_is_sent_verified_cached_and_removed(api, cast, dataset, place: str, s3: S3Server):
    assert check_lake(None) == []
    ben = api("ben")
    answer = ben.post(f"datasets/{dataset.pk}/versions", {"manifest": sent(ben, dataset, FILES), "parent": 0})
    assert answer.status == 201
    verified = ben.post(f"versions/{answer.body['id']}/verify")
    assert verified.body["is_intact"]
    assert ben.get(f"versions/{answer.body['id']}/content?path=a.txt", accept="*/*").body == b"alpha"
    version = dataset.versions.get()
    cache = cache_version(version, location_for(Cluster.objects.get()), actor=cast.actor("ben"))
    work(FILL_CACHE)
    cache = Cache.objects.get(pk=cache.pk)
    assert cache.state == Cache.READY
    tree = store_of(cache.location).tree(key_of(version.pk))
    assert (tree / "sub" / "b.txt").read_text() == "beta"
    assert len(s3.files(f"{place}/{cast.project.pk}")) == 2
    Project.objects.filter(pk=cast.project.pk).delete()
    collect_all_lakes()
    work(COLLECT_LAKE)
    assert s3.files(place) == []


def test_a_server_that_is_away_is_said_so_and_loses_nothing(
    api, cast, dataset, s3: S3Server, monkeypatch: pytest.MonkeyPatch
):
    ben = api("ben")
    manifest = sent(ben, dataset, FILES)
    away = ClientConfig(connect_seconds=1, answer_seconds=1, request_seconds=1, retries=0)
    lake = lake_module.lake_of(cast.project)
    gone = replace(s3.config(), endpoint="http://127.0.0.1:9")
    with monkeypatch.context() as patch:
        patch.setattr(lake, "_bucket", Bucket(gone, away))
        refused = ben.send(
            "PUT", f"datasets/{dataset.pk}/content/packs", pack_of(b"other"), content_type=BYTES
        )
        assert (refused.status, refused.body["code"]) == (503, "unreachable")
        assert refused.headers["Retry-After"] == "30"
    made = ben.post(f"datasets/{dataset.pk}/versions", {"manifest": manifest, "parent": 0})
    assert made.status == 201
    assert not lake.lacking([sha256(b"alpha").digest()])


def test_a_fill_that_waits_for_the_server_says_so_until_it_goes_on(
    api, cast, dataset, s3: S3Server, monkeypatch: pytest.MonkeyPatch
):
    version = make_version(dataset, FILES)
    lake = lake_module.lake_of(cast.project)
    gone = replace(s3.config(), endpoint="http://127.0.0.1:9")
    cache = cache_version(version, location_for(Cluster.objects.get()), actor=cast.actor("ben"))
    with monkeypatch.context() as patch:
        patch.setattr(lake, "_pieces", Pieces(Bucket(gone, ClientConfig(retries=0))))
        wait_until(carry_out_due, what="the try that is refused")
    shown = api("vera").get(f"caches/{cache.pk}").body
    assert (shown["state"], shown["reason"]["code"]) == ("filling", "unreachable")
    assert "http://127.0.0.1:9 cannot be used: the connection is refused" in shown["reason"]["message"]
    page = Client()
    page.force_login(cast.vera)
    assert "the connection is refused" in page.get(f"/datasets/{dataset.pk}").content.decode()
    Command.objects.unfinished().update(not_before=timezone.now())
    work(FILL_CACHE)
    shown = api("vera").get(f"caches/{cache.pk}").body
    assert (shown["state"], shown["reason"]) == ("ready", {"code": "", "message": ""})


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def connections(server: socket.socket) -> int:
    """Return how many were made since the last call."""
    count = 0
    try:
        while True:
            server.accept()[0].close()
            count += 1
    except BlockingIOError:
        return count


def test_a_bucket_that_never_answers_holds_up_one_request_for_seconds_and_others_not_at_all(
    api, cast, dataset, s3: S3Server, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
):
    version = make_version(dataset, FILES)
    lake_module._lakes.pop(cast.project.pk).close()
    monkeypatch.setattr(lake_module, "_is_web", threading.Event())
    monkeypatch.setitem(lake_module.REQUEST_CLIENT, "answer_seconds", 0.5)
    hung = replace(settings.LAKE_BUCKET, endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
    monkeypatch.setattr(settings, "LAKE_BUCKET", hung)
    lake_module.limit_waits()
    began = time.monotonic()
    answer = api("vera").get(f"versions/{version.pk}/content?path=a.txt", accept="*/*")
    assert (answer.status, answer.body["code"]) == (503, "unreachable")
    # below what a worker waits
    assert time.monotonic() - began < ClientConfig().answer_seconds
    assert connections(silent) > 0
    page = Client()
    page.force_login(cast.vera)
    for _ in range(3):
        text = page.get(f"/datasets/{dataset.pk}/files", {"file": "a.txt"}).content.decode()
        assert "did not answer a moment ago" in text
    assert connections(silent) == 0
