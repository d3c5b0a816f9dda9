"""What a pod on Kubernetes runs to get its code: it places the files of the tree, or ends with a named reason."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines import base
from controlplane.engines.base import CodeSource, PodSpec
from controlplane.engines.kubernetes import code_delivery, code_fetch
from controlplane.engines.local.code import place_code
from datasets.code_manifest import file_entry, link_entry
from datasets.code_store import ProjectCode
from tests.code_server import TOKEN, code_server, keep
from tests.code_trees import sha256
from tests.waiting import patience

SCRIPT = b"#!/bin/sh\necho ran\n"
FILES = {"train.py": b"print(1)\n", "lib/deep/" + "x" * 120 + ".py": b"LR = 0.1\n"}


@pytest.fixture
def store(tmp_path: Path) -> ProjectCode:
    return ProjectCode(tmp_path / "code", 7)


@pytest.fixture
def server(store: ProjectCode) -> Iterator[str]:
    with code_server(store) as url:
        yield url


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def tree(tmp_path: Path) -> str:
    ProjectCode(tmp_path / "code", 7).put(sha256(SCRIPT), [SCRIPT])
    run = file_entry("run", len(SCRIPT), sha256(SCRIPT), is_executable=True)
    return keep(tmp_path / "code", 7, FILES, run, link_entry("lib/start", "../run"))


def run_as_in_a_pod(url: str, digest: str, target: Path) -> subprocess.CompletedProcess[str]:
    """Run the container's command in its environment, with the paths of this machine."""
    container = container_of(CodeSource(digest, 7, url, TOKEN))
    variables = {each["name"]: each["value"] for each in container["env"]} | {code_fetch.TARGET: str(target)}
    _, *arguments = container["command"]
    return subprocess.run(
        [sys.executable, *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )


def container_of(code: CodeSource) -> dict:
    spec = PodSpec("j-1-0", "j", "train1", "team-a", 1, 0, "node-a", code=code)
    (container,) = code_delivery.init_containers(spec, {"image": "job:1"}, "")
    return container


def test_the_tree_is_placed_as_it_is_locally(tmp_path: Path, store: ProjectCode, server: str, target: Path):
    digest = tree(tmp_path)
    (target / "train.py").symlink_to(tmp_path / "elsewhere")  # what an earlier attempt left
    done = run_as_in_a_pod(f"{server}/{digest}", digest, target)
    assert done.returncode == 0, done.stderr
    placed = tmp_path / "local"
    placed.mkdir()
    place_code(CodeSource(digest, 7), tmp_path, placed)

    def seen(root: Path) -> dict[str, tuple[int, bytes]]:
        return {
            str(path.relative_to(root)): (path.lstat().st_mode, path.read_bytes())
            for path in root.rglob("*")
            if path.is_symlink() or path.is_file()
        }

    assert seen(target) == seen(placed)
    assert not (tmp_path / "elsewhere").exists()


def test_what_the_control_plane_has_no_more_ends_at_once(server: str, target: Path):
    done = run_as_in_a_pod(f"{server}/{'0' * 64}", "0" * 64, target)
    assert done.returncode == code_fetch.MISSING
    assert "no code for this attempt" in done.stderr


def test_a_directory_in_the_place_of_a_file_is_named(tmp_path: Path, server: str, target: Path):
    digest = tree(tmp_path)
    (target / "train.py").mkdir()
    done = run_as_in_a_pod(f"{server}/{digest}", digest, target)
    assert (done.returncode, "train.py is where" in done.stderr) == (code_fetch.NOT_PLACED, True)


def test_files_with_another_hash_are_refused(tmp_path: Path, server: str, target: Path):
    digest = tree(tmp_path)
    with pytest.raises(ValueError, match=f"the hash {digest}, not 0000"):
        code_fetch.fetch(f"{server}/{digest}", TOKEN, "0" * 64, target)


def test_an_address_that_does_not_answer_ends_with_its_reason(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(code_fetch, "RETRY_SECONDS", -1)
    values = {code_fetch.URL: "http://127.0.0.1:9/x", code_fetch.TOKEN: TOKEN, code_fetch.TREE: "0" * 64}
    for name, value in (values | {code_fetch.TARGET: str(target)}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        code_fetch.main()
    assert ended.value.code == code_fetch.NOT_FETCHED
    assert "http://127.0.0.1:9/x: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ended", "reason", "words"),
    [
        ({"exitCode": 81, "message": "a\nNo answer.\n"}, base.CODE_NOT_FETCHED, "No answer."),
        ({"exitCode": 82, "message": "Gone."}, base.CODE_MISSING, "Gone."),
        ({"exitCode": 83, "message": "train.py is there."}, base.CODE_NOT_PLACED, "train.py is there."),
        ({"exitCode": 137}, base.CODE_NOT_FETCHED, "exit code 137"),
        ({"exitCode": 128, "reason": "StartError"}, base.CODE_NOT_FETCHED, "no python3"),
    ],
)
def test_each_end_has_its_reason(ended: dict, reason: str, words: str):
    found = code_delivery.failure({"name": code_delivery.CONTAINER, "state": {"terminated": ended}})
    assert found is not None
    assert found[0] == reason
    assert words in found[1]


def test_the_command_holds_nothing_that_kubernetes_would_replace():
    assert "$(" not in container_of(CodeSource("0" * 64, 7))["command"][-1]
