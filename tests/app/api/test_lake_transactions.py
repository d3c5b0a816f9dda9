"""The lake, which may be a bucket or be locked by a collection, is used before the transaction of a request: on SQLite
all other writers would wait for it."""

from typing import Any

import pytest
from django.db import connection

from datasets.models import Dataset
from datasets.queries.lake import lake_of
from tests.app.api.test_datasets import FILES, sent
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
