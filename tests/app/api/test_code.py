"""Code trees over REST: sent once, found again by their hash, and by nobody who has not had the files."""

import base64
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane.models import Cluster
from datasets.actions.code import use_trees
from datasets.code_manifest import Entry
from datasets.code_store import ProjectCode
from datasets.models import CodeTree
from datasets.queries.code import code_root
from jobs.models import Job
from tests.app.api.client import Api, Reply
from tests.cast import Cast
from tests.code_trees import archive, listed, make_tree, sha256, tar

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
CODE, JOBS = "projects/team-a/code", "projects/team-a/jobs"
TRAIN, UTIL = b"print('epoch 1')\n", b"LR = 0.1\n"
FILES = {"train.py": TRAIN, "lib/util.py": UTIL}


@pytest.fixture(autouse=True)
def store(settings: Any, tmp_path: Path) -> Path:
    """A code store of the test's own."""
    settings.STATE_DIR = tmp_path
    return tmp_path / "code"


def begin(api: Api, files: Any = None, path: str = CODE) -> Reply:
    return api.post(path, {"files": listed(FILES) if files is None else files})


def send(api: Api, tree: str, body: bytes, path: str = CODE) -> Reply:
    return api.send("PUT", f"{path}/{tree}/content", body, content_type="application/x-tar")


def upload(api: Api, path: str = CODE, **about: Any) -> str:
    begun = begin(api, path=path).body
    contents = {sha256(content): content for content in FILES.values()}
    if begun["missing"]:
        assert (
            send(api, begun["tree"], archive(*(contents[key] for key in begun["missing"])), path).status
            == 200
        )
    made = api.post(f"{path}/{begun['tree']}/commit", about)
    assert made.status == 201, made.body
    return begun["tree"]


def test_a_tree_is_sent_once_and_then_known(api: AsPerson):
    ben = api("ben")
    begun = begin(ben)
    assert begun.status == 200
    assert sorted(begun.body["missing"]) == sorted([sha256(TRAIN), sha256(UTIL)])
    tree = begun.body["tree"]
    assert ben.get(f"{CODE}/{tree}").status == 404
    incomplete = ben.post(f"{CODE}/{tree}/commit", {})
    assert (incomplete.status, incomplete.code) == (409, "tree_incomplete")
    assert send(ben, tree, archive(TRAIN)).body["missing"] == [sha256(UTIL)]
    assert send(ben, tree, archive(UTIL)).body["missing"] == []
    made = ben.post(f"{CODE}/{tree}/commit", {"commit": "9c1f2ab", "is_dirty": True, "diff": "+LR"})
    assert made.status == 201
    assert ben.get(f"{CODE}/{tree}").body == made.body
    assert (made.body["files"], made.body["size_bytes"]) == (2, len(TRAIN) + len(UTIL))
    assert begin(ben).body == {"tree": tree, "missing": []}


def test_one_changed_file_is_all_that_is_sent(api: AsPerson):
    ben = api("ben")
    upload(ben)
    changed = {**FILES, "train.py": b"print('epoch 2')\n"}
    assert begin(ben, listed(changed)).body["missing"] == [sha256(changed["train.py"])]


def test_a_tree_is_told_by_what_differs_from_its_parent(api: AsPerson):
    ben = api("ben")
    parent = upload(ben)
    lib, new = b"LR = 0.2\n", b"new\n"
    told = {"parent": parent, "files": listed({"lib/util.py": lib, "new.py": new}), "removed": ["train.py"]}
    sent = {**told, "contents": [base64.b64encode(content).decode() for content in (lib, new)]}
    whole = begin(ben, listed({"lib/util.py": lib, "new.py": new})).body["tree"]
    assert sorted(ben.post(CODE, told).body["missing"]) == sorted([sha256(lib), sha256(new)])
    assert ben.post(f"{CODE}?dry_run=true", sent).body == {"tree": whole, "missing": []}
    assert len(ben.post(CODE, told).body["missing"]) == 2
    assert ben.post(CODE, sent).body == {"tree": whole, "missing": []}
    assert ben.post(f"{CODE}/{whole}/commit", {}).status == 201
    shown = ben.get(f"{CODE}/{whole}/files").body["results"]
    assert [file["path"] for file in shown] == ["lib/util.py", "new.py"]
    assert ben.get(f"{CODE}/{parent}").status == 200


def test_a_tree_may_be_its_parent_under_another_commit(api: AsPerson):
    ben = api("ben")
    parent = upload(ben, commit="one")
    assert ben.post(CODE, {"parent": parent, "files": []}).body == {"tree": parent, "missing": []}
    assert ben.post(f"{CODE}/{parent}/commit", {"commit": "two"}).status == 201


@pytest.mark.parametrize(
    ("changed", "code", "pointer"),
    [
        ({"removed": ["none.py"]}, "not_in_parent", "/removed"),
        ({"removed": ["train.py", "lib/util.py"]}, "tree_empty", "/files"),
        ({"files": listed({"train.py/below": b"x"})}, "below_a_file", "/files/0"),
        ({"files": listed({"lib": b"x"})}, "below_a_file", "/files"),
        ({"files": listed({"../up": b"x"})}, "bad_path", "/files/0"),
        ({"contents": ["eA=="]}, "content_differs", "/contents"),
        ({"contents": ["?"]}, "not_base64", "/contents/0"),
        ({"contents": [1]}, "not_base64", "/contents/0"),
        ({"parent": "sha256:12"}, "not_a_tree", "/parent"),
        ({"parent": None}, "not_a_tree", "/parent"),
    ],
)
def test_changes_that_are_refused(api: AsPerson, changed: Any, code: str, pointer: str):
    ben = api("ben")
    refused = ben.post(CODE, {"parent": upload(ben), "files": [], **changed})
    assert (refused.status, refused.pointers) == (400, [pointer])
    assert refused.body["errors"][0]["code"] == code


def test_a_parent_is_a_complete_tree_of_the_project(api: AsPerson, cast: Cast):
    ben, other = api("ben"), make_tree(cast.project, FILES)
    sent = {"files": listed({"new.py": b"new"}), "parent": other}
    assert (refused := api("chi").post("projects/team-b/code", sent)).code == "parent_unknown"
    assert refused.status == 409
    begun = begin(ben, listed({"a.py": b"a"})).body["tree"]
    assert ben.post(CODE, {**sent, "parent": begun}).code == "parent_unknown"
    without = ben.post(CODE, {"files": listed({"new.py": b"new"}), "removed": ["train.py"]})
    assert (without.status, without.pointers) == (400, ["/removed"])


def test_a_parent_that_is_removed_meanwhile_protects_nothing(
    api: AsPerson, cast: Cast, monkeypatch: pytest.MonkeyPatch
):
    ben = api("ben")
    parent = upload(ben)
    begun = ProjectCode.begin

    def removed_first(store: ProjectCode, *args: Any) -> Any:
        store.remove([parent.removeprefix("sha256:")])
        return begun(store, *args)

    monkeypatch.setattr(ProjectCode, "begin", removed_first)
    refused = ben.post(CODE, {"parent": parent, "files": listed({"new.py": b"new"})})
    assert (refused.status, refused.code) == (409, "parent_unknown")


def test_a_tree_under_another_commit_is_another_row_of_the_same_files(api: AsPerson):
    ben = api("ben")
    tree = upload(ben, commit="one", diff="+1", is_dirty=True)
    upload(ben, commit="two")
    assert ben.get(f"{CODE}/{tree}?commit=one").body["diff"] == "+1"
    assert ben.get(f"{CODE}/{tree}").body["commit"] == "two"
    assert [row["commit"] for row in ben.get(CODE).body["results"]] == ["two", "one"]


def test_a_hash_gives_nothing_of_another_project(api: AsPerson, cast: Cast):
    tree = make_tree(cast.project, FILES)
    chi = api("chi")
    assert chi.get(f"projects/team-b/code/{tree}").status == 404
    assert chi.get(f"projects/team-b/code/{tree}/archive").status == 404
    assert len(begin(chi, path="projects/team-b/code").body["missing"]) == 2
    assert chi.post(f"projects/team-b/code/{tree}/commit", {}).code == "tree_incomplete"
    refused = chi.post("projects/team-b/jobs", {"name": "a", "kind": "train", "code": {"tree": tree}})
    assert (refused.status, refused.code, refused.pointers) == (400, "code_unknown", ["/code/tree"])


def test_equal_contents_of_two_projects_are_one_file(api: AsPerson, cast: Cast):
    tree = upload(api("ben"))
    assert upload(api("chi"), "projects/team-b/code") == tree
    path = code_root() / "objects" / sha256(TRAIN)[:2] / sha256(TRAIN)
    assert path.stat().st_nlink == 3


def test_a_job_keeps_what_is_known_of_its_code(api: AsPerson):
    ben = api("ben")
    tree = upload(ben, commit="9c1f2ab", branch="main", is_dirty=True, diff="+x", repository="https://git/x")
    sent = {"name": "a", "kind": "train", "code": {"tree": tree}}
    made = ben.post(JOBS, sent)
    assert made.status == 201
    code = {
        "tree": tree,
        "commit": "9c1f2ab",
        "branch": "main",
        "is_dirty": True,
        "source": "upload",
        "repository": "https://git/x",
    }
    assert made.body["code"] == code
    again = ben.post(f"jobs/{made.body['id']}/clone", {"name": "b"})
    assert again.body["code"] == code
    assert ben.post(JOBS, {"name": "c", "kind": "train"}).body["code"] is None


def test_what_a_client_says_of_its_code_is_not_believed(api: AsPerson):
    ben = api("ben")
    tree = upload(ben, commit="9c1f2ab")
    wrong = {"tree": tree, "is_dirty": True, "source": "git", "repository": "https://elsewhere"}
    assert ben.post(JOBS, {"name": "a", "kind": "train", "code": wrong}).body["code"]["source"] == "upload"
    refused = ben.post(JOBS, {"name": "b", "kind": "train", "code": {"tree": tree, "commit": "other"}})
    assert refused.code == "code_unknown"


def test_the_archive_has_the_files_as_they_were(api: AsPerson, cast: Cast):
    files = {**FILES, "deep/" + "n" * 200 + "/x": b"", "caf\u00e9": b"1" * 513}
    tree = make_tree(cast.project, files)
    answer = api("vera").client.get(f"/api/v1/{CODE}/{tree}/archive")
    assert answer.headers["Content-Type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(b"".join(answer.streaming_content))) as read:
        found = {name: read.extractfile(name).read() for name in read.getnames()}
    assert found == files


@pytest.mark.parametrize(
    ("files", "code", "pointer"),
    [
        ([{"path": "../up", "size": 1, "hash": "ab" * 32}], "bad_path", "/files/0"),
        ([{"path": "/etc/x", "size": 1, "hash": "ab" * 32}], "bad_path", "/files/0"),
        ([{"path": "a", "link": "/etc/passwd"}], "link_leaves_tree", "/files/0"),
        ([{"path": "a", "size": 201 << 20, "hash": "ab" * 32}], "tree_too_large", "/files"),
        ([{"path": "a", "size": 1, "hash": "short"}], "not_a_hash", "/files/0"),
        ([{"path": "a", "size": True, "hash": "ab" * 32}], "not_an_entry", "/files/0"),
        ([{"path": "a"}], "not_an_entry", "/files/0"),
        ([], "tree_empty", "/files"),
        ([{"path": "a", "size": 1, "hash": "ab" * 32}] * 20_001, "too_many", "/files"),
    ],
)
def test_lists_of_files_that_are_refused(api: AsPerson, files: list[Any], code: str, pointer: str):
    refused = begin(api("ben"), files)
    assert (refused.status, refused.code, refused.pointers) == (400, code, [pointer])


def member(kind: bytes, name: str = sha256(TRAIN), size: int = 0, link: str = "") -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type, header.size, header.linkname = kind, size, link
    return header


BROKEN = {
    "a name that is a path": (tar({"../../etc/cron.d/x": TRAIN}), "not_asked_for"),
    "an absolute name": (tar({"/etc/passwd": TRAIN}), "not_asked_for"),
    "a symbolic link": (tar({"x": member(tarfile.SYMTYPE, link="/etc/passwd")}), "not_a_plain_file"),
    "a hard link": (tar({"x": member(tarfile.LNKTYPE, link="/etc/passwd")}), "not_a_plain_file"),
    "a device": (tar({"x": member(tarfile.CHRTYPE)}), "not_a_plain_file"),
    "a directory": (tar({"x": member(tarfile.DIRTYPE)}), "not_a_plain_file"),
    "another content": (tar({sha256(TRAIN): b"#" * len(TRAIN)}), "content_differs"),
    "another size": (tar({sha256(TRAIN): TRAIN + b"#"}), "not_asked_for"),
    "a file that was not asked for": (archive(b"#"), "not_asked_for"),
    "no archive": (b"PK" * 512, "not_an_archive"),
    "a broken header": (b"x" + archive(TRAIN)[1:], "not_an_archive"),
    "half a header": (archive(TRAIN)[:100], "archive_incomplete"),
    "half a file": (archive(TRAIN)[:520], "archive_incomplete"),
}


@pytest.mark.parametrize(("body", "code"), BROKEN.values(), ids=BROKEN)
def test_archives_that_are_refused_leave_nothing(api: AsPerson, store: Path, body: bytes, code: str):
    ben = api("ben")
    tree = begin(ben).body["tree"]
    refused = send(ben, tree, body)
    assert (refused.status, refused.code) == (400, code)
    assert len(begin(ben).body["missing"]) == 2
    assert list(store.rglob(".*")) == []


def test_files_of_a_tree_that_was_not_begun_are_refused(api: AsPerson):
    refused = send(api("ben"), f"sha256:{'ab' * 32}", archive(TRAIN))
    assert (refused.status, refused.code) == (409, "tree_not_begun")
    assert send(api("ben"), "HEAD", archive(TRAIN)).status == 404


def test_a_commit_may_be_repeated_and_is_recorded_once(api: AsPerson, cast: Cast):
    ben = api("ben")
    tree = upload(ben)
    assert ben.post(f"{CODE}/{tree}/commit", {}).status == 201
    assert CodeTree.objects.count() == 1
    assert [row["verb"] for row in api("root").get("audit?verb=code.upload").body["results"]] == [
        "code.upload"
    ]


def test_links_of_a_tree_are_kept_without_being_sent(api: AsPerson, cast: Cast):
    ben = api("ben")
    files = [*listed(FILES), {"path": "lib/latest.py", "link": "util.py"}]
    begun = begin(ben, files).body
    assert len(begun["missing"]) == 2
    send(ben, begun["tree"], archive(TRAIN, UTIL))
    assert ben.post(f"{CODE}/{begun['tree']}/commit", {}).body["files"] == 3


def test_damaged_content_is_asked_for_again(api: AsPerson, cast: Cast):
    """As a crash of the machine may leave it: the file is there, and empty."""
    ben = api("ben")
    tree = upload(ben)
    for path in code_root().rglob(sha256(TRAIN)):
        path.unlink()
        path.touch()
    assert begin(ben).body["missing"] == [sha256(TRAIN)]
    assert upload(ben) == tree
    store = ProjectCode(code_root(), cast.project.pk)
    [entry] = [one for one in store.entries(tree.removeprefix("sha256:")) if one.path == "train.py"]
    assert b"".join(store.pieces(entry)) == TRAIN


def test_a_tree_that_was_removed_meanwhile_is_not_submitted(api: AsPerson, monkeypatch: pytest.MonkeyPatch):
    ben = api("ben")
    tree = upload(ben)
    removed = CodeTree.objects.filter(digest=tree.removeprefix("sha256:"))
    monkeypatch.setattr("jobs.actions.check_room_in_queue", lambda *_: removed.delete())
    refused = ben.post(JOBS, {"name": "a", "kind": "train", "code": {"tree": tree}})
    assert (refused.status, refused.code) == (409, "code_removed")
    assert not Job.objects.exists()


def test_a_cluster_whose_pods_have_no_way_to_the_control_plane_refuses_code(api: AsPerson, cast: Cast):
    tree = make_tree(cast.project, FILES)
    Cluster.objects.filter(pk=cast.project.cluster_id).update(engine="kubernetes")
    refused = api("ben").post(JOBS, {"name": "a", "kind": "train", "image": "python", "code": {"tree": tree}})
    assert (refused.status, refused.code, refused.pointers) == (400, "code_not_supported", ["/code"])


def test_batches_that_name_the_same_trees_mark_them_in_one_order(cast: Cast) -> None:
    """On PostgreSQL two of them would otherwise wait for each other's rows."""
    digests = [sha256(bytes([number])) for number in range(6)]
    for digest in digests:
        CodeTree.objects.create(project=cast.project, digest=digest, files=1, size_bytes=1, created_by="ben")
    with CaptureQueriesContext(connection) as captured:
        use_trees(cast.project, digests)
    marked = [digest for query in captured for digest in digests if f"'{digest}'" in query["sql"]]
    assert marked == sorted(digests)


def test_the_files_of_a_tree_are_listed_in_pages(api: AsPerson, cast: Cast):
    files = {"train.py": TRAIN, "run.sh": b"#!/bin/sh\n", "lib/a.py": b"", "lib/b.py": b"1"}
    tree = make_tree(cast.project, files)
    path = f"{CODE}/{tree}/files"
    first = api("vera").get(f"{path}?limit=3").body
    assert ([one["path"] for one in first["results"]], first["has_more"]) == (
        ["lib/a.py", "lib/b.py", "run.sh"],
        True,
    )
    rest = api("vera").get(f"{path}?after=run.sh").body
    [last] = rest["results"]
    assert (last["path"], last["size"], last["hash"]) == ("train.py", len(TRAIN), sha256(TRAIN))
    assert not rest["has_more"]
    begun = begin(api("ben"), [*listed({"train.py": TRAIN}), {"path": "main.py", "link": "train.py"}]).body
    assert api("ben").post(f"{CODE}/{begun['tree']}/commit", {}).status == 201
    [link, _] = api("vera").get(f"{CODE}/{begun['tree']}/files").body["results"]
    assert link == {"path": "main.py", "link": "train.py"}
    assert api("chi").get(path).status == 404
    assert api("ben").get(f"{CODE}/sha256:{'0' * 64}/files").status == 404


def test_files_are_looked_at_before_the_transaction_that_creates_the_tree(
    api: AsPerson, monkeypatch: pytest.MonkeyPatch
):
    outside, inside, real = len(connection.atomic_blocks), list[bool](), ProjectCode._has

    def has(store: ProjectCode, entry: Entry) -> bool:
        inside.append(len(connection.atomic_blocks) > outside)
        return real(store, entry)

    monkeypatch.setattr(ProjectCode, "_has", has)
    upload(api("ben"))
    # Those of the beginning, of the end of the archive and of the commit.
    assert len(inside) >= 3
    assert not any(inside)
