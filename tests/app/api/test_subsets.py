"""Saved subsets of versions: over REST, in jobs and caches, on pages and in lineage."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from controlplane.access import SYSTEM
from controlplane.actions.errors import Conflict
from datasets.actions.caches import cache_version, location_for
from datasets.actions.subsets import delete_subset
from datasets.models import Cache, Dataset, DatasetUse, DatasetVersion
from datasets.queries.lake import lake_of
from jobs.actions import clone_body, submit_job
from tests.cast import Cast
from tests.datasets import make_dataset, make_subset, make_version, manifest_of

pytestmark = pytest.mark.django_db
FILES = {"train/1.txt": "one", "train/2.csv": "two", "test/1.txt": "three", "labels.csv": "four"}


@pytest.fixture
def version(cast: Cast, own_lakes: Path) -> DatasetVersion:
    return make_version(make_dataset(cast.project), FILES)


def test_a_subset_is_named_counted_and_hashed(api: Any, version: DatasetVersion):
    ben, path = api("ben"), f"versions/{version.pk}/subsets"
    body = {
        "name": "train",
        "include": ["train/", "labels.csv"],
        "exclude": ["*.txt"],
        "paths": ["test/1.txt"],
    }
    assert ben.post(path, body).status == 201
    saved = api("vera").get(f"{path}/train").body
    assert (saved["files"], saved["size_bytes"], saved["parent"], saved["number"]) == (2, 7, 1, 1)
    assert saved["selection"] == {"include": ["train/", "labels.csv"], "exclude": ["*.txt"], "paths": 1}
    assert (
        saved["manifest"] == manifest_of({name: FILES[name] for name in ("train/2.csv", "labels.csv")}).hash
    )
    assert [row["name"] for row in api("vera").get(f"versions/{saved['id']}/files").body["results"]] == [
        "labels.csv",
        "train",
    ]
    assert [row["subset"] for row in ben.get(path).body["results"]] == ["train"]
    assert [row["number"] for row in ben.get(f"datasets/{version.dataset_id}/versions").body["results"]] == [
        1
    ]


def test_a_subset_is_never_changed(api: Any, version: DatasetVersion):
    ben, path = api("ben"), f"versions/{version.pk}/subsets"
    first = ben.post(path, {"name": "train", "include": ["train/"]})
    again = ben.post(path, {"name": "train", "include": ["train/**"]})
    assert (again.status, again.body["id"]) == (200, first.body["id"])
    other = ben.post(path, {"name": "train", "include": ["*"]})
    assert (other.status, other.body["code"]) == (409, "name_in_use")
    assert DatasetVersion.objects.exclude(subset="").count() == 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "none", "include": ["*.png"]}, "nothing_selected"),
        ({"name": "none"}, "nothing_selected"),
        ({"name": "none", "include": [""]}, "empty_pattern"),
        ({"name": "none", "paths": ["train/1.txt", "../etc"]}, "no_such_path"),
        ({"name": "A", "include": ["*"]}, "not_a_dns_label"),
        ({"name": "many", "include": ["*"] * 51}, "too_many"),
    ],
)
def test_a_selection_without_files_is_refused(api: Any, version: DatasetVersion, body: Any, code: str):
    answer = api("ben").post(f"versions/{version.pk}/subsets", body)
    assert answer.status == 400
    assert [error["code"] for error in answer.body["errors"]] == [code]


def test_there_are_no_subsets_or_tags_of_subsets(api: Any, version: DatasetVersion):
    subset = make_subset(version, "train", "train/")
    answer = api("ben").post(f"versions/{subset.pk}/subsets", {"name": "more", "include": ["*"]})
    assert answer.status == 400
    tag = {"name": "golden", "version": "1/train"}
    assert api("ben").post(f"datasets/{version.dataset_id}/tags", tag).status == 400


def test_the_newest_version_stays_the_newest(cast: Cast, api: Any, version: DatasetVersion):
    make_subset(version, "train", "train/")
    dataset = api("vera").get(f"datasets/{version.dataset_id}").body
    assert (dataset["latest_id"], dataset["files"]) == (str(version.pk), 4)
    second = make_version(version.dataset, {**FILES, "new.txt": "new"})
    assert (second.parent_id, second.files_added, second.files_removed) == (version.pk, 1, 0)


def _submit(cast: Cast, dataset: Dataset, **mount: str) -> Any:
    mounts = [{"dataset": dataset.name, "mount_path": "/data", **mount}]
    body = {"name": "train1", "kind": "train", "image": "quickstart", "gpus": 1, "datasets": mounts}
    return submit_job(cast.project, body, actor=cast.actor("ben"))


def test_a_job_mounts_a_subset_and_keeps_it(cast: Cast, version: DatasetVersion):
    subset = make_subset(version, "train", "train/")
    job = _submit(cast, version.dataset, version="latest", subset="train")
    [mount] = job.spec["datasets"]
    assert (mount["version"], mount["subset"], mount["version_id"]) == (1, "train", str(subset.pk))
    assert [str(use) for use in DatasetUse.objects.all()] == ["xray@1/train"]
    assert [cache.version_id for cache in Cache.objects.all()] == [subset.pk]
    make_version(version.dataset, {"a": "b"})
    again = submit_job(cast.project, clone_body(job, "again"), actor=cast.actor("ben"))
    assert again.spec["datasets"][0]["version_id"] == str(subset.pk)
    with pytest.raises(Conflict, match="used by job"):
        delete_subset(subset, actor=cast.actor("ana"))


def test_a_subset_that_is_not_there_is_refused_with_what_there_is(
    cast: Cast, api: Any, version: DatasetVersion
):
    make_subset(version, "train", "train/")
    mounts = [{"dataset": "xray", "subset": "test", "mount_path": "/data"}]
    body = {"name": "x", "kind": "train", "image": "quickstart", "datasets": mounts}
    [error] = api("ben").post("projects/team-a/jobs", body).body["errors"]
    assert (error["pointer"], error["code"]) == ("/datasets/0/subset", "dataset_subset_unknown")
    assert "it has train" in error["detail"]


def test_its_contents_and_manifest_outlive_a_collection(cast: Cast, version: DatasetVersion):
    subset = make_subset(version, "train", "train/")
    lake = lake_of(cast.project)
    manifests = list(DatasetVersion.objects.values_list("manifest", flat=True))
    lake.collect(lambda: manifests, older_than_seconds=-1)
    assert lake.manifest(subset.manifest)
    assert not lake.lacking(manifest_of(FILES).contents())


def test_owners_delete_a_subset_with_its_cache(api: Any, version: DatasetVersion):
    subset = make_subset(version, "train", "train/")
    cache_version(subset, location_for(version.dataset.project.cluster), actor=SYSTEM)
    path = f"versions/{version.pk}/subsets/train"
    assert api("ben").delete(path).status == 403
    assert api("ana").delete(path).status == 200
    assert list(DatasetVersion.objects.all()) == [version]
    assert not Cache.objects.exists()


def test_a_subset_is_saved_and_read_on_pages(cast: Cast, version: DatasetVersion):
    client, path = Client(), f"/datasets/{version.dataset_id}"
    client.force_login(cast.ben)
    refused = client.post(f"{path}/subset", {"version": "1", "name": "train", "include": "*.png"})
    assert refused.status_code == 400
    assert "No file of xray@1 is selected" in refused.content.decode()
    saved = client.post(f"{path}/subset", {"version": "1", "name": "train", "include": "train/\n*.csv"})
    assert saved.headers["Location"] == f"{path}/files?version=1/train"
    page = client.get(saved.headers["Location"]).content.decode()
    assert "labels.csv" in page
    assert ">test/</a>" not in page
    assert re.search(r'<option value="1/train" selected>', page)
    shown = client.get(path).content.decode()
    assert "1/train" in shown
    assert "subset/delete" not in shown, "members do not delete"
    assert client.post(f"{path}/cache", {"version": "1/train"}).status_code == 302
    assert [str(cache.version) for cache in Cache.objects.all()] == ["xray@1/train"]


def test_the_page_leaves_versions_of_many_files_to_yard(
    cast: Cast, version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("datasets.pages.subsets.FILES_MOST", 3)
    client, path = Client(), f"/datasets/{version.dataset_id}/subset"
    client.force_login(cast.ben)
    refused = client.post(path, {"version": "1", "name": "train", "include": "*"})
    assert refused.status_code == 400
    assert "more than 3 files; save a subset of it with: yard dataset subset xray@1/NAME" in (
        refused.content.decode()
    )


def test_the_lineage_of_a_subset_leads_to_its_version_and_jobs(cast: Cast, api: Any, version: DatasetVersion):
    subset = make_subset(version, "train", "train/")
    _submit(cast, version.dataset, subset="train")
    graph = api("vera").get(f"versions/{subset.pk}/lineage").body
    names = {node["key"]: node["name"] for node in graph["nodes"]}
    edges = {(names[edge["source"]], names[edge["target"]], edge["role"]) for edge in graph["edges"]}
    assert ("xray@1", "xray@1/train", "subset") in edges
    assert ("xray@1/train", "train1", "/data") in edges


@pytest.mark.parametrize("field", ["include", "exclude"])
def test_a_pattern_that_means_a_deeper_directory_is_refused_with_the_right_one(
    cast: Cast, own_lakes: Path, api: Any, field: str
):
    version = make_version(make_dataset(cast.project), {"pictures/drafts/a.png": "a", "pictures/b.png": "b"})
    patterns = {"include": ["*.png"], field: ["*.csv", "drafts/"]}
    answer = api("ben").post(f"versions/{version.pk}/subsets", {"name": "few", **patterns})
    assert answer.status == 400
    [error] = answer.body["errors"]
    assert (error["pointer"], error["code"]) == (f"/{field}", "matches_deeper")
    assert "**/drafts/" in error["detail"]
    right = {
        name: [one.replace("drafts/", "**/drafts/") for one in found] for name, found in patterns.items()
    }
    assert api("ben").post(f"versions/{version.pk}/subsets", {"name": "few", **right}).status == 201


def test_the_lineage_of_a_version_leads_to_the_jobs_of_its_subsets(
    cast: Cast, api: Any, version: DatasetVersion
):
    make_subset(version, "train", "train/")
    job = _submit(cast, version.dataset, subset="train")
    for path in (f"versions/{version.pk}", f"jobs/{job.pk}"):
        graph = api("vera").get(f"{path}/lineage").body
        names = {node["key"]: node["name"] for node in graph["nodes"]}
        edges = {(names[edge["source"]], names[edge["target"]], edge["role"]) for edge in graph["edges"]}
        assert {("xray@1", "xray@1/train", "subset"), ("xray@1/train", "train1", "/data")} <= edges
