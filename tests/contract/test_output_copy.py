"""A job's output on its way from a pod, over pipes in place of an exec: it arrives as it is, and nothing of it leaves
the directory of the copy."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.engines.base import Process
from controlplane.engines.kubernetes import output_send
from controlplane.engines.kubernetes.output_reader import receive
from controlplane.engines.kubernetes.pod_scripts import python
from datasets.storage.base import UNLIMITED, Blocked
from tests.execs import Exec

Counts = tuple[int, int, int, int]


def copy(
    root: Path, path: str, target: Path, report: Callable[[int, int, int, int], None] = lambda *counts: None
) -> None:
    """Run what runs in a pod, and receive it."""
    _, *arguments = python(output_send)
    receive(Exec([sys.executable, *arguments, str(root), path]), target, UNLIMITED, report)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "out" / "deep").mkdir(parents=True)
    (root / "out" / "a").write_bytes(b"x" * 200_000)
    (root / "out" / "deep" / "run").write_text("#!/bin/sh\n")
    (root / "out" / "deep" / "run").chmod(0o755)
    os.link(root / "out" / "a", root / "out" / "same")
    os.symlink("deep", root / "out" / "link")
    os.mkfifo(root / "out" / "pipe")
    Path(os.fsdecode(bytes(root / "out") + b"/\xff")).write_text("odd")
    return root


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "copy"
    target.mkdir()
    return target


def test_files_links_and_pipes_arrive_as_they_are(root: Path, target: Path):
    counts: list[Counts] = []
    copy(root, "out", target, lambda *each: counts.append(each))
    assert (target / "a").read_bytes() == (target / "same").read_bytes() == b"x" * 200_000
    assert (target / "deep" / "run").stat().st_mode & 0o100
    assert not (target / "a").stat().st_mode & 0o100
    assert os.readlink(target / "link") == "deep"
    assert (target / "pipe").is_fifo()
    assert Path(os.fsdecode(bytes(target) + b"/\xff")).read_text() == "odd"
    size = 400_000 + len("#!/bin/sh\n") + len("odd")
    assert counts[0] == (0, 0, 6, size)
    assert counts[-1][:3] == (6, size + len("deep"), 6)


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("gone", "output_missing", "no directory gone. Its working directory has 'linked', 'out'."),
        ("linked/deep", "output_is_link", "linked of linked/deep is a link"),
        ("out/a", "output_missing", "no directory out/a"),
    ],
)
def test_what_is_no_directory_is_refused_for_good(root: Path, target: Path, path: str, code: str, words: str):
    os.symlink("out", root / "linked")
    with pytest.raises(Blocked, match=words) as refused:
        copy(root, path, target)
    assert (refused.value.code, refused.value.is_passing) == (code, False)


def test_what_its_receiver_refuses_ends_it(root: Path, target: Path):
    def refuse(*counts: int) -> None:
        raise LookupError(counts[2])

    with pytest.raises(LookupError):
        copy(root, "out", target, refuse)


@contextmanager
def sent(*members: tarfile.TarInfo) -> Iterator[Process]:
    """A pod that sends these members, whatever the program in it should do."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    script = f"import sys; sys.stdout.buffer.write(bytes.fromhex({packed.getvalue().hex()!r}))"
    yield Exec([sys.executable, "-c", script])


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    info.size = 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../x")],
        [member("/tmp/x")],
        [member("a/../../x")],
        [member("out", tarfile.SYMTYPE, ".."), member("out/x")],
        [member("a"), member("b", tarfile.LNKTYPE, "a")],
        [member("b", tarfile.CHRTYPE)],
        [member("a"), member("a/b")],
    ],
    ids=["up", "absolute", "inside up", "through a link", "hard link", "device", "below a file"],
)
def test_an_archive_that_leads_out_is_not_taken(members: list[tarfile.TarInfo], target: Path):
    with sent(*members) as process, pytest.raises(Blocked) as refused:
        receive(process, target, UNLIMITED, lambda *counts: None)
    assert refused.value.code == "output_not_read"
    assert not (target.parent / "x").exists()
