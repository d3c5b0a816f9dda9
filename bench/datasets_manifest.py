"""The manifest of 627,615 files: time to store, load and compare, and the memory, in a process of its own.

Run: python -m bench.datasets_manifest
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from bench.harness import Row, print_table
from datasets.manifests import FILE, Entry, checked, compare, decode, make_manifest
from datasets.storage.folder import FolderLake

FILES = 627_615
REPEATS = 3


def rows(scale: float = 1.0) -> list[Row]:
    """Measure in child processes, since a process does not return memory that it once used. `scale`: factor for the
    number of files. Return the rows."""
    count = int(FILES * scale)
    answers = [
        json.loads(
            subprocess.run(
                [sys.executable, "-m", "bench.datasets_manifest", str(count)], check=True, capture_output=True
            ).stdout
        )
        for _ in range(REPEATS)
    ]
    goals = (("store", 2.0), ("load", 1.0), ("diff", 1.0))
    found = [
        Row(
            f"manifest of {count:,} files: {name}",
            f"< {limit:g} s",
            "s",
            [one[name] for one in answers],
            limit,
        )
        for name, limit in goals
    ]
    memory = [one["rss"] for one in answers]
    return [*found, Row("the same, peak RSS of load and diff", "< 600 MB", "MB", memory, 600)]


def child(count: int) -> None:
    """Print, for manifests of `count` files, the seconds of store, load (read and decode) and diff (1 % changed),
    and the peak MB of a process that loads two manifests and compares them."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as directory:
        root = Path(directory)
        if not os.fork():
            store(root, count)
            os._exit(0)
        os.wait()
        timed = json.loads((root / "timed").read_text())
        lake = FolderLake(root / "lake")
        names = timed.pop("names")
        began = time.perf_counter()
        before = decode(lake.manifest(names[0]))
        timed["load"] = time.perf_counter() - began
        after = decode(lake.manifest(names[1]))
        began = time.perf_counter()
        diff = compare(before, after)
        timed["diff"] = time.perf_counter() - began
        assert len(diff.changed) == -(-count // 100)
        timed["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(timed))


def store(root: Path, count: int) -> None:
    """Store two manifests of `count` files in a lake below `root`. Write to the file `timed` the seconds of the
    first, handled as if from a client: decoded, checked, written, flushed."""
    lake = FolderLake(root / "lake")
    names, seconds = [], 0.0
    for generation in (0, 1):
        manifest = make_manifest(entry(number, generation) for number in range(count))
        stored = manifest.encode()
        began = time.perf_counter()
        arrived = checked(decode(stored))
        lake.put_manifest(arrived.hash, stored)
        seconds = seconds or time.perf_counter() - began
        names.append(arrived.hash)
    (root / "timed").write_text(json.dumps({"store": seconds, "names": names}))


def entry(number: int, generation: int) -> Entry:
    """Return the entry of a file; in the second generation every hundredth has another content."""
    seed = f"{number}-{generation if number % 100 == 0 else 0}"
    path = f"images/{number // 1000:03}/{number:08}-chest-xray.png"
    return Entry(path.encode(), FILE, 398_000 + number % 1000, sha256(seed.encode()).digest())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(int(sys.argv[1]))
    else:
        print_table(rows())
