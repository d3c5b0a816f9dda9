"""Writing a version into a directory: nothing leaves it, whatever the version names."""

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from controlplane.cli.dataset_sync import Announcer, Binding, Meter, make_directories, write_file
from controlplane.cli.errors import CliError
from controlplane.cli.session import Session
from datasets.manifests import FILE, LINK, Entry, make_manifest
from tests.cli.scripted import Reply, problem

REFILL = "yard dataset cache xray@1 --location near"


def entry(path: str, content: bytes, kind: int = FILE) -> Entry:
    return Entry(path.encode(), kind, len(content), sha256(content).digest())


@pytest.mark.parametrize("target", [b"../out", b"/etc", b"a/../../out"])
def test_a_link_out_of_the_tree_is_refused(target: bytes, tmp_path: Path) -> None:
    with pytest.raises(CliError, match="is a link that leads out of the directory"):
        write_file(os.fsencode(tmp_path), entry("evil", target, LINK), lambda: iter([target]))
    assert not os.path.lexists(tmp_path / "evil")


def test_a_link_within_the_tree_is_made(tmp_path: Path) -> None:
    write_file(os.fsencode(tmp_path), entry("sub", b"data", LINK), lambda: iter([b"data"]))
    assert os.readlink(tmp_path / "sub") == "data"


def test_directories_are_not_made_through_a_link(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (root / "evil").symlink_to(outside)
    with pytest.raises(CliError, match="is a link"):
        make_directories(os.fsencode(root), [b"evil/deep"])
    assert not list(outside.iterdir())


def test_a_name_of_255_bytes_is_written(tmp_path: Path) -> None:
    write_file(os.fsencode(tmp_path), entry("n" * 255, b"x"), lambda: iter([b"x"]))
    assert (tmp_path / ("n" * 255)).read_bytes() == b"x"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_that_arrives_broken_off_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(os.fsencode(tmp_path), entry("a", b"half and half"), pieces)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_made_is_named(server, yard, tmp_path):
    manifest = make_manifest([entry("a/b.txt", b"x")])
    version = {"id": "v1", "manifest": manifest.hash, "dataset": "xray", "number": 1, "subset": ""}
    server.on("GET", "datasets", {"results": [{"id": "d1", "name": "xray", "latest": 1}]})
    server.on("GET", "datasets/d1/versions/1", version)
    server.on("GET", "versions/v1/manifest", Reply(body=manifest.encode()))
    (tmp_path / "file").write_text("")
    ran = yard("dataset", "clone", "xray@1", str(tmp_path / "file"))
    assert (ran.code, ran.err) == (1, f"yard: {tmp_path}/file cannot be written: File exists\n")


def test_a_dataset_for_a_directory_that_is_not_there_is_not_made(server, yard, tmp_path):
    ran = yard("dataset", "init", "xray", str(tmp_path / "nowhere"))
    assert (ran.code, ran.err) == (3, f"yard: {tmp_path}/nowhere does not exist\n")
    assert server.asked == []


def test_a_refused_upload_exits_as_any_other_refusal(server, yard, tmp_path):
    (tmp_path / "a.txt").write_text("a")
    server.on("GET", "datasets", {"results": [{"id": "d1", "name": "xray", "latest": 0}]})
    forbidden = problem(403, "forbidden", "This needs the role member in team-a; you are viewer.")
    server.on("POST", "datasets/d1/content/lacking", forbidden)
    ran = yard("dataset", "sync", str(tmp_path), "--name", "xray")
    assert (ran.code, ran.err) == (4, "yard: This needs the role member in team-a; you are viewer.\n")


@pytest.mark.parametrize(
    "stored", [b"garbage", make_manifest([entry("other", b"1")]).encode()], ids=["garbage", "other"]
)
@pytest.mark.parametrize("words", [("verify", "xray@1"), ("clone", "xray@1", "target")])
def test_a_damaged_list_of_files_is_no_traceback(server, yard, tmp_path, monkeypatch, stored, words):
    monkeypatch.chdir(tmp_path)
    server.on("GET", "datasets", {"results": [{"id": "d1", "name": "xray", "latest": 1}]})
    version = {
        "id": "v1",
        "dataset_id": "d1",
        "subset": None,
        "manifest": make_manifest([entry("a", b"1")]).hash,
    }
    server.on("GET", "datasets/d1/versions/1", version)
    server.on("GET", "versions/v1/manifest", Reply(body=stored))
    ran = yard("dataset", *words)
    assert ran.code == 1
    assert "the list of files arrived damaged, or is damaged in the lake" in ran.err
    assert "sync --full" in ran.err


@pytest.mark.parametrize(
    ("caches", "code", "lines"),
    [
        ({}, 0, ["1 file is intact"]),
        ({"unread_caches": []}, 0, ["1 file is intact"]),
        (
            {"damaged_caches": ["near"]},
            1,
            ["1 file is intact in the lake", f"its cache at near has damaged files; replace them: {REFILL}"],
        ),
        (
            {"unread_caches": ["prod.team-a"]},
            0,
            [
                "1 file is intact in the lake",
                "its cache at prod.team-a was not read: the control plane cannot read it there",
            ],
        ),
    ],
)
def test_verify_names_caches_with_damaged_files_and_those_that_were_not_read(
    server, yard, caches, code, lines
):
    manifest = make_manifest([entry("a", b"1")])
    server.on("GET", "datasets", {"results": [{"id": "d1", "name": "xray", "latest": 1}]})
    version = {"id": "v1", "dataset": "xray", "number": 1, "subset": "", "manifest": manifest.hash}
    server.on("GET", "datasets/d1/versions/1", version)
    server.on("GET", "versions/v1/manifest", Reply(body=manifest.encode()))
    found = {"files": 1, "contents": 1, "size_bytes": 1, "missing": [], "damaged": [], "repair": ""}
    server.on("POST", "versions/v1/verify", found | caches)
    ran = yard("dataset", "verify", "xray@1")
    assert (ran.code, ran.out) == (code, "xray@1: " + "\n".join(lines) + "\n")


def test_what_is_left_out_of_a_version_is_said_in_words(server, yard, tmp_path):
    (tmp_path / "out").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "pipe")
    dataset = {"id": "d1", "name": "xray", "latest": 1, "latest_id": "v1"}
    empty = make_manifest([]).hash
    version = {"id": "v1", "manifest": empty, "number": 1, "files": 1, "size_bytes": 1}
    changes = {"files_added": 1, "files_changed": 0, "files_removed": 0}
    server.on("GET", "datasets", {"results": [dataset]})
    server.on("GET", "versions/v1", version)
    server.on("PUT", "datasets/d1/content/manifests", {"manifest": empty, "lacking": 0})
    server.on("POST", "datasets/d1/versions", version | changes | {"number": 2})
    ran = yard("dataset", "sync", str(tmp_path), "--name", "xray")
    assert ran.code == 0, ran.err
    assert "left out out: a link that leads out of the directory" in ran.err
    assert "left out pipe: neither a file nor a link" in ran.err
    assert ran.out == "xray@2: 1 file, 1 B; 1 added, 0 changed, 0 removed\n"


def test_a_sync_names_the_versions_that_the_directory_never_was(server, yard, tmp_path):
    (tmp_path / "xray").mkdir()
    dataset = {"id": "d1", "name": "xray", "project": "team-a"}
    version = {"id": "v1", "manifest": "ab" * 32, "files": 0, "size_bytes": 0}
    changes = {"files_added": 1, "files_changed": 0, "files_removed": 0}
    server.on("PUT", "datasets/d1/content/manifests", {"manifest": make_manifest([]).hash, "lacking": 0})

    def synced(latest: int) -> str:
        server.on("GET", "datasets", {"results": [dataset | {"latest": latest, "latest_id": "v1"}]})
        server.on("GET", "versions/v1", version | {"number": latest})
        server.on("POST", "datasets/d1/versions", version | changes | {"number": latest + 1})
        ran = yard("dataset", "sync", str(tmp_path / "xray"), "--name", "xray")
        assert ran.code == 0, ran.err
        return ran.err

    words = "this directory was last at version {}: xray@{} undoes what {} changed, except where"
    assert "undoes" not in synced(1) + synced(2)
    undone = synced(4)
    assert words.format(3, 5, "version 4") in undone
    assert "  see: yard dataset diff xray 3 4 -p team-a" in undone
    assert words.format(5, 9, "versions 6 to 8") in synced(8)


def test_a_file_name_cannot_forge_a_line_of_a_diff(server, yard):
    dataset = {"id": "d1", "name": "xray", "project": "team-a", "latest": 2, "latest_id": "v2"}
    server.on("GET", "datasets", {"results": [dataset]})
    for number in (1, 2):
        server.on("GET", f"datasets/d1/versions/{number}", {"id": f"v{number}", "number": number})
    counts = {"added": 1, "removed": 0, "changed": 0}
    found = {"added": ["a\n- model.pt"], "removed": [], "changed": [], "counts": counts}
    server.on("GET", "versions/v2/diff", found)
    ran = yard("dataset", "diff", "xray", "1", "2")
    assert (ran.code, ran.out) == (0, "+ a^J- model.pt\n"), ran.err


@pytest.mark.parametrize(
    ("changed", "removed", "lost"), [(1, 2, "3 of its files"), (0, 1, "1 of its files"), (0, 0, "")]
)
def test_the_first_sync_of_a_directory_says_what_the_newest_version_loses(
    server, yard, tmp_path, changed, removed, lost
):
    """As after `parent_moved`, when another directory was synced first."""
    dataset = {"id": "d1", "name": "xray", "project": "team-a", "latest": 4, "latest_id": "v4"}
    version = {"id": "v4", "manifest": "ab" * 32, "files": 0, "size_bytes": 0, "number": 4}
    changes = {"files_added": 1, "files_changed": changed, "files_removed": removed}
    server.on("GET", "datasets", {"results": [dataset]})
    server.on("GET", "versions/v4", version)
    server.on("PUT", "datasets/d1/content/manifests", {"manifest": make_manifest([]).hash, "lacking": 0})
    server.on("POST", "datasets/d1/versions", version | changes | {"number": 5})
    ran = yard("dataset", "sync", str(tmp_path), "--name", "xray")
    words = f"this directory was never at version 4: xray@5 replaces or lacks {lost}"
    assert (words in ran.err) is bool(lost), ran.err
    assert ("yard dataset diff xray 4 5 -p team-a" in ran.err) is bool(lost)


def test_a_directory_keeps_its_dataset_when_another_is_made_without_naming_it(
    server, yard, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    known = {"id": "d1", "name": "xray", "latest": 0, "latest_id": None}
    server.on("POST", "projects/team-a/datasets", known, {"id": "d2"}, {"id": "d3"}, {"id": "d4"})
    server.on("GET", "datasets/d1", known)
    assert "yard dataset sync .\n" in yard("dataset", "init", "xray").out
    assert "yard dataset sync DIR --name scans\n" in yard("dataset", "init", "scans").out
    [path] = tmp_path.rglob("dataset.json")
    assert json.loads(path.read_text())["id"] == "d1"
    assert "yard dataset sync .\n" in yard("dataset", "init", "scans", ".").out
    assert json.loads(path.read_text())["id"] == "d3"
    # That one is deleted.
    assert "yard dataset sync .\n" in yard("dataset", "init", "xray").out
    assert json.loads(path.read_text())["id"] == "d4"


def test_a_dataset_that_is_known_is_not_written_again(tmp_path: Path):
    """On a full disk nothing would be left of it."""
    session = SimpleNamespace(config=SimpleNamespace(url="http://here", path=tmp_path / "config"))
    binding = Binding(cast("Session", session), tmp_path)
    binding.remember("d1")
    [path] = tmp_path.rglob("dataset.json")
    os.utime(path, (0, 0))
    binding.remember("d1")
    assert path.stat().st_mtime == 0
    binding.remember("d2")
    assert binding.dataset() == "d2"


def test_what_several_workers_wait_for_is_said_once():
    said: list[str] = []
    announce = Announcer(Meter("sending"), said.append)
    for line in ("one", "two", "one", "two"):
        announce(line)
    assert said == ["one", "two"]


def test_a_directory_whose_dataset_was_deleted_says_so(server, yard, tmp_path):
    server.on("POST", "projects/team-a/datasets", {"id": "d1", "name": "xray"})
    assert yard("dataset", "init", "xray", str(tmp_path), "-p", "team-a").code == 0
    server.on("GET", "datasets/d1", problem(404, "not_found", "There is no such dataset that you can see."))
    ran = yard("dataset", "sync", str(tmp_path), "-p", "team-a")
    assert ran.code == 3
    assert f"the dataset that {tmp_path} belongs to was deleted, or you may not see it" in ran.err
    assert "yard dataset sync DIR --name NAME" in ran.err
