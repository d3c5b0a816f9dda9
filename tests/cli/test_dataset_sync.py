"""Writing a version into a directory: nothing leaves it, whatever the version names."""

import os
from hashlib import sha256
from pathlib import Path

import pytest

from controlplane.cli.dataset_sync import Announcer, Meter, make_directories, write_file
from controlplane.cli.errors import CliError
from datasets.manifests import FILE, LINK, Entry


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


def test_what_several_workers_wait_for_is_said_once():
    said: list[str] = []
    announce = Announcer(Meter("sending"), said.append)
    for line in ("one", "two", "one", "two"):
        announce(line)
    assert said == ["one", "two"]
