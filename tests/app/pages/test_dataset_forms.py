"""Creating a dataset in the browser; its description, who may read it, and its tags."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from controlplane.models import AuditEntry
from datasets.models import Dataset
from tests.cast import Cast
from tests.datasets import make_dataset, make_version

pytestmark = pytest.mark.django_db


@pytest.fixture
def dataset(cast: Cast, own_lakes: Path) -> Dataset:
    dataset = make_dataset(cast.project, "xray")
    for number in ("first", "second"):
        make_version(dataset, {"a.txt": number}, number)
    dataset.refresh_from_db()
    return dataset


def signed_in(cast: Cast, name: str) -> Client:
    client = Client()
    client.force_login(getattr(cast, name))
    return client


def test_a_member_creates_a_dataset_and_goes_on_to_upload(cast: Cast):
    ben = signed_in(cast, "ben")
    assert "/new/dataset" in ben.get("/datasets").content.decode()
    fields = {"name": "lanes", "project": "team-a", "description": "Clips of a highway"}
    made = ben.post("/new/dataset", fields)
    dataset = Dataset.objects.get(name="lanes")
    assert made.status_code == 302, made.content
    assert made["Location"] == f"/datasets/{dataset.pk}/upload"
    assert (dataset.project, dataset.description) == (cast.project, "Clips of a highway")
    assert AuditEntry.objects.filter(verb="dataset.create").exists()
    again = ben.post("/new/dataset", fields)
    assert again.status_code == 400
    assert b"has a dataset named lanes already" in again.content


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "Not A Name"},
        {"name": ""},
        {"project": "team-b"},
        {"project": ""},
        {"description": "x" * 501},
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_made(cast: Cast, bad: dict[str, str]):
    answer = signed_in(cast, "ben").post("/new/dataset", {"name": "lanes", "project": "team-a"} | bad)
    assert answer.status_code == 400
    assert f'id="id_{next(iter(bad))}_error"' in answer.content.decode()
    assert not Dataset.objects.exists()


def test_a_viewer_is_told_how_to_become_able_to(cast: Cast):
    vera = signed_in(cast, "vera")
    page = vera.get("/datasets").content.decode()
    assert "/new/dataset" not in page
    assert "Create one here" not in page
    assert "Create one here" not in vera.get("/volumes").content.decode()
    assert b"create datasets in no project yet" in vera.get("/new/dataset").content
    assert vera.post("/new/dataset", {"name": "lanes", "project": "team-a"}).status_code == 400


def test_members_describe_and_only_owners_share(cast: Cast, dataset: Dataset):
    path = f"/datasets/{dataset.pk}/edit"
    ben, ana = signed_in(cast, "ben"), signed_in(cast, "ana")
    assert b"is_shared" not in ben.get(path).content
    assert ben.post(path, {"description": "Chests", "is_shared": "on"}).status_code == 302
    dataset.refresh_from_db()
    assert (dataset.description, dataset.is_shared) == ("Chests", False)
    assert ana.post(path, {"description": "Chests", "is_shared": "on"}).status_code == 302
    assert signed_in(cast, "chi").get(f"/datasets/{dataset.pk}").status_code == 200
    assert b"checked" in ana.get(path).content
    assert ana.post(path, {"description": "Chests"}).status_code == 302
    assert signed_in(cast, "chi").get(f"/datasets/{dataset.pk}").status_code == 404


def test_tags_are_set_moved_and_removed(cast: Cast, dataset: Dataset):
    path = f"/datasets/{dataset.pk}"
    ben = signed_in(cast, "ben")
    for version in ("1", "2"):
        assert ben.post(f"{path}/tags", {"name": "reviewed", "version": version}).status_code == 302
        assert tags(dataset) == {"reviewed": int(version)}
    assert b"reviewed" in ben.get(f"{path}/edit").content
    assert ben.post(f"{path}/tags/remove", {"name": "reviewed"}).status_code == 302
    assert tags(dataset) == {}
    again = ben.post(f"{path}/tags/remove", {"name": "reviewed"}, follow=True)
    assert b"xray has no tag &#x27;reviewed&#x27;." in again.content


@pytest.mark.parametrize(
    ("name", "version"), [("latest", "1"), ("7", "1"), ("A b", "1"), ("good", "3"), ("good", "")]
)
def test_a_tag_that_cannot_be_is_refused_in_the_form(cast: Cast, dataset: Dataset, name: str, version: str):
    answer: Any = signed_in(cast, "ben").post(
        f"/datasets/{dataset.pk}/tags", {"name": name, "version": version}
    )
    assert answer.status_code == 400
    assert b'class="error"' in answer.content
    assert tags(dataset) == {}


def tags(dataset: Dataset) -> dict[str, int]:
    return {tag.name: tag.version.number for tag in dataset.tags.select_related("version")}
