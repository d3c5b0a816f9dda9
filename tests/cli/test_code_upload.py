"""What `yard submit --code` sends: the whole list of files once, and after that what has changed."""

import base64
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.code.listing import Listing, list_files
from controlplane.cli.code.tree import Tree, read_tree
from tests.cli.conftest import JOB_ID
from tests.cli.scripted import ScriptedServer, problem

CODE, JOBS = "projects/team-a/code", "projects/team-a/jobs"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "root"
    root.mkdir()
    for name in "abcd":
        (root / f"{name}.py").write_text(f"{name}\n")
    return root


def tree_of(root: Path) -> Tree:
    return read_tree(list_files(str(root)), dict(os.environ))


def script(server: ScriptedServer, root: Path, *begun: Any, is_known: bool = False) -> str:
    """Script the server for the present tree of `root`, whose name is returned. `begun`: the answers to the begin of
    its upload, instead of one without missing files."""
    tree = f"sha256:{tree_of(root).digest}"
    if is_known:
        server.on("GET", f"{CODE}/{tree}", {})
    server.on("POST", CODE, *(begun or ({"tree": tree, "missing": []},)))
    server.on("POST", f"{CODE}/{tree}/commit", {})
    server.on("POST", JOBS, {"id": JOB_ID, "name": "x", "project": "team-a"})
    return tree


def asked(server: ScriptedServer) -> list[tuple[str, str]]:
    """Return the requests for code since the last call, as (method, the rest of the path)."""
    paths = [(request.method, request.path.partition(f"{CODE}/sha256:")[2][64:]) for request in server.asked]
    found = [path for path, request in zip(paths, server.asked, strict=True) if "/code" in request.path]
    server.asked.clear()
    return found


def submit(yard: Any, root: Path) -> Any:
    ran = yard("submit", "x", "--code", str(root), "--", "true")
    assert ran.code == 0, ran.err
    return ran


def test_the_second_upload_sends_what_changed(server: ScriptedServer, yard: Any, root: Path):
    first = script(server, root)
    assert "sent 4" in submit(yard, root).err
    whole = server.requests("POST", CODE)[0].body
    assert sorted(whole) == ["contents", "files"]
    assert [file["path"] for file in whole["files"]] == ["a.py", "b.py", "c.py", "d.py"]
    assert asked(server) == [("GET", ""), ("POST", ""), ("POST", "/commit")]
    (root / "a.py").write_text("changed\n")
    (root / "b.py").unlink()
    script(server, root)
    assert "sent 1, 8 B" in submit(yard, root).err
    told = server.requests("POST", CODE)[0].body
    assert (told["parent"], told["removed"]) == (first, ["b.py"])
    assert [file["path"] for file in told["files"]] == ["a.py"]
    assert [base64.b64decode(content) for content in told["contents"]] == [b"changed\n"]
    assert asked(server) == [("POST", ""), ("POST", "/commit")]


def test_an_unchanged_tree_is_asked_for(server: ScriptedServer, yard: Any, root: Path):
    script(server, root)
    submit(yard, root)
    asked(server)
    script(server, root, is_known=True)
    assert "all known to the server" in submit(yard, root).err
    assert asked(server) == [("GET", "")]


def test_a_tree_that_became_known_by_asking_is_a_parent_too(server: ScriptedServer, yard: Any, root: Path):
    known = script(server, root, is_known=True)
    submit(yard, root)
    (root / "a.py").chmod(0o755)
    script(server, root)
    submit(yard, root)
    told = server.requests("POST", CODE)[0].body
    assert (told["parent"], told["files"][0]["executable"]) == (known, True)


@pytest.mark.parametrize("code", ["parent_unknown", "tree_incomplete", "content_differs"])
def test_a_server_that_lost_the_parent_gets_the_whole_list(
    server: ScriptedServer, yard: Any, root: Path, code: str
):
    script(server, root)
    submit(yard, root)
    (root / "a.py").write_text("changed\n")
    tree = f"sha256:{tree_of(root).digest}"
    script(server, root, problem(409, code, "gone"), {"tree": tree, "missing": []})
    asked(server)
    submit(yard, root)
    assert [len(request.body["files"]) for request in server.requests("POST", CODE)] == [1, 4]


def test_a_server_that_refuses_every_time_is_believed(server: ScriptedServer, yard: Any, root: Path):
    script(server, root, problem(409, "tree_incomplete", "2 files are missing"))
    ran = yard("submit", "x", "--code", str(root), "--", "true")
    assert ran.code == 5
    assert "2 files are missing" in ran.err
    assert len(server.requests("POST", CODE)) == 3


@pytest.mark.parametrize("is_written", [True, False])
def test_files_that_change_whenever_they_are_sent_are_named(
    server: ScriptedServer, yard: Any, root: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
):
    def read(listing: Listing, environ: dict[str, str]) -> Tree:
        tree = read_tree(listing, environ)
        if is_written:
            (root / "b.py").write_text("longer " * next(numbers))
        return tree

    script(server, root, problem(400, "content_differs", "A content is of no file in the list."))
    numbers = count(1)
    monkeypatch.setattr("controlplane.cli.code.upload.read_tree", read)
    ran = yard("submit", "x", "--code", str(root), "--", "true")
    assert ran.code == 5
    named = (
        "files change while they are sent: b.py\n" if is_written else "files changed while they were sent\n"
    )
    assert named in ran.err
    assert ".yardignore" in ran.err


def test_many_changes_and_large_files_go_as_before(
    server: ScriptedServer, yard: Any, root: Path, monkeypatch: pytest.MonkeyPatch
):
    script(server, root)
    submit(yard, root)
    for name in "abcd":
        (root / f"{name}.py").write_text("other\n")
    monkeypatch.setattr("controlplane.cli.code.upload.AT_ONCE_BYTES", 5)
    missing = tree_of(root).files[0].sha256
    tree = f"sha256:{tree_of(root).digest}"
    script(server, root, {"tree": tree, "missing": [missing]})
    server.on("PUT", f"{CODE}/{tree}/content", {"tree": tree, "missing": []})
    asked(server)
    assert "sent 1, 6 B" in submit(yard, root).err
    assert list(server.requests("POST", CODE)[0].body) == ["files"]


def test_another_server_or_project_is_told_all(server: ScriptedServer, yard: Any, root: Path):
    script(server, root)
    submit(yard, root)
    (root / "a.py").write_text("changed\n")
    tree = script(server, root)
    server.on("POST", "projects/team-b/code", {"tree": tree, "missing": []})
    server.on("POST", f"projects/team-b/code/{tree}/commit", {})
    server.on("POST", "projects/team-b/jobs", {"id": JOB_ID, "name": "x", "project": "team-a"})
    assert yard("submit", "x", "-p", "team-b", "--code", str(root), "--", "true").code == 0
    assert "parent" not in server.requests("POST", "projects/team-b/code")[0].body


def test_a_cache_that_was_damaged_costs_only_time(
    server: ScriptedServer, yard: Any, root: Path, tmp_path: Path
):
    script(server, root)
    submit(yard, root)
    (left,) = (tmp_path / "cache/trainyard/uploads").iterdir()
    left.write_bytes(b"\xff\0 \0")
    script(server, root)
    submit(yard, root)
    assert "parent" not in server.requests("POST", CODE)[1].body
