"""What `yard submit --code` takes along: which files, under which hash, and in what form."""

import errno
import io
import os
import subprocess
from pathlib import Path

import pytest

from controlplane.cli.code import upload
from controlplane.cli.code.ignore import Ignore
from controlplane.cli.code.listing import asked_origin, list_files
from controlplane.cli.code.tree import Tree, read_tree, too_large
from controlplane.cli.code.upload import listed
from controlplane.cli.errors import CliError
from datasets.code_archive import read_archive
from datasets.code_manifest import checked, tree_hash

GIT = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


def git(root: Path, *words: str) -> str:
    identity = ("-c", "user.name=ben", "-c", "user.email=ben@example.org")
    command = ["git", *identity, *words]
    return subprocess.run(
        command, cwd=root, check=True, capture_output=True, text=True, env={**os.environ, **GIT}
    ).stdout


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{path}\n")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    write(root, "train.py", "lib/util.py", "weights.pt")
    (root / ".gitignore").write_text("*.pt\n")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    return root


def tree_of(root: Path, cache: Path) -> Tree:
    return read_tree(list_files(str(root)), {"XDG_CACHE_HOME": str(cache)})


def test_git_says_which_files_there_are(repository: Path):
    write(repository, "new.py", "model.pt")
    (repository / "lib/util.py").unlink()
    found = list_files(str(repository))
    assert sorted(found.paths) == [".gitignore", "lib/util.py", "new.py", "train.py"]
    assert (found.commit, found.has_untracked) == (git(repository, "rev-parse", "HEAD").strip(), True)
    read = tree_of(repository, repository.parent)
    assert [file.path for file in read.files] == [".gitignore", "new.py", "train.py"]


def test_a_directory_of_a_repository_is_taken_by_itself(repository: Path):
    assert list_files(str(repository / "lib")).paths == ("util.py",)


def test_yardignore_leaves_out_what_git_tracks(repository: Path):
    (repository / ".yardignore").write_text("lib/\n.gitignore\n")
    assert sorted(list_files(str(repository)).paths) == [".yardignore", "train.py"]


def test_without_git_all_files_are_taken(tmp_path: Path):
    write(tmp_path, "a.py", "data/big.bin", "data/keep.txt", ".git/config")
    (tmp_path / ".yardignore").write_text("data/*\n!data/keep.txt\n")
    found = list_files(str(tmp_path))
    assert (found.paths, found.commit) == ((".yardignore", "a.py", "data/keep.txt"), "")
    with asked_origin(found) as origin:
        assert origin() == {}


@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        ("*.pyc", {"a.pyc", "lib/b.pyc"}),
        ("/a.pyc", {"a.pyc"}),
        ("lib", {"lib/b.pyc", "lib/c.py"}),
        ("lib/", {"lib/b.pyc", "lib/c.py"}),
        ("c.py/", set()),
        ("**/c.py", {"lib/c.py"}),
        ("lib/**", {"lib/b.pyc", "lib/c.py"}),
        ("?.py[co]", {"a.pyc", "lib/b.pyc"}),
        ("*.py[!c]", set()),
        ("# *\n\\#x", {"#x"}),
        ("*\n!c.py", {"a.pyc", "#x", "lib/b.pyc", "lib/c.py"}),  # c.py lies in a directory that is left out
        ("*.pyc\n!a.pyc", {"lib/b.pyc"}),
    ],
)
def test_patterns_mean_what_they_mean_in_gitignore(patterns: str, left_out: set[str]):
    there = ["#x", "a.pyc", "lib/b.pyc", "lib/c.py"]
    assert set(there) - set(Ignore(patterns.split("\n")).kept(there)) == left_out


def test_the_hash_is_the_servers(repository: Path, tmp_path: Path):
    (repository / "train.py").chmod(0o755)
    (repository / "latest.py").symlink_to("lib/util.py")
    tree = tree_of(repository, tmp_path)
    assert tree.digest == tree_hash(checked(tree.files, 1 << 20))
    shown = {file.path: listed(file) for file in tree.files}
    assert shown["latest.py"] == {"path": "latest.py", "link": "lib/util.py"}
    assert shown["train.py"]["executable"] is True


def test_a_changed_file_is_another_tree_and_a_touched_one_is_not(repository: Path, tmp_path: Path):
    before = tree_of(repository, tmp_path)
    os.utime(repository / "train.py", (1, 1))
    assert tree_of(repository, tmp_path).digest == before.digest
    (repository / "train.py").write_text("changed!\n")
    os.utime(repository / "train.py", (1, 1))  # same size, same time: the change of the inode tells
    assert tree_of(repository, tmp_path).digest != before.digest


def test_files_that_did_not_change_are_not_read_again(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("controlplane.cli.code.tree._SETTLED_NS", -(1 << 62))
    before = tree_of(repository, tmp_path)
    monkeypatch.setattr("controlplane.cli.code.tree.hashlib.file_digest", None)
    assert tree_of(repository, tmp_path).digest == before.digest


def test_what_is_known_of_a_tree_has_no_credentials(repository: Path):
    git(repository, "remote", "add", "origin", "https://ben:secret@example.org/team/repo.git")
    (repository / "train.py").write_text("print(2)\n")
    with asked_origin(list_files(str(repository))) as origin:
        known = origin()
    assert (known["branch"], known["is_dirty"], known["repository"]) == (
        "main",
        True,
        "https://example.org/team/repo.git",
    )
    assert "+print(2)" in str(known["diff"])


@pytest.mark.parametrize("target", ["/etc/passwd", "../elsewhere", "lib/../../elsewhere"])
def test_links_that_lead_outside_are_refused_by_name(tmp_path: Path, target: str):
    write(tmp_path / "code", "a.py")
    (tmp_path / "code" / "data").symlink_to(target)
    with pytest.raises(CliError, match="the link data leads outside") as refused:
        tree_of(tmp_path / "code", tmp_path)
    assert ".yardignore" in refused.value.hint


def test_names_that_are_not_unicode_are_refused(tmp_path: Path):
    write(tmp_path / "code", "a.py")
    with open(os.fsencode(tmp_path / "code") + b"/caf\xe9", "w"):
        pass
    with pytest.raises(CliError, match=r"the name of caf\\xe9 is not UTF-8"):
        list_files(str(tmp_path / "code"))
    (tmp_path / "code" / ".yardignore").write_text("caf?\n")
    assert "a.py" in list_files(str(tmp_path / "code")).paths


def test_a_directory_that_cannot_be_listed_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "code", "a.py", "lib/b.py")
    real = os.scandir

    def scandir(path: str):
        if path.endswith("lib"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr("os.scandir", scandir)
    with pytest.raises(CliError, match="lib cannot be listed: Permission denied") as refused:
        list_files(str(tmp_path / "code"))
    assert ".yardignore" in refused.value.hint


def test_too_much_is_refused_with_the_largest_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "code", "a.py", "runs/1/log", "runs/1/model", "runs/2/log")
    monkeypatch.setattr("controlplane.cli.code.tree.FILES_MOST", 3)
    with pytest.raises(CliError) as refused:
        tree_of(tmp_path / "code", tmp_path)
    assert "2 files  runs/1/" in refused.value.message
    monkeypatch.undo()
    larger = too_large(tree_of(tmp_path / "code", tmp_path), "too large")
    assert "24 B  runs/1/" in larger.message
    assert ".yardignore" in larger.hint


def test_a_socket_stays_at_home(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "code", "a.py")
    os.mkfifo(tmp_path / "code" / "pipe")
    assert [file.path for file in tree_of(tmp_path / "code", tmp_path).files] == ["a.py"]
    assert "pipe is no file" in capsys.readouterr().err


def test_no_directory_and_no_files_are_refused(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CliError, match="has no files to send"):
        tree_of(tmp_path / "empty", tmp_path)
    with pytest.raises(CliError, match="there is no such directory"):
        list_files(str(tmp_path / "none"))


def test_the_archive_is_what_the_server_reads(repository: Path, tmp_path: Path):
    tree = tree_of(repository, tmp_path)
    body = b"".join(upload._archive(tree, tree.files))
    wanted = {file.sha256: file.size for file in tree.files}
    read = {name: b"".join(pieces) for name, pieces in read_archive(io.BytesIO(body), wanted)}
    assert sorted(read.values()) == sorted((repository / file.path).read_bytes() for file in tree.files)


def test_a_file_that_vanishes_or_grows_while_it_is_sent_keeps_the_length(repository: Path, tmp_path: Path):
    tree = tree_of(repository, tmp_path)
    whole = b"".join(upload._archive(tree, tree.files))
    (repository / "train.py").write_text("x" * 10_000)
    (repository / "lib/util.py").unlink()
    assert len(b"".join(upload._archive(tree, tree.files))) == len(whole)
