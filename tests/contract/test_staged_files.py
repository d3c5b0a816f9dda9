"""Files get their names together, or not at all."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from datasets.ingest.staged_files import StagedFiles


def test_files_replace_others_when_they_are_published(tmp_path: Path):
    one, other = tmp_path / "new" / "one", tmp_path / "other"
    other.write_bytes(b"before")
    staged = StagedFiles()
    staged.write(one, [b"1", b"2"])
    staged.write(other, [b"3"])
    assert (one.exists(), other.read_bytes()) == (False, b"before")
    staged.publish()
    staged.close()
    assert (one.read_bytes(), other.read_bytes()) == (b"12", b"3")
    assert one.stat().st_mode & 0o777 == 0o600


def test_what_was_not_written_whole_is_not_published(tmp_path: Path):
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    staged = StagedFiles()
    staged.write(tmp_path / "whole", [b"1"])
    with pytest.raises(OSError, match="No space"):
        staged.write(tmp_path / "one", pieces())
    staged.publish()
    assert os.listdir(tmp_path) == ["whole"]


def test_what_is_not_published_leaves_nothing(tmp_path: Path):
    staged = StagedFiles()
    staged.write(tmp_path / "one", [b"1"])
    staged.close()
    assert os.listdir(tmp_path) == []
