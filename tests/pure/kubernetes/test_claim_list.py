"""What the pod that shows a claim prints: run as the pod runs it, on a directory of this machine."""

import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from controlplane.engines.kubernetes import claim_list
from controlplane.engines.kubernetes.claim_reader import _parsed
from controlplane.engines.kubernetes.pod_scripts import python
from datasets.storage.base import Blocked


def shown(root: Path, path: bytes = b"", after: bytes = b"", limit: int = 100, is_file: bool = False) -> Any:
    """Exit code, lines of JSON, and the last words."""
    env = {
        claim_list.ROOT: str(root),
        claim_list.PATH: b64encode(path).decode(),
        claim_list.AFTER: b64encode(after).decode(),
        claim_list.LIMIT: str(limit),
        claim_list.IS_FILE: "yes" if is_file else "",
    }
    command = [sys.executable, *python(claim_list)[1:]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("first")
    (root / "link").symlink_to("/etc")
    (root / "sub" / "b").write_bytes(bytes(range(256)) * 100)
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).touch()
    return root


def test_a_directory_is_shown_in_order_and_in_pieces(root: Path):
    code, lines, _ = shown(root)
    children, _, has_more = _parsed(iter(lines))
    assert (code, has_more) == (0, False)
    found = [(one.name, one.kind, one.size_bytes) for one in children]
    assert found == [
        (b"a.txt", "file", 5), (b"link", "link", 0), (b"sub", "directory", 0), (b"\xff", "file", 0),
    ]  # fmt: skip
    _, lines, _ = shown(root, after=b"a.txt", limit=1)
    [child], _, has_more = _parsed(iter(lines))
    assert (child.name, has_more) == (b"link", True)


def test_a_file_comes_whole_or_is_refused_by_its_size(root: Path):
    code, lines, _ = shown(root, b"sub/b", limit=25600, is_file=True)
    assert (code, _parsed(iter(lines))[1]) == (0, bytes(range(256)) * 100)
    code, lines, words = shown(root, b"sub/b", limit=25599, is_file=True)
    assert (code, lines, words) == (claim_list.TOO_LARGE, [], "It has 25 KiB; at most 24 KiB are shown.")


@pytest.mark.parametrize("path", [b"none", b"link/passwd", b"../root", b"a.txt/x", b"sub"])
def test_what_is_no_file_of_the_volume_is_missing(root: Path, path: bytes):
    code, lines, words = shown(root, path, is_file=True)
    assert (code, lines) == (claim_list.MISSING, [])
    assert words
    assert shown(root, b"link")[0] == claim_list.MISSING


def test_a_log_that_was_cut_off_is_no_listing(root: Path):
    _, lines, _ = shown(root)
    with pytest.raises(Blocked, match="cut off"):
        _parsed(iter(lines[:-1]))
    assert b64decode(lines[0]["entry"][0]) == b"a.txt"


def test_names_that_are_not_utf_8_are_found_as_they_are_shown(root: Path):
    folder = os.fsencode(root) + b"/caf\xe9"
    os.mkdir(folder)
    for name, text in ((b"\xfe1", "one"), (b"\xfe2", "two")):
        Path(os.fsdecode(folder + b"/" + name)).write_text(text)
    (root / r"caf\xe8").write_text("a backslash")
    _, lines, _ = shown(root, rb"caf\xe9", after=rb"\xfe1")
    assert [one.name for one in _parsed(iter(lines))[0]] == [b"\xfe2"]
    for path, content in ((rb"caf\xe9/\xfe1", b"one"), (rb"caf\xe8", b"a backslash")):
        code, lines, _ = shown(root, path, is_file=True)
        assert (code, _parsed(iter(lines))[1]) == (0, content)
    assert shown(root, rb"caf\xe7", is_file=True)[0] == claim_list.MISSING
