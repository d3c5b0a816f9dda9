"""The folder backend on XFS and Btrfs, which share the bytes of files: its contract suite, in a small file system of
each. Skipped with the reason where the machine cannot make or mount one."""

import fcntl
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from datasets.manifests import FILE
from datasets.storage.cache import CacheStore
from datasets.storage.contents import Sharing
from datasets.storage.files import READ_ONLY, share_file
from datasets.storage.folder import FolderLake
from datasets.storage.volumes import FolderVolumes
from tests.contract.caches import kept
from tests.waiting import patience

CHECKOUT = Path(__file__).resolve().parents[2]
# XFS has no smaller ones, and a full Btrfs kills what writes through mmap. The files are sparse.
SIZES = {"xfs": 320 << 20, "btrfs": 512 << 20}
SUITES = ("test_folder_volumes.py", "test_volume_storage.py", "test_lake.py", "test_folder_file_systems.py")
CANNOT_MOUNT = 77
# In a mount namespace of its own: the mount and its loop device go with the last process, also after kill -9.
MOUNTED = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    f'mount -o loop "$1" "$2" || exit {CANNOT_MOUNT}; shift 2; exec "$@"',
)
# Of <linux/fs.h>: FS_IOC_GETFLAGS and FS_TOPDIR_FL.
GET_FLAGS, TOP_DIRECTORY = 0x80086601, 0x00020000
EXPECTED = "TRAINYARD_TEST_SHARING"


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_the_contract_holds_and_bytes_are_shared(kind: str, tmp_path: Path):
    image, directory = tmp_path / "image", tmp_path / "mounted"
    _make(kind, image)
    directory.mkdir()
    suites = [str(CHECKOUT / "tests/contract" / name) for name in SUITES]
    which = "folder and not test_the_contract_holds and not s3 and not ontap and not anf"
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", str(directory / "t"), "-k", which]
    run = subprocess.run(
        [*MOUNTED, "sh", image, directory, sys.executable, "-m", "pytest", *options, *suites],
        cwd=CHECKOUT,
        env={**os.environ, EXPECTED: Sharing.REFLINK},
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    if run.returncode == CANNOT_MOUNT or "unshare failed" in run.stderr:
        pytest.skip(f"{kind} cannot be mounted here: {run.stderr.strip()}")
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]
    assert list(directory.iterdir()) == []


def _make(kind: str, image: Path) -> None:
    if shutil.which(f"mkfs.{kind}") is None or shutil.which("unshare") is None:
        pytest.skip(f"There is no mkfs.{kind} or unshare on this machine.")
    with image.open("wb") as file:
        file.truncate(SIZES[kind])
    made = subprocess.run([f"mkfs.{kind}", "-q", image], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def test_the_way_in_which_bytes_were_shared_is_known_and_costs_no_space(tmp_path: Path):
    source, shared = tmp_path / "source", tmp_path / "shared"
    source.write_bytes(os.urandom(16 << 20))
    source.chmod(READ_ONLY)
    os.sync()
    before = os.statvfs(tmp_path)
    how = share_file(source, shared, READ_ONLY)
    os.sync()
    after = os.statvfs(tmp_path)
    if EXPECTED in os.environ:
        assert how == os.environ[EXPECTED]
        # Only this test writes to the file system.
        assert (before.f_bfree - after.f_bfree) * after.f_frsize < 4 << 20
    assert (how == Sharing.HARD_LINK) == (shared.stat().st_ino == source.stat().st_ino)
    assert shared.read_bytes() == source.read_bytes()


def test_on_ext4_new_trees_are_created_away_from_removed_ones(tmp_path: Path):
    """It looks at every inode that was removed lately before it uses one near them: ten times the time of a file."""
    volumes = FolderVolumes(tmp_path / "class")
    for _ in range(2):
        CacheStore(tmp_path / "caches")
        volumes.provision("v")
    volumes.take("s", "v", None)
    for directory in ("caches/trees", "class/volumes", "class/parts"):
        assert (tmp_path / directory).is_dir()
        if _file_system(tmp_path) == "ext2/ext3":
            assert _flags(tmp_path / directory) & TOP_DIRECTORY


def _flags(directory: Path) -> int:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        return int(struct.unpack("i", fcntl.ioctl(descriptor, GET_FLAGS, bytes(4)))[0])
    finally:
        os.close(descriptor)


def test_on_ext4_the_directories_of_a_tree_are_created_apart(tmp_path: Path):
    """Those with subdirectories have the flag that spreads them."""
    lake, store = FolderLake(tmp_path / "lake"), CacheStore(tmp_path / "caches")
    store.fill("v", lake, kept(lake, {"a/b/c": (FILE, b"c"), "a/d": (FILE, b"d"), "e/f": (FILE, b"f")}))
    assert (store.tree("v") / "a/b/c").read_bytes() == b"c"
    if _file_system(tmp_path) == "ext2/ext3":
        names = ("", "a", "a/b", "e")
        assert [name for name in names if _flags(store.tree("v") / name) & TOP_DIRECTORY] == ["", "a"]


def _file_system(directory: Path) -> str:
    found = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True, check=True)
    return found.stdout.strip()
