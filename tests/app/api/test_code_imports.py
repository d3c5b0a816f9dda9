"""Code that the control plane fetches from a git repository."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.commands.dispatch import carry_out_due
from datasets.git_source import GitSource, is_allowed
from datasets.models import CodeImport, CodeTree
from datasets.queries.code import code_of
from tests.app.api.client import Api
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
AsPerson = Callable[[str], Api]
IMPORTS = "projects/team-a/code-imports"
GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


def git(root: Path, *words: str, said: str | None = None) -> str:
    identity = ("-c", "user.name=ben", "-c", "user.email=ben@example.org", "-c", "protocol.file.allow=always")
    environment = {**os.environ, **GIT}
    command = ["git", *identity, *words]
    run = subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True, env=environment, input=said
    )
    return run.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, settings: Any) -> Path:
    """A repository that the control plane may fetch: two commits, a tag on the first."""
    settings.STATE_DIR = tmp_path / "state"
    settings.STATE_DIR.mkdir()
    settings.GIT_SOURCES = [f"file://{tmp_path}/repositories"]
    root = tmp_path / "repositories" / "train"
    root.mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / "train.py").write_text("print(1)\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "latest").symlink_to("train.py")
    # What a checkout would rewrite.
    (root / ".gitattributes").write_text("*.py filter=lfs eol=crlf export-ignore\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    git(root, "tag", "-a", "v1", "-m", "one")
    (root / "train.py").write_text("print(2)\n")
    git(root, "commit", "-qam", "two")
    return root


def fetched(api: Api, root: Path, ref: str | None = None) -> dict[str, Any]:
    """The answer once the import has ended."""
    asked = api.post(IMPORTS, {"url": f"file://{root}", **({"ref": ref} if ref else {})})
    assert (asked.status, asked.body["state"]) == (202, "pending"), asked.body
    return ended(api, asked.body["id"])


def ended(api: Api, import_id: str) -> dict[str, Any]:
    def answer() -> dict[str, Any] | None:
        carry_out_due()
        body = api.get(f"{IMPORTS}/{import_id}").body
        return body if body["state"] != "pending" else None

    return wait_until(answer, 60, "the end of the import")


def contents(tree: str) -> dict[str, tuple[str, bytes]]:
    row = CodeTree.objects.get(digest=tree.removeprefix("sha256:"))
    store = code_of(row.project)
    return {e.path: (e.kind, b"".join(store.pieces(e))) for e in store.entries(row.digest)}


def test_a_branch_becomes_a_tree_as_it_is_in_git(api: AsPerson, repository: Path):
    found = fetched(api("ben"), repository)
    assert found["state"] == "ready", found
    assert found["commit"] == git(repository, "rev-parse", "HEAD")
    files = contents(found["tree"])
    assert files["train.py"] == ("f", b"print(2)\n")
    assert files["run.sh"] == ("x", b"#!/bin/sh\n")
    assert files["latest"] == ("l", b"train.py")
    row = CodeTree.objects.get()
    assert (row.source, row.repository, row.created_by) == ("git", f"file://{repository}", "ben")
    job = {"name": "j1", "kind": "train", "image": "python", "gpus": 0}
    code = {"tree": found["tree"], "commit": found["commit"]}
    submitted = api("ben").post("projects/team-a/jobs", {**job, "code": code})
    assert (submitted.status, submitted.body["code"]["source"]) == (201, "git"), submitted.body


@pytest.mark.parametrize("ref", ["v1", "hash"])
def test_a_tag_and_a_commit_name_what_they_are(api: AsPerson, repository: Path, ref: str):
    first = git(repository, "rev-parse", "v1^{commit}")
    found = fetched(api("ben"), repository, first if ref == "hash" else ref)
    assert (found["state"], found["commit"]) == ("ready", first), found
    assert contents(found["tree"])["train.py"] == ("f", b"print(1)\n")


def test_a_second_fetch_stores_nothing_again(api: AsPerson, repository: Path):
    first, second = fetched(api("ben"), repository), fetched(api("ben"), repository)
    assert first["tree"] == second["tree"]
    assert CodeTree.objects.count() == 1
    assert not list((repository.parents[1] / "state" / "git").iterdir())


def test_a_repository_that_no_admin_allowed_is_not_asked(api: AsPerson, repository: Path, settings: Any):
    refused = api("ben").post(IMPORTS, {"url": "https://10.0.0.1/repositories/train"})
    (error,) = refused.body["errors"]
    assert (refused.status, error["code"]) == (400, "repository_not_allowed")
    assert error["detail"].endswith(f"TRAINYARD_GIT_SOURCES allows: {settings.GIT_SOURCES[0]}.")
    assert not CodeImport.objects.exists()


@pytest.mark.parametrize("ref", ["--upload-pack=touch", "a..b", "a b", "+main", "a:b", "-"])
def test_what_is_no_ref_is_refused(api: AsPerson, repository: Path, ref: str):
    refused = api("ben").post(IMPORTS, {"url": f"file://{repository}", "ref": ref})
    assert (refused.status, refused.body["errors"][0]["code"]) == (400, "not_a_ref")


def test_a_repository_without_a_default_branch_says_what_to_name(api: AsPerson, repository: Path):
    (repository / ".git/HEAD").write_text("ref: refs/heads/none\n")
    words = "The repository has no default branch; name one: URL@BRANCH."
    assert fetched(api("ben"), repository)["reason"]["message"] == words


def test_an_import_that_fails_says_why(api: AsPerson, repository: Path, settings: Any):
    unknown = fetched(api("ben"), repository, "no-such-branch")
    assert (unknown["state"], unknown["reason"]["code"]) == ("failed", "git_failed")
    assert unknown["reason"]["message"] == "The repository has no branch or tag no-such-branch."
    missing = fetched(api("ben"), repository.parent / "other")
    assert missing["reason"]["code"] == "git_failed"
    words = f"'{repository.parent / 'other'}' does not appear to be a git repository"
    assert missing["reason"]["message"] == words
    settings.CODE_MOST_BYTES = 10
    assert fetched(api("ben"), repository)["reason"]["code"] in ("tree_too_large", "repository_too_large")


def test_a_tree_of_trees_that_name_one_another_is_not_listed_whole(
    api: AsPerson, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    """Six objects that stand for a million files."""
    listings: list[bytes] = []
    listing = GitSource._listing
    monkeypatch.setattr(
        GitSource, "_listing", lambda *words: listings.append(listing(*words)) or listings[-1]
    )
    line = f"100644 blob {git(repository, 'rev-parse', 'HEAD:train.py')}\t"
    for _ in range(6):
        tree = git(repository, "mktree", said="".join(f"{line}{name}\n" for name in range(10)))
        line = f"040000 tree {tree}\t"
    git(repository, "update-ref", "refs/heads/many", git(repository, "commit-tree", "-m", "many", tree))
    found = fetched(api("ben"), repository, "many")
    assert found["reason"] == {"code": "too_many_files", "message": "The commit has more than 20,000 files."}
    assert [len(one) < 4 << 20 for one in listings] == [True]


def test_a_commit_that_is_too_large_is_refused_before_it_is_read(
    api: AsPerson, repository: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
):
    read: list[str] = []
    monkeypatch.setattr("datasets.git_source._read", lambda *words: read.append(words[-1]) or iter(()))
    settings.CODE_MOST_BYTES = 40
    (repository / "large").write_bytes(b"0" * 41)
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "large")
    monkeypatch.setattr("datasets.git_source.PACK_ROOM", 1 << 20)
    assert fetched(api("ben"), repository)["reason"]["code"] == "tree_too_large"
    assert read == []


def test_links_out_of_the_tree_are_refused(api: AsPerson, repository: Path):
    (repository / "out").symlink_to("../../etc/passwd")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "out")
    found = fetched(api("ben"), repository)
    assert found["state"] == "failed"
    assert "out" in found["reason"]["message"]


def test_submodules_are_left_out(api: AsPerson, repository: Path):
    git(repository, "submodule", "--quiet", "add", f"file://{repository}", "inner")
    git(repository, "commit", "-qm", "submodule")
    found = fetched(api("ben"), repository)
    assert found["state"] == "ready", found
    assert not [path for path in contents(found["tree"]) if path.startswith("inner")]


def test_a_viewer_may_not_fetch_and_other_projects_see_nothing(api: AsPerson, repository: Path):
    assert api("vera").post(IMPORTS, {"url": f"file://{repository}"}).status == 403
    found = fetched(api("ben"), repository)
    assert api("vera").get(f"{IMPORTS}/{found['id']}").status == 200
    assert api("chi").get(f"{IMPORTS}/{found['id']}").status == 404
    assert api("ben").get(f"{IMPORTS}/no-id").status == 404


ALLOWED = ["https://git.example.org/team", "ssh://git@host.example/"]


@pytest.mark.parametrize(
    ("url", "is_fine"),
    [
        ("https://git.example.org/team", True),
        ("https://git.example.org/team/train.git", True),
        ("ssh://git@host.example/a/b", True),
        ("https://git.example.org/teams/train", False),
        ("https://git.example.org/team/../other", False),
        ("https://git.example.org/team/%2e%2e/other", False),
        ("https://git.example.org/team/x?y", False),
        ("https://git.example.org.evil/team/x", False),
        ("https://ben:pw@git.example.org/team/x", False),
        ("http://git.example.org/team/x", False),
        ("ext::sh -c touch", False),
        ("file:///etc", False),
    ],
)
def test_which_repositories_are_allowed(url: str, is_fine: bool):
    assert is_allowed(url, ALLOWED) is is_fine
