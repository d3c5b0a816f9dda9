"""Files written past the page cache: every size and split, and file systems that have no such writes."""

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from datasets.storage import files
from datasets.storage.files import write_new

BLOCK, BUFFER = 4096, 4 << 20
SMALLEST = 128 << 10


@pytest.mark.parametrize(
    "size",
    [SMALLEST - 1, SMALLEST, SMALLEST + 1, 3 * SMALLEST + BLOCK - 1, BUFFER, BUFFER + 1, 2 * BUFFER + 5000],
)
@pytest.mark.parametrize("piece", [4000, 100_000, 1 << 30])
def test_a_file_has_all_bytes_of_its_pieces(tmp_path: Path, size: int, piece: int):
    data = os.urandom(size)
    write_new(
        tmp_path / "f", *(memoryview(data)[at : at + piece] for at in range(0, size, piece)), mode=0o400
    )
    assert (tmp_path / "f").read_bytes() == data
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o400


def test_large_files_are_written_past_the_page_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All of a file but its last, incomplete block, where the file system has such writes."""
    written, write = [], os.write

    def note(descriptor: int, data: memoryview) -> int:
        written.append((bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT), len(data)))
        return write(descriptor, data)

    monkeypatch.setattr("os.write", note)
    write_new(tmp_path / "f", bytes(BUFFER + SMALLEST + 7))
    is_direct = written[0][0]
    assert written == [(is_direct, BUFFER), (is_direct, SMALLEST), (False, 7)]


@pytest.mark.parametrize("where", ["fcntl", "write"])
def test_without_direct_writes_a_file_is_written_as_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    data, write, control = os.urandom(BUFFER + 5), os.write, fcntl.fcntl

    def refuse_setting(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes")
        return control(descriptor, command, flags)

    def refuse_writing(descriptor: int, piece: memoryview) -> int:
        if control(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes")
        return write(descriptor, piece)

    if where == "fcntl":
        monkeypatch.setattr(files.fcntl, "fcntl", refuse_setting)
    else:
        monkeypatch.setattr("os.write", refuse_writing)
    write_new(tmp_path / "f", data)
    assert (tmp_path / "f").read_bytes() == data


def test_other_errors_of_a_write_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="full"):
        write_new(tmp_path / "f", bytes(BUFFER))


@pytest.mark.parametrize("size", [SMALLEST, SMALLEST + 1, 3 * SMALLEST + BLOCK - 1, 2 * BUFFER + 5000])
@pytest.mark.parametrize("start", [0, 1, BLOCK])
def test_what_lies_at_a_block_is_written_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, start: int
):
    memory = memoryview(mmap.mmap(-1, start + size))
    memory[:] = os.urandom(start + size)
    written, write = [], os.write

    def note(descriptor: int, data: memoryview) -> int:
        written.append(data.obj is memory.obj)
        return write(descriptor, data)

    monkeypatch.setattr("os.write", note)
    write_new(tmp_path / "f", memory[start:])
    assert (tmp_path / "f").read_bytes() == memory[start:]
    assert all(written) == (start % BLOCK == 0)
