"""Datasets beside DVC, restic and borg: the same files on the same file system in one run. Ours is `yard` with a
running control plane, so that HTTP, hashing, packing and flushing are included. The files of every first version are in
the page cache when it begins; how much was read from the disk nevertheless is printed with its row.

Run: python -m bench.datasets [--scale 0.2] [--only "4 KB"] [--directory DIR] [--peers DIR]
`--scale` multiplies the numbers of files; goals are for 1. `--only` measures files of one size. `--directory`: where
the files are written. `--peers`: a directory in which the peers stay installed.
"""

import argparse
import mmap
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench import datasets_manifest
from bench.datasets_peers import Peer, install, peers
from bench.harness import Row, report
from datasets.ingest.engine import reading_processes
from datasets.storage.tree_fill import THREADS
from tests import servers

CHECKOUT = Path(__file__).resolve().parents[1]
YARD = CHECKOUT / ".venv" / "bin" / "yard"  # what `make install` makes
IN_DIRECTORY = 1000  # files
BLOCK_BYTES = 4 << 20  # of one read or write where this process reads or writes all
# Ours reads files again that are younger than this, since their times cannot be trusted yet.
QUIET_SECONDS = 2.5
# Ours makes each first version, and the first cache of a version, so many times: each in the lake of another project,
# and at another location.
ROUNDS = 3
PROJECTS = (*(f"round-{number}" for number in range(1, ROUNDS)), "bench")


@dataclass(frozen=True, slots=True)
class Profile:
    """`files` files of `file_bytes` bytes each. `others`: the peers that store them, with the factor by which
    ours must be faster. `is_flushed`: all times include a flush to disk. `is_linked`: they are stored once more
    with `--link`."""

    name: str
    files: int
    file_bytes: int
    others: dict[str, float]
    is_flushed: bool = False
    is_linked: bool = False  # store them once more with --link, into the lake of another project


PROFILES = (
    Profile("4 KB", 100_000, 4_000, {"DVC": 10, "restic": 2}),
    Profile("20 KB", 100_000, 20_000, {"DVC": 6, "restic": 2, "borg": 2}, is_flushed=True),
    Profile("400 KB", 20_000, 400_000, {"DVC": 6}, is_linked=True),
)


@dataclass(frozen=True, slots=True)
class Stored:
    """How a first version was stored: in how many `seconds`, each time, and how many bytes were read from the disk for
    it."""

    seconds: list[float]
    read_bytes: int


class Bench:
    """One run: a control plane, a directory on the measured file system, and the rows."""

    def __init__(self, work: Path, home: Path, scale: float, running: servers.ControlPlane) -> None:
        self._work, self._home, self._scale, self._running = work, home, scale, running
        self.rows: list[Row] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINYARD_")}
        self._environment = kept | {
            "TRAINYARD_URL": running.url,
            "TRAINYARD_TOKEN": running.token,
            "TRAINYARD_PROJECT": "bench",
            # `yard` keeps what it knows of a directory there.
            "XDG_CONFIG_HOME": str(work / "yard"),
        }

    def profile(self, profile: Profile) -> None:
        """Measure the first version with all programs; for the first profile also unchanged and changed syncs, and
        caches."""
        count = max(10, int(profile.files * self._scale))
        tree = self._work / "data"
        make_tree(tree, count, profile.file_bytes)
        name = f"d{profile.file_bytes}"
        found = peers(self._home, self._work)
        work = f"first version, {count:,} x {profile.name}"
        ours = self._rounds(tree, name, profile.is_flushed)
        stored = {other: self._first(tree, found[other], profile.is_flushed) for other in profile.others}
        for other, faster in profile.others.items():
            self._stored_row(work, ours, other, stored[other], 1 / faster)
        if profile.is_linked:
            self.yard("-p", "linked", "dataset", "init", name, str(tree))
            sync = ("-p", "linked", "dataset", "sync", str(tree), "--link")
            linked = self._stored(tree, lambda: self.yard(*sync))
            again = f"the same with --link, {count:,} x {profile.name}"
            self._stored_row(again, linked, "DVC", stored["DVC"], 1 / 6)
            self._floors(work, ours.seconds, count * profile.file_bytes)
        if profile.is_flushed:
            copy = ["cp", "-r", str(tree), str(self._work / "copy")]
            copied = self._stored(tree, lambda: subprocess.run(copy, check=True), True)
            self._stored_row(work, ours, "cp -r", copied, 1.0)
        if profile is PROFILES[0]:
            self._follow(tree, count, name, found)
        for path in (
            "data",
            "copy",
            "dvc",
            "restic",
            "borg",
            "borg-base",
            "cache",
            "home",
            ".dvc",
            "yard",
            "bare",
            "direct",
            "floor",
            "places",
        ):
            shutil.rmtree(self._work / path, ignore_errors=True)
        for path in ("data.dvc", "bare"):
            (self._work / path).unlink(missing_ok=True)

    def _rounds(self, tree: Path, name: str, is_flushed: bool) -> Stored:
        """Measure a first version of the dataset `name` in each project, in the lake of which nothing is."""
        seconds: list[float] = []
        read = 0
        for project in PROJECTS:
            self.yard("-p", project, "dataset", "init", name, str(tree))
            stored = self._stored(
                tree, partial(self.yard, "-p", project, "dataset", "sync", str(tree)), is_flushed
            )
            seconds += stored.seconds
            read += stored.read_bytes
        return Stored(seconds, read)

    def yard(self, *words: str) -> None:
        """Run `yard` with these arguments. Raises CalledProcessError unless it exits with 0."""
        subprocess.run([YARD, *words], env=self._environment, check=True, capture_output=True)

    def _follow(self, tree: Path, count: int, name: str, found: dict[str, Peer]) -> None:
        """Measure syncs of the `count` files in `tree` without a change and with one changed file, then caches of
        the dataset `name`. `found`: the peers by name."""
        time.sleep(QUIET_SECONDS)
        self.yard("dataset", "sync", str(tree))
        kinds = ("DVC", "restic")
        same: dict[str, list[float]] = {kind: [] for kind in ("ours", "walk", *kinds)}
        changed: dict[str, list[float]] = {kind: [] for kind in ("ours", *kinds)}
        for number in range(3):
            same["walk"] += self._timed(lambda: walk_and_stat(tree))
            same["ours"] += self._timed(lambda: self.yard("dataset", "sync", str(tree)))
            for kind in kinds:
                same[kind] += self._timed(partial(found[kind].run, found[kind].store, self._work))
            (tree / "0" / f"0-{number}.bin").write_bytes(os.urandom(4000))
            changed["ours"] += self._timed(lambda: self.yard("dataset", "sync", str(tree)))
            for kind in kinds:
                changed[kind] += self._timed(partial(found[kind].run, found[kind].store, self._work))
            time.sleep(QUIET_SECONDS)
            self.yard("dataset", "sync", str(tree))
        work = f"sync with nothing changed, {count:,} files"
        self._row(work, same["ours"], "DVC", same["DVC"], 1 / 12)
        self._row(work, same["ours"], "restic", same["restic"], 1 / 5)
        self._row(work, same["ours"], "walk and stat (find)", same["walk"], 2.0)
        self._row(f"one of {count:,} files changed", changed["ours"], "DVC", changed["DVC"], 1 / 10)
        self._row(f"one of {count:,} files changed", changed["ours"], "restic", changed["restic"], None)
        self._materialise(tree, count, name, found["DVC"])

    def _materialise(self, tree: Path, count: int, name: str, dvc: Peer) -> None:
        work = f"materialise {count:,} files whose bytes are local"
        # Ours is flushed after jobs may use it; DVC does not flush.
        filled, flushed = self._filled(name)
        # Before any files are removed: ext4 passes over inodes that were removed within the last minute.
        floor = self._timed(lambda: create_only(self._work / "floor", count, 4000))
        bare = self._timed(lambda: write_and_link(self._work / "bare", count, 4000))
        moved = tree.rename(self._work / "moved")
        checked_out = self._timed(lambda: dvc.run(dvc.restore, self._work))
        self._row(work, filled, "DVC checkout", checked_out, 1 / 10)
        processes = f"{THREADS} processes that only create them"
        self._row(work, filled, processes, floor, None)
        self._row(f"{count:,} files by {processes}", floor, "DVC checkout", checked_out, None)
        self._row(work, filled, "bare writes", bare, None)
        self._row(f"{work}, until all is flushed", flushed, "DVC checkout", checked_out, None)
        ready = self._timed(lambda: self.yard("dataset", "cache", name, "--wait"))
        idle = self._timed(lambda: dvc.run(dvc.restore, self._work))
        self._row(f"{count:,} files that are materialised already", ready, "DVC checkout", idle, None)
        shutil.rmtree(tree)
        moved.rename(tree)
        self._materialise_next(tree, count, name, dvc, checked_out)

    def _filled(self, name: str) -> tuple[list[float], list[float]]:
        """Return the seconds until the dataset `name` was cached, and until that was flushed, at each location; at the
        one of the cluster last."""
        filled: list[float] = []
        flushed: list[float] = []
        for number in range(ROUNDS):
            cache = ["dataset", "cache", name, "--wait"]
            if number < ROUNDS - 1:
                place, own = f"place-{number}", ("--cluster", "local", "--node-label", f"bench={number}")
                directory = str(self._work / "places" / place)
                self.yard("cache-location", "create", place, *own, "--directory", directory)
                cache += ["--location", place]
            done, all_flushed = self._timed_to_both(partial(self.yard, *cache))
            filled += done
            flushed += all_flushed
        return filled, flushed

    def _materialise_next(
        self, tree: Path, count: int, name: str, dvc: Peer, checked_out: list[float]
    ) -> None:
        """Change 1 % of the files, and measure how ours gets the new version beside the one that is cached, and DVC the
        old version in place of the new one. `checked_out`: seconds of DVC for all files in an empty directory."""
        pointer = self._work / "data.dvc"
        old = pointer.read_bytes()
        for number in range(count // 100):
            path = tree / str(number // IN_DIRECTORY) / f"{number}.bin"
            path.write_bytes(os.urandom(4000))
        self.yard("dataset", "sync", str(tree))
        dvc.run(dvc.store, self._work)
        linked = self._timed(lambda: self.yard("dataset", "cache", name, "--wait"))
        pointer.write_bytes(old)
        in_place = self._timed(lambda: dvc.run(dvc.restore, self._work))
        self._row("second version, 1 % changed", linked, "DVC checkout in place", in_place, None)
        self._row(f"{count:,} files, 99 % of them at the location", linked, "DVC checkout", checked_out, None)
        caches = self._caches()
        second = max(caches, key=lambda cache: cache["version"])
        self._materialise_again(f"{name}@{second['version']}", caches, count, checked_out)
        share = 100 * second["progress"]["moved_bytes"] / (count * 4000)
        self.rows.append(
            Row("second cached version, 1 % changed: bytes moved", "<= 1.1 %", "%", [share], 1.1)
        )

    def _materialise_again(
        self, version: str, caches: list[dict[str, Any]], count: int, checked_out: list[float]
    ) -> None:
        """Remove `caches`, which are all at the cluster's location, and measure how the version gets one again: its
        files are created after as many were removed."""
        for cache in caches:
            self.yard("dataset", "uncache", f"{cache['dataset']}@{cache['version']}")
        while self._caches():
            time.sleep(0.2)
        again = self._timed(lambda: self.yard("dataset", "cache", version, "--wait"))
        work = f"materialise {count:,} files after the same caches were removed"
        self._row(work, again, "DVC checkout", checked_out, None)

    def _caches(self) -> list[dict[str, Any]]:
        """Return the caches at the location of the cluster."""
        found: list[dict[str, Any]] = self._running.call("GET", "/api/v1/caches?location=local")[1]["results"]
        return found

    def _floors(self, work: str, ours: list[float], size: int) -> None:
        """Measure what writes `size` bytes and does nothing else, past the page cache as ours does and through it."""
        count = reading_processes()
        direct = self._timed(lambda: write_direct(self._work / "direct", size, count), is_flushed=True)
        self._row(work, ours, f"direct writes by {count} processes", direct, None)
        # Both at once would need as much room as all programs before.
        shutil.rmtree(self._work / "direct")
        bare = self._timed(lambda: write_one(self._work / "bare", size), is_flushed=True)
        self._row(work, ours, "bare writes", bare, None)

    def _first(self, tree: Path, peer: Peer, is_flushed: bool) -> Stored:
        for path in ("home", "cache"):
            (self._work / path).mkdir(exist_ok=True)
        for command in peer.begin:
            peer.run(command, self._work)
        return self._stored(tree, lambda: peer.run(peer.store, self._work), is_flushed)

    def _stored(self, tree: Path, work: Callable[[], object], is_flushed: bool = False) -> Stored:
        """Measure a first version of the files in `tree`. They are read before: only for the first program would they
        all be in the page cache, since what each stores pushes them out for the next."""
        read_all(tree)
        before = read_from_disk()
        seconds = self._timed(work, is_flushed)
        return Stored(seconds, read_from_disk() - before)

    def _timed(self, work: Callable[[], object], is_flushed: bool = False) -> list[float]:
        """Return the seconds of one call of `work` in a list, including a flush of the file system if `is_flushed`."""
        done, flushed = self._timed_to_both(work)
        return flushed if is_flushed else done

    def _timed_to_both(self, work: Callable[[], object]) -> tuple[list[float], list[float]]:
        """Return the seconds until one call of `work` ended, and until the file system was flushed after it, each in a
        list. Earlier writes are flushed first."""
        subprocess.run(["sync", "-f", self._work], check=True)
        began = time.perf_counter()
        work()
        done = time.perf_counter() - began
        subprocess.run(["sync", "-f", self._work], check=True)
        return [done], [time.perf_counter() - began]

    def _row(
        self,
        work: str,
        ours: list[float],
        peer: str,
        theirs: list[float],
        ratio: float | None,
        note: str = "",
    ) -> None:
        goal = "-" if ratio is None else f">= {1 / ratio:.3g}x faster" if ratio < 1 else f"<= {ratio:.3g}x"
        self.rows.append(
            Row(f"{work}, beside {peer}", goal, "s", ours, None, False, 0.5, peer, theirs, ratio, note)
        )

    def _stored_row(self, work: str, ours: Stored, peer: str, theirs: Stored, ratio: float) -> None:
        read = [f"{name} {one.read_bytes / 1e6:.0f} MB" for name, one in (("ours", ours), (peer, theirs))]
        note = f"with the files in the page cache; read from the disk: {', '.join(read)}"
        self._row(work, ours.seconds, peer, theirs.seconds, ratio, note)


def make_tree(root: Path, count: int, size: int) -> None:
    """Write `count` files of random bytes, IN_DIRECTORY in each directory."""
    for number in range(count):
        directory = root / str(number // IN_DIRECTORY)
        if number % IN_DIRECTORY == 0:
            directory.mkdir(parents=True)
        (directory / f"{number}.bin").write_bytes(os.urandom(size))
    subprocess.run(["sync", "-f", root], check=True)


def read_all(root: Path) -> None:
    """Read all files, so that they are in the page cache."""
    buffer = bytearray(BLOCK_BYTES)
    for path in root.rglob("*.bin"):
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def read_from_disk() -> int:
    """Return how many bytes the child processes that have ended, and theirs, have read from disks."""
    # Blocks of 512 bytes on Linux, whatever the file system has.
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock * 512


def walk_and_stat(root: Path) -> None:
    """List and stat all files with find, which is the least that a sync must do."""
    subprocess.run(["find", root, "-printf", "%s %T@\n"], check=True, stdout=subprocess.DEVNULL)


def create_only(root: Path, count: int, size: int) -> None:
    """Create `count` files of `size` bytes in as many processes as fill a cache, each in directories of its own: the
    least that filling it must do. They neither read nor verify the bytes."""
    starts = range(0, count, IN_DIRECTORY)
    root.mkdir()
    with ProcessPoolExecutor(THREADS) as processes:
        made = processes.map(partial(_create_some, root, size), starts, [count] * len(starts))
        assert sum(made) == count


def _create_some(root: Path, size: int, start: int, end: int) -> int:
    directory, data = root / str(start // IN_DIRECTORY), bytes(size)
    directory.mkdir()
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    numbers = range(start, min(end, start + IN_DIRECTORY))
    for number in numbers:
        file = os.open(f"{number}.bin", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=handle)
        os.write(file, data)
        os.close(file)
    os.close(handle)
    return len(numbers)


def write_and_link(root: Path, count: int, size: int) -> None:
    """Write `count` files of `size` bytes and link each once, in one process."""
    data, shelves = os.urandom(size), [str(root / f"{shelf:02x}") for shelf in range(256)]
    for path in shelves:
        os.makedirs(path)
    for number in range(count):
        directory = root / "tree" / str(number // IN_DIRECTORY)
        if number % IN_DIRECTORY == 0:
            directory.mkdir(parents=True)
        file = os.open(f"{directory}/{number}.bin", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
        os.write(file, data)
        os.close(file)
        os.link(f"{directory}/{number}.bin", f"{shelves[number % 256]}/{number:062}")


def write_one(path: Path, size: int, flags: int = 0) -> None:
    """Write random bytes to one file, opened with `flags` too: `size` bytes, rounded up to whole blocks of 4 MiB."""
    # At a page, as direct writes need it.
    block = mmap.mmap(-1, BLOCK_BYTES)
    block.write(os.urandom(BLOCK_BYTES))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags)
    for _ in range(0, size, BLOCK_BYTES):
        assert os.write(file, block) == BLOCK_BYTES
    os.close(file)


def write_direct(root: Path, size: int, count: int) -> None:
    """Write `size` bytes past the page cache, in `count` processes with a file each."""
    root.mkdir()
    with ProcessPoolExecutor(count) as processes:
        paths = [root / str(number) for number in range(count)]
        list(processes.map(write_one, paths, [size // count] * count, [os.O_DIRECT] * count))


@contextmanager
def directories(arguments: argparse.Namespace) -> Iterator[tuple[Path, Path]]:
    """Context manager: install the peers if they are missing, and yield a temporary directory for the files and the
    peers' directory (`--peers`; without it, inside the temporary one)."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=arguments.directory) as directory:
        home = Path(arguments.peers) if arguments.peers else Path(directory) / "peers"
        home.mkdir(exist_ok=True)
        install(home)
        yield Path(directory), home


def main() -> None:
    """Measure all profiles, or the one that `--only` names, and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", choices=[profile.name for profile in PROFILES])
    parser.add_argument("--directory")
    parser.add_argument("--peers")
    arguments = parser.parse_args()
    with directories(arguments) as (work, home), servers.control_plane(work / "state") as running:
        for project in (*PROJECTS, "linked"):
            running.call("POST", "/api/v1/projects", {"name": project, "gpu_quota": 8})
        bench = Bench(work, home, arguments.scale, running)
        for profile in PROFILES:
            if arguments.only in (None, profile.name):
                bench.profile(profile)
        manifests = [] if arguments.only else datasets_manifest.rows(arguments.scale)
        report("datasets", [*bench.rows, *manifests])


if __name__ == "__main__":
    main()
