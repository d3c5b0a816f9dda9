"""The effect of kill -9 on a sync, a fill, a snapshot and a restore.

Each is killed with all its processes at ten moments and then run to its end. The resulting versions, trees and disk
space are compared with those of runs that were not killed. Run: python -m bench.datasets_kills
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from datasets.ingest.engine import sync_tree
from datasets.ingest.tree import walk
from datasets.manifests import decode
from datasets.storage.cache import CacheStore
from datasets.storage.folder import FolderLake
from datasets.storage.folder_sink import sink_of_folder
from datasets.storage.volumes import FolderVolumes

KILLS = 10
FILES, FILE_BYTES = 4000, 8_000
LARGE_FILES, LARGE_BYTES = 3, 16_000_000
CHECKOUT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Work:
    """A program that is killed. `start`: its arguments for a directory; `found`: what the directory holds afterwards,
    by name."""

    name: str
    start: Callable[[Path], list[str]]
    found: Callable[[Path], dict[str, object]]


def main() -> None:
    """Print a table; exit with 1 if anything was lost or stored twice. With arguments, run one of PROGRAMS on
    directories instead."""
    if len(sys.argv) > 1:
        return PROGRAMS[sys.argv[1]](*map(Path, sys.argv[2:]))
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        home = Path(directory)
        make_tree(home / "tree")
        sync = Work("sync", lambda at: ["sync", str(home / "tree"), str(at)], lake_at)
        whole = home / "whole"
        run(sync.start(whole))
        fill = Work("fill", lambda at: ["fill", str(whole), str(at)], cache_at)
        (home / "volumes").mkdir()
        (home / "tree").rename(home / "volumes" / "v")
        (home / "tree").symlink_to(home / "volumes" / "v")
        snapshot = Work("snapshot", lambda at: ["snapshot", str(home / "volumes"), str(at)], snapshots_at)
        taken = home / "taken"
        run(snapshot.start(taken))
        restore = Work("restore", lambda at: ["restore", str(taken / "snapshots"), str(at)], volume_at)
        works = (sync, fill, snapshot, restore)
        wrong = [line for work in works for line in killed(work, home / work.name)]
        # Before the directories are removed, which takes minutes on a busy disk.
        print("\n".join(wrong) or "Nothing was lost, and nothing is there twice.", flush=True)
    sys.exit(bool(wrong))


def killed(work: Work, home: Path) -> list[str]:
    """Kill the work at ten moments, each time in a new directory below `home`, then run it to its end. Return a
    text for each difference from a run that was not killed."""
    home.mkdir()
    seconds, expected = run(work.start(home / "unkilled")), work.found(home / "unkilled")
    wrong, kills = [], 0
    for number in range(KILLS):
        at = home / str(number)
        kills += run(work.start(at), kill_after=seconds * (number + 0.5) / KILLS) == 0
        run(work.start(at))
        found = work.found(at)
        wrong += [
            f"{work.name} {number}: {name} is {found[name]}, not {value}"
            for name, value in expected.items()
            if not is_same(found[name], value)
        ]
    shown = ", ".join(f"{name} {value:,}" for name, value in expected.items() if isinstance(value, int))
    print(
        f"{work.name}: {kills} of {KILLS} runs of {seconds:.1f} s were killed; each afterwards: {shown}",
        flush=True,
    )
    if kills < KILLS // 2:
        wrong.append(f"{work.name}: most runs ended before they were killed")
    return wrong


def is_same(found: object, expected: object) -> bool:
    """Return whether two results are equal. Large sizes may differ by less than a file: packs end with an index,
    and their number depends on the workers."""
    if isinstance(found, int) and isinstance(expected, int) and expected > LARGE_BYTES:
        return abs(found - expected) < FILE_BYTES
    return found == expected


def run(words: list[str], kill_after: float | None = None) -> float:
    """Run a program of this file. Return its seconds, or 0 if it was killed `kill_after` seconds after it began
    (None: never). Raises SystemExit if it fails."""
    command = [sys.executable, "-m", "bench.datasets_kills", *words]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.perf_counter()
        try:
            code = process.wait(kill_after)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            if process.wait() == -signal.SIGKILL:
                return 0.0
            code = process.returncode
    if code:
        raise SystemExit(f"{words[0]} ended with {code}")
    return time.perf_counter() - began


def sync(tree: Path, home: Path) -> None:
    """Store the files below `tree` in the lake of `home`, with the stat index beside the lake."""
    print("begun", flush=True)
    home.mkdir(exist_ok=True)
    sink = sink_of_folder(home / "lake")
    FolderLake(home / "lake").close()
    found = sync_tree(tree, sink, index=home / "seen", workers=2)
    assert found.manifest is not None
    assert not found.failed
    (home / "manifest").write_bytes(found.manifest.encode())


def fill(lake: Path, home: Path) -> None:
    """Fill a cache in `home` with the version that `sync` stored in `lake`."""
    print("begun", flush=True)
    manifest = decode((lake / "manifest").read_bytes())
    CacheStore(home).fill("v", FolderLake(lake / "lake"), manifest)


def snapshot(volumes: Path, home: Path) -> None:
    """Take two snapshots of the volume `v` of `volumes` into `home`; the second shares the files of the first."""
    print("begun", flush=True)
    storage = beside(home, "volumes", volumes)
    storage.take("s1", "v", None)
    storage.take("s2", "v", "s1")


def restore(snapshots: Path, home: Path) -> None:
    """Create a volume in `home` from the second snapshot of `snapshots`."""
    print("begun", flush=True)
    beside(home, "snapshots", snapshots).restore("w", "s2")


def beside(home: Path, name: str, whole: Path) -> FolderVolumes:
    """Return a storage in `home` whose directory `name` (`volumes` or `snapshots`) is a link to `whole`, that of
    another storage."""
    home.mkdir(exist_ok=True)
    if not (home / name).is_symlink():
        (home / name).symlink_to(whole)
    return FolderVolumes(home)


PROGRAMS: dict[str, Callable[..., None]] = {
    "sync": sync,
    "fill": fill,
    "snapshot": snapshot,
    "restore": restore,
}


def lake_at(home: Path) -> dict[str, object]:
    """Return the version and the numbers of files, bytes, missing and damaged contents of the lake of `home`. A
    garbage collection first removes what killed runs left, as in operation after three days."""
    manifest = decode((home / "manifest").read_bytes())
    lake = FolderLake(home / "lake")
    lake.put_manifest(manifest.hash, manifest.encode())
    lake.collect(lambda: [manifest.hash], older_than_seconds=0)
    verified = lake.verify(manifest.contents())
    lake.close()
    return {
        "version": manifest.hash,
        "files": len(manifest),
        "missing contents": len(verified.missing),
        "damaged contents": len(verified.quarantined),
        "bytes": size_of(home / "lake" / "packs") + size_of(home / "lake" / "objects"),
    }


def cache_at(home: Path) -> dict[str, object]:
    """Return the numbers of files, bytes, missing bytes and leftovers of the cache in `home`."""
    store = CacheStore(home)
    found = walk(os.fsencode(store.tree("v")))
    # A content that is there twice has two inodes.
    files = {status.st_ino: status.st_size for status in map(os.stat, files_below(home))}
    return {
        "files": found.files,
        "bytes in trees": sum(files[os.stat(path).st_ino] for path in files_below(home / "trees")),
        "missing bytes": store.lacking_bytes(store.manifests()["v"]),
        "leftovers": len(list((home / "staging").iterdir())),
    }


def snapshots_at(home: Path) -> dict[str, object]:
    """Return the files, a hash of the contents, bytes and leftovers of both snapshots in `home`."""
    first, second = (home / "snapshots" / name / "tree" for name in ("s1", "s2"))
    inodes = {
        found.st_ino: found.st_size for found in map(os.stat, (*files_below(first), *files_below(second)))
    }
    return {
        "files": len(files_below(second)),
        "contents": contents_of(second),
        "contents of the first": contents_of(first),
        "bytes": sum(inodes.values()),
        "leftovers": leftovers(home),
    }


def volume_at(home: Path) -> dict[str, object]:
    """Return the files, a hash of the contents, bytes and leftovers of the restored volume in `home`."""
    volume = home / "volumes" / "w"
    size = size_of(volume)
    return {
        "files": len(files_below(volume)),
        "contents": contents_of(volume),
        "bytes": size,
        "leftovers": leftovers(home),
    }


def leftovers(home: Path) -> int:
    return len([path for path in (home / "parts").iterdir() if path.name != "lock"])


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def contents_of(folder: Path) -> str:
    """Return a hash of all paths and contents below a folder."""
    found = sha256()
    for path in files_below(folder):
        found.update(os.fsencode(path.relative_to(folder)) + b"\0" + sha256(path.read_bytes()).digest())
    return found.hexdigest()


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def make_tree(root: Path) -> None:
    """Write small files in 40 directories, and some large ones."""
    for number in range(FILES):
        path = root / f"{number % 40:02}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(FILE_BYTES))
    for number in range(LARGE_FILES):
        (root / f"large{number}").write_bytes(os.urandom(LARGE_BYTES))


if __name__ == "__main__":
    main()
