"""The effect of kill -9 on a sync, a fill, a snapshot and a restore.

Each is killed with all its processes at ten moments of its work, then run to its end. The resulting versions, trees
and disk space are compared with those of runs that were not killed. `python -m bench.datasets_kills_instance` kills
the processes of a running control plane one at a time.

Run: python -m bench.datasets_kills [--only sync] [--directory DIR]
`--directory`: where the files are written; each run flushes that file system.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bench.datasets_kills_programs import NEVER, size_of
from datasets.ingest.tree import walk
from datasets.manifests import decode
from datasets.storage.cache import CacheStore
from datasets.storage.folder import FolderLake

FILES, FILE_BYTES = 4000, 8_000
LARGE_FILES, LARGE_BYTES = 3, 16_000_000
CHECKOUT = Path(__file__).resolve().parents[1]
ENGINE, WORKER = "datasets.ingest.engine", "datasets.ingest.worker:Worker"
VOLUMES, CACHE = "datasets.storage.volumes", "datasets.storage.cache"
# Ten moments each, as bench.datasets_kills_programs.Moment reads them; the calls are the last steps of the work.
SYNC = (
    *("0.01", "0.2", "0.4", "0.6", "0.8", "1"),
    f"{WORKER}.begin_flush#2",
    f"{WORKER}.finish#2",
    f"{ENGINE}:save_index#1",
    "datasets.manifests:Manifest.encode#1",
)
FILL = (
    *("0.01", "0.2", "0.4", "0.6", "0.8", "1"),
    "datasets.storage.tree_fill:sync_from#1",
    f"{CACHE}:CacheStore._share#1",
    f"{CACHE}:sync_directory#1",
    f"{CACHE}:CacheStore._repair#1",
)
SNAPSHOT = (
    *("0.01", "0.3", "0.6", "0.9", "1.5"),
    f"{VOLUMES}:sync_file_system#1",
    f"{VOLUMES}:_rename_new#1",
    f"{VOLUMES}:sync_directory#1",
    f"{VOLUMES}:_rename_new#2",
    f"{VOLUMES}:sync_directory#2",
)
RESTORE = (
    *("0.01", "0.15", "0.3", "0.45", "0.6", "0.75", "0.9"),
    f"{VOLUMES}:sync_file_system#1",
    f"{VOLUMES}:_rename_new#1",
    f"{VOLUMES}:sync_directory#1",
)


@dataclass(frozen=True, slots=True)
class Work:
    """A program that is killed at `moments`. `start`: its arguments for a directory, after the moment; `found`: what
    the directory holds afterwards, by name."""

    name: str
    moments: tuple[str, ...]
    start: Callable[[Path], list[str]]
    found: Callable[[Path], dict[str, object]]


def main() -> None:
    """Print a line for each work; exit with 1 if anything was lost or stored twice."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("sync", "fill", "snapshot", "restore"))
    parser.add_argument("--directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=arguments.directory) as directory:
        home = Path(directory)
        works = [work for work in prepared(home) if arguments.only in (None, work.name)]
        wrong = [line for work in works for line in killed(work, home / work.name)]
        # Before the directories are removed, which takes minutes on a busy disk.
        print("\n".join(wrong) or "Nothing was lost, and nothing is there twice.", flush=True)
    sys.exit(bool(wrong))


def prepared(home: Path) -> list[Work]:
    """Make a tree below `home`, a lake with its files, and a snapshot of them. Return the works on them."""
    make_tree(home / "volumes" / "v")
    whole, taken = home / "whole", home / "taken"
    sync = Work("sync", SYNC, lambda at: [str(home / "volumes" / "v"), str(at)], lake_at)
    run(sync, whole)
    fill = Work("fill", FILL, lambda at: [str(whole), str(at)], cache_at)
    snapshot = Work("snapshot", SNAPSHOT, lambda at: [str(home / "volumes"), str(at)], snapshots_at)
    run(snapshot, taken)
    restore = Work("restore", RESTORE, lambda at: [str(taken / "snapshots"), str(at)], volume_at)
    return [sync, fill, snapshot, restore]


def killed(work: Work, home: Path) -> list[str]:
    """Kill the work at each of its moments, each time in a new directory below `home`, then run it to its end. Return
    a text for each difference from a run that was not killed."""
    home.mkdir()
    run(work, home / "unkilled")
    expected = work.found(home / "unkilled")
    wrong, kills = [], 0
    for number, moment in enumerate(work.moments):
        at = home / str(number)
        if run(work, at, moment):
            kills += 1
        else:
            wrong.append(f"{work.name} ended before {moment}")
        run(work, at)
        found = work.found(at)
        wrong += [
            f"{work.name} at {moment}: {name} is {found[name]}, not {value}"
            for name, value in expected.items()
            if not is_same(found[name], value)
        ]
    shown = ", ".join(f"{name} {value:,}" for name, value in expected.items() if isinstance(value, int))
    print(
        f"{work.name}: {kills} of {len(work.moments)} runs were killed; each afterwards: {shown}", flush=True
    )
    return wrong


def is_same(found: object, expected: object) -> bool:
    """Return whether two results are equal. Large sizes may differ by less than a file: packs end with an index,
    and their number depends on the workers."""
    if isinstance(found, int) and isinstance(expected, int) and expected > LARGE_BYTES:
        return abs(found - expected) < FILE_BYTES
    return found == expected


def run(work: Work, home: Path, moment: str = NEVER) -> bool:
    """Run a work in the directory `home`. Return whether it was killed, at `moment`. Raises SystemExit if it
    fails."""
    program = [sys.executable, "-m", "bench.datasets_kills_programs", work.name, moment]
    command = [*program, *work.start(home)]
    code = subprocess.run(command, cwd=CHECKOUT, start_new_session=True, check=False).returncode
    if code not in (0, -signal.SIGKILL):
        raise SystemExit(f"{work.name} ended with {code}")
    return code == -signal.SIGKILL


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


def make_tree(root: Path, files: int = FILES) -> None:
    """Write this many small files in 40 directories, and some large ones."""
    for number in range(files):
        path = root / f"{number % 40:02}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(FILE_BYTES))
    for number in range(LARGE_FILES):
        (root / f"large{number}").write_bytes(os.urandom(LARGE_BYTES))


if __name__ == "__main__":
    main()
