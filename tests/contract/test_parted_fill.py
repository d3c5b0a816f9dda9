"""Fills whose files are written by child processes."""

import fcntl
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from datasets.ingest.worker import WorkerFailed
from datasets.storage import folder, indexed, tree_fill
from datasets.storage.base import ContentDamaged, ContentMissing, Lake
from datasets.storage.cache import CacheStore
from datasets.storage.contents import Located
from datasets.storage.folder import FolderLake
from datasets.storage.writer_pool import WriterPool
from tests.contract.caches import FILES, kept, many
from tests.contract.lakes import LakeKit
from tests.servers import CHECKOUT

# Fills with a program that is killed, and not its children, once it has brought half of the contents.
KILLED = """
import os, signal, sys
from pathlib import Path
from datasets.manifests import decode
from datasets.storage import folder, indexed, tree_fill
from datasets.storage.cache import CacheStore
from tests.contract.lake_opening import open_lake
def report(progress):
    if progress.files >= 200:
        os.kill(os.getpid(), signal.SIGKILL)
tree_fill.PARTED_FILES = 1
spec, store, manifest = sys.argv[1:]
CacheStore(Path(store)).fill("v", open_lake(spec), decode(Path(manifest).read_bytes()), report=report)
"""
EMPTY = Located("", 0, 0, sha256(b"").digest())


@pytest.fixture(autouse=True)
def parted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_fill, "PARTED_FILES", 1)
    monkeypatch.setattr(indexed, "_LOCATED_AT_ONCE", 1)
    monkeypatch.setattr(folder, "_ASKED_AT_ONCE", 1)


def test_files_have_their_contents_and_modes_whatever_the_umask(lake: Lake, store: CacheStore):
    before = os.umask(0o077)
    try:
        store.fill("v", lake, kept(lake, FILES | {"run.txt": FILES["sub/a"], "a.sh": (1, b"alpha")}))
    finally:
        os.umask(before)
    tree = store.tree("v")
    found = {name: (tree / name).read_bytes() for name in FILES}
    assert found == {name: b"alpha" if name == "link" else content for name, (_, content) in FILES.items()}
    modes = {name: (tree / name).stat().st_mode & 0o777 for name in ("sub/a", "run.txt", "run.sh", "a.sh")}
    assert modes == {"sub/a": 0o444, "run.txt": 0o444, "run.sh": 0o555, "a.sh": 0o555}
    assert (tree / "sub/a").samefile(tree / "run.txt")


def test_a_killed_fill_is_continued(kit: LakeKit, lake: Lake, store: CacheStore, tmp_path: Path):
    manifest = many(lake)
    (tmp_path / "manifest").write_bytes(manifest.encode())
    arguments = [kit.spec(), str(store.root), str(tmp_path / "manifest")]
    run = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, cwd=CHECKOUT)
    assert run.returncode == -9
    assert not store.tree("v").exists()
    reports: list[tree_fill.Progress] = []
    store.fill("v", lake, manifest, report=reports.append)
    assert reports[-1].bytes_moved < reports[-1].bytes_done
    assert len(list(store.tree("v").iterdir())) == 400


def test_what_the_lake_lost_or_has_damaged_is_reported(tmp_path: Path, store: CacheStore):
    lake = FolderLake(tmp_path / "lake")
    manifest = many(lake, 50)
    [pack] = (path for path in (tmp_path / "lake" / "packs").rglob("*") if path.is_file())
    raw = pack.read_bytes()
    pack.chmod(0o644)
    pack.write_bytes(b"C" + raw[1:])
    with pytest.raises(ContentDamaged):
        store.fill("v", lake, manifest)
    pack.write_bytes(raw[:10])
    with pytest.raises(ContentDamaged):
        store.fill("v", lake, manifest)
    pack.unlink()
    with pytest.raises(ContentMissing):
        store.fill("v", lake, manifest)
    pack.write_bytes(raw)
    store.fill("v", lake, manifest)
    assert len(list(store.tree("v").iterdir())) == 50


def test_a_lock_lasts_until_the_last_writing_process_ended(tmp_path: Path):
    """Otherwise the next fill would meet files that a child of a killed one still writes."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "pack").write_bytes(b"")
    tree = os.open(tmp_path / "tree", os.O_RDONLY)
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    other = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pool = WriterPool(tree, lock)
    pool.write(tmp_path / "pack", [EMPTY], [b"empty"], 0o444)
    os.close(lock)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    pool.close()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    os.close(tree)


def test_errors_of_files_and_the_end_of_a_process_are_raised(tmp_path: Path):
    (tmp_path / "pack").write_bytes(b"")
    tree = os.open(tmp_path, os.O_RDONLY)
    pool = WriterPool(tree, tree)
    try:
        with pytest.raises(FileExistsError):
            pool.write(tmp_path / "pack", [EMPTY], [b"pack"], 0o444)
        pool._children[0]._process.kill()
        with pytest.raises(WorkerFailed):
            pool.write(tmp_path / "pack", [EMPTY], [b"new"], 0o444)
    finally:
        pool.close()
        os.close(tree)
