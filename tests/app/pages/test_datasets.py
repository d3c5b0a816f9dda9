"""Pages of datasets: what they show to whom, previews, and what their buttons do."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from datasets.actions.caches import cache_version, location_for
from datasets.models import Cache, CacheLocation, Dataset
from datasets.previews import is_picture, text_of
from jobs.actions import submit_job
from tests.builders import make_job
from tests.cast import Cast
from tests.datasets import make_dataset, make_version

pytestmark = pytest.mark.django_db


@pytest.fixture
def dataset(cast: Cast, own_lakes: Path) -> Dataset:
    dataset = make_dataset(cast.project, "xray")
    make_version(dataset, {"a.txt": "alpha", "sub/b.svg": "<svg onload='x'/>", "zero.bin": "a\0b"}, "first")
    make_version(dataset, {"a.txt": "other", "sub/c.txt": "<script>x</script>"}, "second")
    return dataset


def get(cast: Cast, name: str, path: str) -> Any:
    client = Client()
    client.force_login(getattr(cast, name))
    return client.get(path)


def post(cast: Cast, name: str, path: str, **fields: str) -> Any:
    client = Client()
    client.force_login(getattr(cast, name))
    return client.post(path, fields)


def test_the_list_shows_what_the_user_may_see(cast: Cast, dataset: Dataset):
    make_dataset(cast.other, "secret")
    make_dataset(cast.other, "atlas", is_shared=True)
    text = get(cast, "vera", "/datasets").content.decode()
    assert "xray" in text
    assert "atlas" in text
    assert "secret" not in text
    assert "atlas" not in get(cast, "vera", "/datasets?project=team-a").content.decode()
    for sort in ("name", "-size", "updated", "-files", "shared", "latest", "project"):
        assert get(cast, "vera", f"/datasets?sort={sort}").status_code == 200


def test_a_member_has_buttons_and_a_viewer_reads(cast: Cast, dataset: Dataset):
    path = f"/datasets/{dataset.pk}"
    text = {name: get(cast, name, path).content.decode() for name in ("vera", "ben", "ana")}
    assert all("first" in each and "second" in each for each in text.values())
    assert [f"{path}/cache" in text[name] for name in text] == [False, True, True]
    assert [f"{path}/delete" in text[name] for name in text] == [False, False, True]


def test_files_are_shown_as_text_or_not_at_all(cast: Cast, dataset: Dataset):
    path = f"/datasets/{dataset.pk}/files"
    page = get(cast, "vera", f"{path}?path=sub&file=sub/c.txt").content.decode()
    assert "&lt;script&gt;x" in page
    assert "<script>x" not in page
    page = get(cast, "vera", f"{path}?version=1&path=sub&file=sub/b.svg").content.decode()
    assert "<img" not in page
    assert "&lt;svg onload" in page
    assert "no preview" in get(cast, "vera", f"{path}?version=1&file=zero.bin").content.decode()
    assert get(cast, "vera", f"{path}?version=7").status_code == 404
    assert get(cast, "vera", f"{path}?path=../../etc&file=/etc/passwd").status_code == 200


def test_what_a_version_lacks_is_named(cast: Cast, dataset: Dataset):
    path = f"/datasets/{dataset.pk}/files?version=2"
    assert "Version 2 has no file b.txt." in get(cast, "vera", f"{path}&file=b.txt").content.decode()
    assert "Version 2 has no directory deep." in get(cast, "vera", f"{path}&path=deep").content.decode()


def test_changed_files_lead_to_where_they_are(cast: Cast, dataset: Dataset):
    page = get(cast, "vera", f"/datasets/{dataset.pk}/diff").content.decode()
    assert "version=1&amp;path=sub&amp;file=sub%2Fb.svg" in page, "removed in 2"
    assert "version=2&amp;file=a.txt" in page


def test_a_reader_from_elsewhere_is_offered_no_command_of_members(cast: Cast, dataset: Dataset):
    Dataset.objects.update(is_shared=True)
    page = f"/datasets/{dataset.pk}"
    assert "yard dataset cache" not in get(cast, "chi", page).content.decode()
    assert "yard dataset cache" in get(cast, "ben", page).content.decode()


def test_names_cannot_hide_what_they_are(cast: Cast, dataset: Dataset):
    make_version(dataset, {"\u202egnp.exe": "a", "new\nline.txt": "b", "\u202eup/x": "c"})
    for address in ("files", "diff", "files?file=%E2%80%AEgnp.exe", "files?path=%E2%80%AEup"):
        page = get(cast, "vera", f"/datasets/{dataset.pk}/{address}").content.decode()
        assert "\u202e" not in re.sub(r"<[^>]*>", "", page), address
    listed = get(cast, "vera", f"/datasets/{dataset.pk}/files").content.decode()
    assert "&lt;202e&gt;gnp.exe" in listed
    assert "new^Jline.txt" in listed


def test_versions_are_compared(cast: Cast, dataset: Dataset):
    page = get(cast, "vera", f"/datasets/{dataset.pk}/diff").content.decode()
    for path in ("sub/c.txt", "sub/b.svg", "a.txt"):
        assert path in page
    assert get(cast, "vera", f"/datasets/{dataset.pk}/diff?before=0&after=1").status_code == 200
    assert get(cast, "vera", f"/datasets/{dataset.pk}/diff?before=9").status_code == 404


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("queued", "queued"), ("filling", "being cached"), ("ready", "cached"), ("failed", "cache failed"),
        ("evicting", "being removed"),
    ],
)  # fmt: skip
def test_a_version_reads_cached_when_its_files_are_there(
    cast: Cast, dataset: Dataset, state: str, words: str
):
    path = f"/datasets/{dataset.pk}"
    post(cast, "ben", f"{path}/cache", version="1")
    Cache.objects.update(state=state)
    assert f'<span class="second small">{words}</span>' in get(cast, "ben", path).content.decode()


def test_buttons_cache_pin_remove_and_delete(cast: Cast, dataset: Dataset):
    path = f"/datasets/{dataset.pk}"
    assert post(cast, "ben", f"{path}/cache", version="1").status_code == 302
    cache = Cache.objects.get()
    assert (cache.version.number, cache.state) == (1, "queued")
    post(cast, "ben", f"/caches/{cache.pk}/do/pin")
    cache.refresh_from_db()
    assert cache.is_pinned
    assert "Remove xray@1 from memory?" in get(cast, "ben", f"/caches/{cache.pk}/clear").content.decode()
    post(cast, "ben", f"/caches/{cache.pk}/clear")
    cache.refresh_from_db()
    assert cache.state == "evicting"
    assert "Delete xray?" in get(cast, "ana", f"{path}/delete").content.decode()
    assert post(cast, "ana", f"{path}/delete").status_code == 302
    assert not Dataset.objects.filter(pk=dataset.pk).exists()


def test_a_job_shows_what_it_mounts(cast: Cast, dataset: Dataset):
    mount = {"dataset": "xray", "version": "1", "mount_path": "/data"}
    job = make_job(cast.project, "reads", cast.ben, datasets=[mount])
    page = get(cast, "vera", f"/jobs/{job.pk}").content.decode()
    assert "xray@1" in page
    assert "at /data" in page
    assert "reads" in get(cast, "vera", f"/datasets/{dataset.pk}").content.decode()


def test_what_a_preview_takes_for_a_picture_or_a_text():
    assert [is_picture(name) for name in ("a.png", "a.JPG", "a.svg", "a.html", "a", "a.tiff")] == [
        True,
        True,
    ] + [False] * 4
    assert text_of("ä".encode()[:1], is_whole=False) == ""
    assert text_of("xä".encode()[:2], is_whole=True) is None
    assert text_of(b"a\0", is_whole=True) is None
    assert text_of("grün".encode(), is_whole=True) == "grün"


@pytest.mark.parametrize("nasty", ["%FF%FE", "9" * 60, "..%2F..%2Fetc", "%C3%A9" * 400, "-1", "%2F%2F"])
def test_addresses_that_name_nothing_are_no_fault(cast: Cast, dataset: Dataset, nasty: str):
    for field in ("version", "path", "file", "after"):
        assert get(cast, "vera", f"/datasets/{dataset.pk}/files?{field}={nasty}").status_code in (200, 404)
    for field in ("before", "after"):
        assert get(cast, "vera", f"/datasets/{dataset.pk}/diff?{field}={nasty}").status_code in (200, 404)


def test_caches_are_counted_and_the_newest_shown(
    cast: Cast, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("datasets.pages.datasets.CACHES_SHOWN", 1)
    for version in dataset.versions.order_by("number"):
        cache_version(version, location_for(cast.project.cluster), actor=cast.actor("ben"))
    page = get(cast, "vera", f"/datasets/{dataset.pk}").content.decode()
    assert '<span>2</span></span><span class="under">versions beside the GPUs' in page
    assert page.count("Queued") == 1
    assert "yard dataset caches xray -p team-a" in page


def test_the_list_and_the_jobs_of_a_dataset_are_live(cast: Cast, dataset: Dataset):
    listed = get(cast, "vera", "/datasets").content.decode()
    assert 'id="datasets-list" data-live="activity" data-live-only="datasets"' in listed
    page = get(cast, "vera", f"/datasets/{dataset.pk}").content.decode()
    assert 'id="dataset-jobs" data-live="activity" data-live-only="jobs"' in page


def test_a_member_submits_a_job_with_the_dataset_and_compares_only_several_versions(
    cast: Cast, dataset: Dataset
):
    page = get(cast, "ben", f"/datasets/{dataset.pk}").content.decode()
    address = "/new/job?project=team-a&amp;dataset=xray@latest"
    assert address in page
    assert "Compare versions" in page
    assert "xray@latest:/data" in get(cast, "ben", address.replace("&amp;", "&")).content.decode()
    assert address not in get(cast, "vera", f"/datasets/{dataset.pk}").content.decode()
    single = make_dataset(cast.project, "single")
    make_version(single, {"a.txt": "alpha"})
    assert "Compare versions" not in get(cast, "ben", f"/datasets/{single.pk}").content.decode()


def test_a_cluster_with_many_cache_locations_asks_for_one_in_a_dialog(cast: Cast, dataset: Dataset):
    default = location_for(cast.project.cluster)
    CacheLocation.objects.bulk_create(
        CacheLocation(cluster=default.cluster, name=f"rack-{number}", node_pools=["a"], is_default=False)
        for number in range(300)
    )
    cache_version(dataset.versions.get(number=2), default, actor=cast.actor("ben"))
    page = get(cast, "ben", f"/datasets/{dataset.pk}").content.decode()
    assert "rack-7" not in page
    asked = get(cast, "ben", f"/datasets/{dataset.pk}/cache?version=2").content.decode()
    assert "rack-299</option>" in asked
    assert f"{default.name}</option>" not in asked, "it is there already"
    post(cast, "ben", f"/datasets/{dataset.pk}/cache", version="2", location="rack-7")
    assert Cache.objects.filter(location__name="rack-7").count() == 1
    assert get(cast, "vera", f"/datasets/{dataset.pk}/cache?version=2").status_code == 403


def test_the_page_of_a_job_leads_to_the_datasets_that_it_mounts_and_its_reader_may_see(
    cast: Cast, dataset: Dataset
):
    atlas = make_dataset(cast.other, "atlas", is_shared=True)
    make_version(atlas, {"a": "a"})
    mounts = [
        {"dataset": "xray", "mount_path": "/data"},
        {"dataset": f"{cast.other.name}/atlas", "mount_path": "/atlas"},
    ]
    body = {"name": "reads", "kind": "train", "image": "quickstart", "datasets": mounts}
    job = submit_job(cast.project, body, actor=cast.actor("ben"))

    def links() -> list[str]:
        page = get(cast, "vera", f"/jobs/{job.pk}").content.decode()
        assert "xray@2" in page
        assert f"{cast.other.name}/atlas@1" in page
        return re.findall(r'<a href="/datasets/([^"]+)">', page)

    assert links() == [str(atlas.pk), str(dataset.pk)]
    Dataset.objects.filter(pk=atlas.pk).update(is_shared=False)
    dataset.versions.all().delete()
    assert links() == []
