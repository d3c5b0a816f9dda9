"""Volumes and snapshots of the folder backend: what a copy holds, what it shares, and what a crash leaves."""

import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from datasets.storage.base import Blocked, Budget, Cancelled, ContentMissing
from datasets.storage.files import hard_link, reflink, sync_file_system
from datasets.storage.quiesce import quiesced
from datasets.storage.volumes import FolderVolumes
from tests.waiting import patience

LONG_AGO = 1_000_000_000
NOBODY = 65_534


@pytest.fixture
def storage(tmp_path: Path) -> FolderVolumes:
    return FolderVolumes(tmp_path / "class")


@pytest.fixture
def data(storage: FolderVolumes) -> Path:
    """A volume `v` with files, an executable, an empty directory and links, written long ago."""
    storage.provision("v")
    root = storage.path("v")
    (root / "sub/empty").mkdir(parents=True)
    (root / "a.txt").write_text("alpha")
    (root / "sub/run.sh").write_text("#!")
    (root / "sub/run.sh").chmod(0o750)
    (root / "inner").symlink_to("sub/run.sh")
    (root / "outer").symlink_to("/etc/passwd")
    (root / ".trainyard").mkdir()
    (root / ".trainyard/quiesce").write_text("own")
    for path in (root / "a.txt", root / "sub/run.sh"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return root


def names(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def snapshot_tree(storage: FolderVolumes, name: str) -> Path:
    return storage.root / "snapshots" / name / "tree"


def test_a_snapshot_and_what_is_restored_of_it_are_what_the_volume_was(storage, data):
    taken = storage.take("s1", "v", None)
    assert (taken.files, taken.size_bytes, taken.new_bytes, taken.notes) == (4, 7, 7, "")
    (data / "a.txt").write_text("changed since")
    (data / "sub/run.sh").unlink()
    storage.restore("w", "s1")
    root = storage.path("w")
    assert names(root) == {"a.txt", "inner", "outer", "sub", "sub/empty", "sub/run.sh"}
    assert ((root / "a.txt").read_text(), os.readlink(root / "outer")) == ("alpha", "/etc/passwd")
    assert (root / "sub/run.sh").stat().st_mode & 0o777 == 0o750
    assert (root / "a.txt").stat().st_mtime == LONG_AGO
    # neither side of a restored volume can be written through the other
    (root / "a.txt").write_text("other")
    assert (snapshot_tree(storage, "s1") / "a.txt").read_text() == "alpha"
    assert (data / "a.txt").read_text() == "changed since"


def test_unchanged_files_are_shared_with_the_snapshot_before_and_outlive_it(storage, data, monkeypatch):
    monkeypatch.setattr("datasets.storage.trees.RACY_NS", 0)
    storage.take("s1", "v", None)
    (data / "new.txt").write_text("new")
    second = storage.take("s2", "v", "s1")
    assert (second.files, second.new_bytes) == (5, 3)
    one, two = (snapshot_tree(storage, name) / "a.txt" for name in ("s1", "s2"))
    assert one.stat().st_ino == two.stat().st_ino
    storage.remove_snapshot("s1")
    storage.remove_snapshot("s1")
    assert (two.read_text(), storage.has_snapshot("s1")) == ("alpha", False)


def test_a_file_that_was_replaced_with_equal_size_and_time_is_copied_again(storage, data, monkeypatch):
    monkeypatch.setattr("datasets.storage.trees.RACY_NS", 0)
    storage.take("s1", "v", None)
    (data / "a.txt").write_text("ALPHA")
    os.utime(data / "a.txt", (LONG_AGO, LONG_AGO))
    storage.take("s2", "v", "s1")
    assert (snapshot_tree(storage, "s2") / "a.txt").read_text() == "ALPHA"


def test_a_file_written_just_before_is_not_taken_for_unchanged(storage, data):
    """Within the same tick of the clock it could change again without a trace in its stat."""
    (data / "hot").write_text("1")
    storage.take("s1", "v", None)
    taken = storage.take("s2", "v", "s1")
    assert taken.new_bytes >= 1
    assert (snapshot_tree(storage, "s1") / "hot").stat().st_ino != (
        snapshot_tree(storage, "s2") / "hot"
    ).stat().st_ino


def test_pipes_and_sockets_are_left_out_and_named(storage, data, monkeypatch):
    os.mkfifo(data / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(data)
        listening.bind("sock")
        taken = storage.take("s1", "v", None)
    assert taken.notes.startswith("2 sockets, pipes or devices are not in it: ")
    assert taken.files == 4


def test_a_file_that_changes_while_it_is_read_is_named(storage, data, monkeypatch):
    def grow(source: Path | bytes, target: Path) -> bool:
        with open(data / "a.txt", "a") as file:
            file.write("+")
        return reflink(source, target)

    monkeypatch.setattr("datasets.storage.trees.reflink", grow)
    assert "a file changed while it was copied: " in storage.take("s1", "v", None).notes


def test_what_is_not_there_and_what_is_cancelled_leave_nothing(storage, data):
    with pytest.raises(ContentMissing):
        storage.take("s1", "gone", None)
    with pytest.raises(ContentMissing):
        storage.restore("w", "gone")
    with pytest.raises(Cancelled):
        storage.take("s1", "v", None, Budget(is_cancelled=lambda: True))
    assert not storage.has_snapshot("s1")
    assert not storage.path("w").exists()
    assert [path.name for path in (storage.root / "parts").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("is_back", [False, True])
def test_a_copy_is_repeated_if_its_disk_was_unmounted_meanwhile(storage, data, monkeypatch, is_back):
    storage.take("s1", "v", None)
    away = storage.root.with_name("away")

    def unmounted(*_: object, **__: object) -> None:
        if not is_back:
            storage.root.rename(away)
        raise FileNotFoundError

    with monkeypatch.context() as broken:
        broken.setattr("datasets.storage.volumes.copy_tree", unmounted)
        with pytest.raises(Blocked) as blocked:
            storage.restore("w", "s1")
    assert blocked.value.code == "not_mounted"
    if not is_back:
        away.rename(storage.root)
    storage.restore("w", "s1")
    assert (storage.path("w") / "a.txt").read_text() == "alpha"


def test_a_full_disk_is_said_and_leaves_nothing(storage, data, monkeypatch):
    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("datasets.storage.trees.reflink", full)
    with pytest.raises(Blocked) as blocked:
        storage.take("s1", "v", None)
    assert blocked.value.code == "disk_full"
    assert not storage.has_snapshot("s1")


KILLED = """
import os, signal, sys
from pathlib import Path
from datasets.storage import trees, volumes
storage, verb, moment = volumes.FolderVolumes(Path(sys.argv[1])), sys.argv[2], sys.argv[3]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if moment == "half":
    real, count = trees.reflink, []
    def reflink(*words):
        count.append(1)
        return die() if len(count) == 2 else real(*words)
    trees.reflink = reflink
else:
    volumes.sync_file_system = die
storage.take("s1", "v", None) if verb == "take" else storage.restore("w", "s1")
"""


@pytest.mark.parametrize("moment", ["half", "flush"])
def test_a_killed_snapshot_and_a_killed_restore_are_done_once_by_the_next_try(storage, data, moment):
    for verb in ("take", "restore"):
        command = [sys.executable, "-c", KILLED, str(storage.root), verb, moment]
        killed = subprocess.run(command, check=False, timeout=patience(60), cwd=Path(__file__).parents[2])
        assert killed.returncode == -signal.SIGKILL
        assert not (storage.has_snapshot("s1") if verb == "take" else storage.path("w").exists())
        if verb == "take":
            assert storage.take("s1", "v", None) == storage.take("s1", "v", None)
        else:
            storage.restore("w", "s1")
    assert names(storage.path("w")) == names(data) - {".trainyard", ".trainyard/quiesce"}
    assert sorted(path.name for path in (storage.root / "parts").iterdir()) == ["lock"]
    assert sorted(path.name for path in (storage.root / "volumes").iterdir()) == ["v", "w"]


def test_a_program_that_takes_part_pauses_and_one_that_does_not_is_not_waited_for(storage, data):
    own = data / ".trainyard"
    with quiesced(data, "s1", ["job"], wait_seconds=0) as is_quiet:
        assert not is_quiet
    (own / "listening").mkdir()
    for rank in (0, 1):
        (own / f"listening/job.{rank}").write_text("s1" if rank else "")
    program = "import os,sys,time\nwhile not os.path.exists('quiesce'): time.sleep(.01)\n"
    program += "time.sleep(.1); text=open('quiesce').read(); open('listening/job.0', 'w').write(text)"
    with subprocess.Popen([sys.executable, "-c", program], cwd=own) as process:
        with quiesced(data, "s1", ["job"], wait_seconds=60) as is_quiet:
            assert is_quiet
            assert (own / "quiesce").read_text() == "s1"
        assert process.wait(patience(60)) == 0
    assert not (own / "quiesce").exists()
    with quiesced(data, "s2", ["job", "silent"], wait_seconds=60) as is_quiet:
        assert not is_quiet
    with quiesced(data, "s2", ["job"], wait_seconds=0) as is_quiet:
        assert not is_quiet


def test_a_link_in_the_place_of_the_request_is_not_followed(storage, data, tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    own = data / ".trainyard"
    (own / "quiesce").unlink()
    (own / "quiesce").symlink_to(outside)
    (own / "listening").mkdir()
    (own / "listening/job.0").symlink_to(outside)
    with quiesced(data, "s1", ["job"], wait_seconds=0) as is_quiet:
        assert not is_quiet
    assert outside.read_text() == "untouched"


def test_a_volume_is_removed_with_all_it_holds_and_only_it(storage, data):
    storage.take("s1", "v", None)
    storage.remove("v")
    storage.remove("v")
    assert not storage.path("v").exists()
    assert storage.has_snapshot("s1")


def test_files_of_an_earlier_snapshot_that_is_removed_meanwhile_are_copied(storage, data, monkeypatch):
    monkeypatch.setattr("datasets.storage.trees.RACY_NS", 0)
    storage.take("s1", "v", None)

    def removed_first(source: bytes, target: Path) -> bool:
        storage.remove_snapshot("s1")
        return hard_link(source, target)

    monkeypatch.setattr("datasets.storage.trees.hard_link", removed_first)
    assert storage.take("s2", "v", "s1").files == 4
    assert (snapshot_tree(storage, "s2") / "a.txt").read_text() == "alpha"


def test_a_try_that_lost_its_claim_cannot_complete_what_the_next_try_removed(storage, data, monkeypatch):
    def taken_over(source: Path | bytes, target: Path) -> bool:
        monkeypatch.setattr("datasets.storage.trees.reflink", reflink)
        with pytest.raises(Cancelled):
            storage.take("s1", "v", None, Budget(is_cancelled=lambda: True))
        return reflink(source, target)

    monkeypatch.setattr("datasets.storage.trees.reflink", taken_over)
    with pytest.raises(Blocked, match="disk was unmounted"):
        storage.take("s1", "v", None)
    assert not storage.has_snapshot("s1")


def test_what_is_written_through_a_memory_map_meanwhile_is_in_the_next_snapshot(storage, data, monkeypatch):
    monkeypatch.setattr("datasets.storage.trees.RACY_NS", 0)
    (data / "a.txt").write_bytes(b"0" * 4096)
    with (data / "a.txt").open("r+b") as file, mmap.mmap(file.fileno(), 4096) as pages:
        pages[:1] = b"1"

        def write_first(path: Path) -> None:
            pages[:1] = b"2"
            sync_file_system(path)

        monkeypatch.setattr("datasets.storage.volumes.sync_file_system", write_first)
        storage.take("s1", "v", None)
        storage.take("s2", "v", "s1")
    assert (snapshot_tree(storage, "s2") / "a.txt").read_bytes()[:1] == b"2"


def test_a_measurement_ends_at_its_deadline_with_what_it_counted(storage, data):
    assert storage.measure("v", Budget(seconds=-1), 100).is_partial
    assert not storage.measure("v", Budget(), 100).is_partial


@contextmanager
def without_root(directory: Path) -> Iterator[None]:
    """Run the block as an ordinary user, who owns the directory."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(directory, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_directories_that_cannot_be_written_are_removed_with_their_volume():
    with TemporaryDirectory() as directory, without_root(Path(directory)):
        storage = FolderVolumes(Path(directory) / "class")
        storage.provision("v")
        inner = storage.path("v") / "modules/inner"
        inner.mkdir(parents=True)
        (inner / "go.mod").write_text("module")
        inner.chmod(0)
        inner.parent.chmod(0o555)
        assert storage.measure("v", Budget(), 100).is_partial
        storage.remove("v")
        assert not storage.path("v").exists()
        assert list((storage.root / "parts").iterdir()) == []


def test_a_sparse_file_takes_no_more_in_a_snapshot_than_its_data(storage, data, monkeypatch):
    monkeypatch.setattr("datasets.storage.trees.reflink", lambda *_: False)
    with (data / "sparse").open("wb") as file:
        file.write(b"start")
        file.seek(32 << 20)
        file.write(b"middle")
        file.truncate(64 << 20)
    storage.take("s1", "v", None)
    copied = snapshot_tree(storage, "s1") / "sparse"
    assert copied.read_bytes() == (data / "sparse").read_bytes()
    assert copied.stat().st_blocks * 512 < 1 << 20


def test_a_copy_of_one_large_file_ends_when_it_is_cancelled(storage, data, monkeypatch):
    monkeypatch.setattr("datasets.storage.trees.reflink", lambda *_: False)
    monkeypatch.setattr("datasets.storage.files._CHUNK_BYTES", 1)
    for place in data.iterdir():
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    (data / "large").write_bytes(b"0" * 100)
    asked: list[int] = []

    def is_cancelled() -> bool:
        asked.append(1)
        return len(asked) > 3

    with pytest.raises(Cancelled):
        storage.take("s1", "v", None, Budget(is_cancelled=is_cancelled))


def test_a_volume_that_is_deeper_than_the_stack_is_removed(storage, data, monkeypatch):
    monkeypatch.chdir(data)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    os.chdir(data.parents[2])
    with pytest.raises(Blocked) as blocked:
        storage.take("s1", "v", None)
    assert blocked.value.code == "too_deep"
    assert storage.measure("v", Budget(), 10_000).is_partial
    storage.remove("v")
    assert [path.name for path in (storage.root / "parts").iterdir() if path.is_dir()] == []


def test_the_name_of_a_snapshot_is_on_disk_when_it_is_there(storage, data, monkeypatch):
    """A power cut after the row says ready must not lose the rename."""
    flushed: list[tuple[str, bool]] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        flushed.append((place, storage.has_snapshot("s1")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    storage.take("s1", "v", None)
    assert (str(storage.root / "snapshots"), True) in flushed
