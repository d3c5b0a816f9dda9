"""Datasets over REST: history, files, content in and out, conflicts, roles."""

from hashlib import sha256
from urllib.parse import urlencode

import pytest

from controlplane.models import AuditEntry, Event
from datasets.ingest.nearby import folder_mark, machine_mark
from datasets.models import Dataset, DatasetVersion
from datasets.queries import lake as lake_module
from datasets.queries.lake import lake_of
from datasets.storage.base import ContentDamaged
from tests.datasets import make_dataset, make_version, manifest_of, pack_of

pytestmark = pytest.mark.django_db
BYTES = "application/octet-stream"
FILES = {"a.txt": "alpha", "sub/b.txt": "beta", "sub/deep/c.txt": "gamma"}


@pytest.fixture(autouse=True)
def own_lake(own_lakes):
    """Ids of projects come again after each test's rollback; their lakes do not."""


@pytest.fixture
def dataset(cast) -> Dataset:
    return make_dataset(cast.project)


def sent(api, dataset, files: dict[str, str]) -> str:
    """Send contents and manifest as `yard` does; return the manifest's hash."""
    content, path = [text.encode() for text in files.values()], f"datasets/{dataset.pk}/content"
    assert api.send("PUT", f"{path}/packs", pack_of(*content), content_type=BYTES).status == 200
    answer = api.send("PUT", f"{path}/manifests", manifest_of(files).encode(), content_type=BYTES)
    assert answer.body["lacking"] == 0
    return answer.body["manifest"]


def test_a_first_version_and_a_second(api, cast, dataset):
    ben = api("ben")
    first = ben.post(
        f"datasets/{dataset.pk}/versions",
        {"manifest": sent(ben, dataset, FILES), "parent": 0, "message": "first"},
    )
    assert first.status == 201
    assert (first.body["number"], first.body["files"], first.body["size_bytes"]) == (1, 3, 14)
    assert (first.body["author"], first.body["parent"], first.body["files_added"]) == ("ben", None, 3)
    changed = {**FILES, "a.txt": "other", "new.txt": "new"}
    del changed["sub/b.txt"]
    second = ben.post(
        f"datasets/{dataset.pk}/versions", {"manifest": sent(ben, dataset, changed), "parent": 1}
    )
    counts = [second.body[f"files_{sort}"] for sort in ("added", "changed", "removed")]
    assert counts == [1, 1, 1]
    listed = ben.get(f"datasets/{dataset.pk}/versions").body["results"]
    assert [version["number"] for version in listed] == [2, 1]
    shown = ben.get(f"datasets/{dataset.pk}").body
    assert (shown["latest"], shown["latest_id"], shown["files"]) == (2, second.body["id"], 3)
    assert Event.objects.filter(kind="dataset.version_created").count() == 2
    assert AuditEntry.objects.filter(verb="dataset.commit", actor="ben").count() == 2


def test_only_a_caller_on_this_machine_learns_where_the_lake_is(api, dataset):
    path, folder = f"datasets/{dataset.pk}/content/nearby", str(lake_of(dataset.project).root)
    assert api("ben").get(f"{path}?machine={machine_mark()}").body == {
        "folder": folder,
        "mark": folder_mark(folder),
    }
    elsewhere = {"folder": None, "mark": None}
    assert api("ben").get(f"{path}?machine={'0' * 64}").body == elsewhere
    assert api("ben").get(path).body == elsewhere


def test_a_machine_without_an_identity_is_near_nothing(api, dataset, monkeypatch, tmp_path):
    monkeypatch.setattr("datasets.ingest.nearby._BOOT_ID", tmp_path / "none")
    assert machine_mark() == ""
    assert api("ben").get(f"datasets/{dataset.pk}/content/nearby?machine=").body["folder"] is None


def test_of_two_syncs_at_once_the_second_is_told_the_new_parent(api, dataset):
    ben, ana = api("ben"), api("ana")
    mine, theirs = sent(ben, dataset, FILES), sent(ana, dataset, {"z": "zeta"})
    path = f"datasets/{dataset.pk}/versions"
    assert ana.post(path, {"manifest": theirs, "parent": 0}).status == 201
    refused = ben.post(path, {"manifest": mine, "parent": 0})
    assert (refused.status, refused.code) == (409, "parent_moved")
    assert "version 1" in refused.body["detail"]
    assert ben.post(path, {"manifest": mine, "parent": 1}).body["number"] == 2


def test_a_sync_that_was_overtaken_in_the_last_moment_makes_no_version(api, dataset, monkeypatch):
    """The check of the parent is the UPDATE itself, not the look before it."""
    ben = api("ben")
    manifest = sent(ben, dataset, FILES)
    monkeypatch.setattr(
        "datasets.actions.datasets.compare",
        lambda *_: Dataset.objects.filter(pk=dataset.pk).update(latest=7) and _DIFFERENT,
    )
    refused = ben.post(f"datasets/{dataset.pk}/versions", {"manifest": manifest, "parent": 0})
    assert (refused.status, refused.code) == (409, "parent_moved")
    assert not DatasetVersion.objects.exists()


class _Different:
    is_empty = False
    added = changed = removed = ()


_DIFFERENT = _Different()


def test_the_same_files_again_are_the_same_version(api, dataset):
    ben = api("ben")
    body = {"manifest": sent(ben, dataset, FILES), "parent": 0}
    ben.post(f"datasets/{dataset.pk}/versions", body)
    again = ben.post(f"datasets/{dataset.pk}/versions", {**body, "parent": 1})
    assert (again.status, again.body["number"]) == (200, 1)


def test_a_manifest_whose_content_is_not_there_cannot_be_committed(api, cast, dataset):
    ben, manifest = api("ben"), manifest_of(FILES)
    answer = ben.send(
        "PUT", f"datasets/{dataset.pk}/content/manifests", manifest.encode(), content_type=BYTES
    )
    assert answer.body == {"manifest": manifest.hash, "lacking": 3}
    refused = ben.post(f"datasets/{dataset.pk}/versions", {"manifest": manifest.hash, "parent": 0})
    assert (refused.status, refused.code) == (409, "content_missing")


def test_content_that_was_lost_since_the_last_version_is_asked_for_again(api, cast, dataset):
    """Also if the next version has it at the same path as before."""
    ben = api("ben")
    ben.post(f"datasets/{dataset.pk}/versions", {"manifest": sent(ben, dataset, FILES), "parent": 0})
    lake, beta = lake_of(cast.project), sha256(b"beta").digest()
    sent(ben, dataset, FILES | {"new.txt": "new"})
    path = lake.path_of(lake.locate([beta])[0])
    assert path
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"beta", b"bEta"))
    assert lake.verify([beta]).quarantined == [beta]
    manifest = manifest_of(FILES | {"new.txt": "new", "newer.txt": "new"})
    answer = ben.send(
        "PUT", f"datasets/{dataset.pk}/content/manifests", manifest.encode(), content_type=BYTES
    )
    assert answer.body["lacking"] == 1


def test_another_projects_content_is_unknown_here(api, cast, dataset):
    """Who can name a hash must not get the content of another project, nor learn that it is there."""
    make_version(make_dataset(cast.other, "secret"), {"s": "secret"})
    digest = sha256(b"secret").digest()
    answer = api("ben").send("POST", f"datasets/{dataset.pk}/content/lacking", digest, content_type=BYTES)
    assert answer.body == {"lacking": [0]}


def test_another_projects_manifest_is_unknown_here(api, cast, dataset):
    """Also one that this process has read for the other project; this project has the same contents."""
    sent(api("ben"), dataset, FILES)
    secret = make_version(make_dataset(cast.other, "secret"), FILES | {"d.txt": "alpha"})
    refused = api("ben").post(f"datasets/{dataset.pk}/versions", {"manifest": secret.manifest, "parent": 0})
    assert (refused.status, refused.code) == (409, "content_missing")


def damage_manifest(dataset: Dataset, damaged: bytes) -> None:
    """Overwrite the one manifest of the lake, which no process has in memory afterwards."""
    lake_module._manifests.clear()
    folder = lake_of(dataset.project).root / "manifests"
    [stored] = (path for path in folder.rglob("*") if path.is_file())
    stored.chmod(0o644)
    stored.write_bytes(damaged)


def test_a_damaged_manifest_is_not_shown_as_the_version(api, cast, dataset):
    version = make_version(dataset, FILES)
    for damaged in (manifest_of({"other.txt": "alpha"}).encode(), b"garbage"):
        damage_manifest(dataset, damaged)
        shown = api("ben").get(f"versions/{version.pk}/files")
        assert (shown.status, shown.code) == (409, "manifest_missing")
        assert "sync --full" in shown.body["detail"]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_sync_stores_a_damaged_manifest_again_and_goes_on_after_a_lost_one(api, dataset, is_changed):
    version, ben = make_version(dataset, FILES), api("ben")
    damage_manifest(dataset, b"garbage")
    files = {"new.txt": "new"} if is_changed else FILES
    sync = {"manifest": sent(ben, dataset, files), "parent": 1}
    made = ben.post(f"datasets/{dataset.pk}/versions", sync)
    assert (made.status, made.body["number"]) == ((201, 2) if is_changed else (200, 1))
    lake_module._manifests.clear()
    assert ben.get(f"versions/{made.body['id']}/files").body["results"][0]["name"] == min(files).split("/")[0]
    assert ben.get(f"versions/{version.pk}/files").status == (409 if is_changed else 200)


@pytest.mark.parametrize(
    ("where", "body", "code"),
    [
        ("packs", b"garbage", "bad_pack"),
        ("packs", b"x" + pack_of(b"one"), "bad_pack"),
        ("packs", b"", "bad_pack"),
        ("manifests", b"garbage", "bad_manifest"),
        ("lacking", b"short", "bad_digests"),
    ],
)
def test_what_is_sent_damaged_is_refused(api, dataset, where, body, code):
    method = "POST" if where == "lacking" else "PUT"
    refused = api("ben").send(method, f"datasets/{dataset.pk}/content/{where}", body, content_type=BYTES)
    assert (refused.status, refused.code) == (400, code)


def test_a_manifest_that_leaves_its_tree_is_refused(api, dataset):
    evil = manifest_of({"up": "x"})
    evil.paths[0] = b"../../etc/passwd"
    refused = api("ben").send(
        "PUT", f"datasets/{dataset.pk}/content/manifests", evil.encode(), content_type=BYTES
    )
    assert (refused.status, refused.code) == (400, "bad_manifest")


def test_a_large_content_in_parts(api, cast, dataset):
    ben, content = api("ben"), b"0123456789" * 50_000
    path = f"datasets/{dataset.pk}/content/parts/{sha256(content).hexdigest()}"
    assert ben.get(path).body == {"size_bytes": 0}
    half = len(content) // 2
    first = ben.send("PUT", f"{path}?offset=0&size={len(content)}", content[:half], content_type=BYTES)
    assert first.body == ben.get(path).body == {"size_bytes": half}
    last = ben.send("PUT", f"{path}?offset={half}&size={len(content)}", content[half:], content_type=BYTES)
    assert last.body == {"size_bytes": len(content)}
    assert not lake_of(cast.project).lacking([sha256(content).digest()])
    wrong = f"datasets/{dataset.pk}/content/parts/{'0' * 64}?size=3"
    assert ben.send("PUT", wrong, b"abc", content_type=BYTES).code == "content_damaged"


def test_files_of_a_version_are_browsed_in_pages(api, dataset):
    version = make_version(dataset, FILES)
    vera = api("vera")
    top = vera.get(f"versions/{version.pk}/files").body
    assert [(row["name"], row["kind"], row["files"], row["size_bytes"]) for row in top["results"]] == [
        ("a.txt", "file", 1, 5),
        ("sub", "directory", 2, 9),
    ]
    one = vera.get(f"versions/{version.pk}/files?limit=1").body
    assert one["has_more"] is True
    rest = vera.get(f"versions/{version.pk}/files?after=a.txt").body
    assert [row["name"] for row in rest["results"]] == ["sub"]
    below = vera.get(f"versions/{version.pk}/files?directory=sub").body
    assert [row["path"] for row in below["results"]] == ["sub/b.txt", "sub/deep"]


def test_names_that_are_not_utf8_are_paged_through_and_found_by_what_is_shown(api, client, cast, dataset):
    top = ["\\xff0", "z", "\udcff1", "\udcff2", "\udcff3"]
    version, vera = make_version(dataset, {f"d\udcfe/{name}": "content" for name in top}), api("vera")
    client.force_login(cast.vera)
    files = f"versions/{version.pk}/files"
    [directory] = vera.get(files).body["results"]
    listed, after = [], ""
    for _ in top:
        asked = urlencode({"directory": directory["path"], "after": after, "limit": 1})
        page = vera.get(f"{files}?{asked}").body
        listed += page["results"]
        after = listed[-1]["name"]
    assert [row["name"] for row in listed] == ["\\xff0", "z", "\\xff1", "\\xff2", "\\xff3"]
    assert page["has_more"] is False
    shown = urlencode({"path": listed[-1]["path"]})
    assert vera.get(f"versions/{version.pk}/content?{shown}", accept="*/*").status == 200
    page = client.get(
        f"/datasets/{dataset.pk}/files?{urlencode({'path': directory['path']})}"
    ).content.decode()
    assert "has no directory" not in page
    assert "\\xff3" in page


def test_a_directory_that_is_not_there_is_not_an_empty_one(api, dataset):
    version = make_version(dataset, {"sub/a.txt": "alpha"})
    for path, words in (("nowhere", "is not there"), ("../..", "is not there"), ("sub/a.txt", "is a file")):
        answer = api("vera").get(f"versions/{version.pk}/files?directory={path}")
        assert (answer.status, words in answer.body["detail"]) == (404, True)
    assert api("vera").get(f"versions/{version.pk}/files?directory=sub&after=a.txt").body["results"] == []


def test_a_damaged_content_is_not_downloaded_as_the_file(api, dataset, monkeypatch):
    version, ben = make_version(dataset, {"a.txt": "alpha" * 9, "b.txt": "beta"}), api("ben")
    [pack] = (path for path in (lake_of(dataset.project).root / "packs").rglob("*") if path.is_file())
    pack.chmod(0o644)
    pack.write_bytes(pack.read_bytes().replace(b"alpha", b"alphA"))
    refused = ben.get(f"versions/{version.pk}/content?path=a.txt", accept="*/*")
    assert (refused.status, refused.code) == (409, "content_damaged")
    assert ben.get(f"versions/{version.pk}/content?path=b.txt", accept="*/*").body == b"beta"
    # One of several pieces has begun to arrive: the response ends before its last piece.
    monkeypatch.setattr("datasets.api.contents.PIECE_BYTES", 10)
    with pytest.raises(ContentDamaged):
        ben.get(f"versions/{version.pk}/content?path=a.txt", accept="*/*")


def test_a_file_that_is_shorter_than_its_manifest_says_is_not_read_on(api, dataset, monkeypatch):
    ben, lying = api("ben"), manifest_of({"a.txt": "alpha"})
    lying.sizes[0] = 1 << 50
    path = f"datasets/{dataset.pk}/content"
    for what, sent in (("packs", pack_of(b"alpha")), ("manifests", lying.encode())):
        assert ben.send("PUT", f"{path}/{what}", sent, content_type=BYTES).status == 200
    version = ben.post(f"datasets/{dataset.pk}/versions", {"manifest": lying.hash, "parent": 0}).body["id"]
    lake, reads = lake_of(dataset.project), []
    read = type(lake).read

    def counted(*given):
        reads.append(given)
        assert len(reads) < 10
        return read(*given)

    monkeypatch.setattr(type(lake), "read", counted)
    refused = ben.get(f"versions/{version}/content?path=a.txt", accept="*/*")
    assert (refused.status, refused.code) == (409, "content_damaged")


def test_sizes_that_are_not_those_of_the_contents_do_not_fill_the_memory(api, dataset, monkeypatch):
    ben, lying = api("ben"), manifest_of({"a.txt": "alpha" * 9})
    lying.sizes[0] = 0
    path = f"datasets/{dataset.pk}/content"
    for what, sent in (("packs", pack_of(b"alpha" * 9)), ("manifests", lying.encode())):
        assert ben.send("PUT", f"{path}/{what}", sent, content_type=BYTES).status == 200
    version = ben.post(f"datasets/{dataset.pk}/versions", {"manifest": lying.hash, "parent": 0}).body["id"]
    monkeypatch.setattr("datasets.api.contents.PACK_OUT_BYTES", 40)
    assert ben.get(f"versions/{version}/pack", accept="*/*").code == "too_many_bytes"
    assert ben.get(f"versions/{version}/content?path=a.txt", accept="*/*").code == "content_damaged"


def test_a_file_comes_back_and_never_runs_in_our_origin(api, dataset):
    version = make_version(dataset, {"page.html": "<script>1</script>", "dot.png": "png"})
    vera = api("vera")
    page = vera.get(f"versions/{version.pk}/content?path=page.html", accept="*/*")
    assert page.body == b"<script>1</script>"
    assert page.headers["Content-Type"] == BYTES
    assert page.headers["Content-Disposition"].startswith("attachment")
    picture = vera.get(f"versions/{version.pk}/content?path=dot.png", accept="*/*")
    assert (picture.headers["Content-Type"], picture.headers["X-Content-Type-Options"]) == (
        "image/png",
        "nosniff",
    )
    assert vera.get(f"versions/{version.pk}/content?path=none").status == 404


def test_a_diff_against_the_parent_nothing_and_a_named_version(api, dataset):
    make_version(dataset, FILES)
    second = make_version(dataset, {**FILES, "a.txt": "other"})
    vera = api("vera")
    assert vera.get(f"versions/{second.pk}/diff").body["changed"] == ["a.txt"]
    assert vera.get(f"versions/{second.pk}/diff?before=0&limit=1").body["counts"]["added"] == 3
    assert vera.get(f"versions/{second.pk}/diff?before=9").status == 404


def test_tags_name_versions_and_move(api, dataset):
    make_version(dataset, FILES)
    make_version(dataset, {"z": "zeta"})
    ben = api("ben")
    assert ben.post(f"datasets/{dataset.pk}/tags", {"name": "golden", "version": "1"}).body["tags"] == [
        "golden"
    ]
    ben.post(f"datasets/{dataset.pk}/tags", {"name": "golden", "version": "latest"})
    assert ben.get(f"datasets/{dataset.pk}/versions/golden").body["number"] == 2
    unknown = ben.get(f"datasets/{dataset.pk}/versions/77")
    words = "xray has no version 77; it has the numbers 1 to 2 and the tags golden."
    assert (unknown.status, unknown.body["detail"]) == (404, words)
    for name in ("latest", "7"):
        assert ben.post(f"datasets/{dataset.pk}/tags", {"name": name, "version": "1"}).status == 400
    assert ben.delete(f"datasets/{dataset.pk}/tags/golden").status == 204
    assert ben.get(f"datasets/{dataset.pk}/versions/golden").status == 404


def test_damage_is_found_by_verify(api, cast, dataset):
    version = make_version(dataset, FILES)
    ben = api("ben")
    assert ben.post(f"versions/{version.pk}/verify").body["is_intact"] is True
    lake = lake_of(cast.project)
    [located] = lake.locate([sha256(b"beta").digest()])
    path = lake.path_of(located)
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.seek(located.offset)
        file.write(b"!")
    found = ben.post(f"versions/{version.pk}/verify").body
    assert (found["is_intact"], found["damaged"]) == (False, [sha256(b"beta").hexdigest()])
    assert found["repair"] == "yard dataset sync --full from where the files are"
    sent(ben, dataset, {"sub/b.txt": "beta"})
    assert ben.post(f"versions/{version.pk}/verify").body["is_intact"] is True


def test_a_shared_dataset_is_read_by_everyone_and_written_by_its_project(api, cast):
    dataset = make_dataset(cast.project, "open")
    version = make_version(dataset, FILES)
    chi = api("chi")
    assert chi.get(f"datasets/{dataset.pk}").status == 404
    assert api("ben").patch(f"datasets/{dataset.pk}", {"is_shared": True}).status == 403
    assert api("ana").patch(f"datasets/{dataset.pk}", {"is_shared": True}).status == 200
    assert [row["name"] for row in chi.get("datasets").body["results"]] == ["open"]
    assert chi.get(f"versions/{version.pk}/files").status == 200
    refused = chi.post(f"datasets/{dataset.pk}/tags", {"name": "mine", "version": "1"})
    assert (refused.status, refused.body["detail"]) == (
        403,
        "open is shared for reading. This needs the role member in its project team-a, of which you are not a member.",
    )
    assert chi.delete(f"datasets/{dataset.pk}").status == 403
    shared = {"name": "mine", "is_shared": True}
    assert api("ben").post("projects/team-a/datasets", shared).status == 403, "only owners publish"
    assert api("ana").post("projects/team-a/datasets", shared).status == 201


def test_a_deleted_dataset_is_gone_and_its_name_is_free(api, cast, dataset):
    make_version(dataset, FILES)
    assert api("ben").delete(f"datasets/{dataset.pk}").status == 403
    assert api("ana").delete(f"datasets/{dataset.pk}").status == 200
    assert api("ben").post("projects/team-a/datasets", {"name": dataset.name}).status == 201
    assert api("ben").post("projects/team-a/datasets", {"name": dataset.name}).code == "name_in_use"


def test_a_dataset_is_created_by_its_project_in_the_address_or_in_the_body(api, cast):
    body = {"project": "team-a", "name": "scans", "description": "of chests"}
    made = api("ben").post("datasets", body)
    assert (made.status, made.body["project"], made.body["description"]) == (201, "team-a", "of chests")
    assert "ETag" in made.headers
    assert api("ben").post("projects/team-a/datasets", {"name": "scans"}).code == "name_in_use"
    assert api("ben").post("datasets", {"name": "scans"}).pointers == ["/project"]
    assert api("vera").post("datasets", body | {"name": "more"}).status == 403
    assert api("chi").post("datasets", body | {"name": "more"}).status == 404
    shared = body | {"name": "shared", "is_shared": True}
    assert [api(name).post("datasets", shared).status for name in ("ben", "ana")] == [403, 201]
