"""`make install` of a clean checkout, including torch: with empty and with warm package caches, beside uv alone.

Run: python -m bench.install [--cold]    (--cold downloads about 3 GB twice)
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from bench.harness import Row, report

CHECKOUT = Path(__file__).resolve().parent.parent
REPEATS = 3


def main(arguments: list[str]) -> None:
    """Install into temporary copies beside the checkout, so that files can be linked from caches on its file system;
    report."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="trainyard-install-", dir=CHECKOUT.parent) as directory:
        workshop = Path(directory)
        if "--cold" in arguments:
            ours, alone = (
                [install(workshop, empty_caches(workshop))],
                [uv_alone(workshop, empty_caches(workshop))],
            )
            rows.append(row("`make install`, cold", "<= 90 s", 90, ours, alone))
        # Not counted: it fills the caches.
        install(workshop, {})
        pairs = [(install(workshop, {}), uv_alone(workshop, {})) for _ in range(REPEATS)]
        rows.append(row("`make install`, warm cache", "<= 15 s", 15, *map(list, zip(*pairs, strict=True))))
        again = [install(workshop, {}, into="again") for _ in range(REPEATS + 1)][1:]
        rows.append(Row("`make install`, nothing to do", "<= 0.3 s", "s", again, limit=0.3))
    report("install", rows)


def row(work: str, goal: str, limit: float, ours: list[float], alone: list[float]) -> Row:
    return Row(work, goal, "s", ours, limit=limit, peer="uv pip install alone", peer_samples=alone)


def install(workshop: Path, caches: Mapping[str, str], into: str = "") -> float:
    """Return the seconds of `make install` in a new clone below `workshop`, or in the clone `into`, which is
    created on first use. `caches`: environment variables (see `empty_caches`)."""
    copy = workshop / (into or "clone")
    if not into and copy.exists():
        copy.rename(
            workshop / f"old-{time.monotonic_ns()}"
        )  # removing it now would slow the next file writes
    if not copy.exists():
        subprocess.run(["git", "clone", "-q", str(CHECKOUT), str(copy)], check=True)
    return timed(["make", "-s", "install"], copy, caches)


def uv_alone(workshop: Path, caches: Mapping[str, str]) -> float:
    """Return the seconds that uv takes to install the same lock file into an empty environment below `workshop`:
    the least that `make install` can take. `caches`: see `empty_caches`."""
    uv = shutil.which("uv") or str(CHECKOUT / ".venv" / "uv" / "bin" / "uv")
    target = workshop / f"alone-{time.monotonic_ns()}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(target)], check=True)
    python = str(target / "bin" / "python")
    lock = str(CHECKOUT / "requirements.txt")
    return timed(
        [uv, "pip", "install", "-q", "--python", python, "--require-hashes", "-r", lock], workshop, caches
    )


def empty_caches(workshop: Path) -> dict[str, str]:
    """Return environment variables that give uv, pip and npm new, empty cache directories below `workshop`."""
    fresh = workshop / f"cache-{time.monotonic_ns()}"
    return {name: str(fresh / name) for name in ("UV_CACHE_DIR", "PIP_CACHE_DIR", "npm_config_cache")}


def timed(command: list[str], directory: Path, variables: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(
        command, cwd=directory, env={**os.environ, **variables}, check=True, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


if __name__ == "__main__":
    main(sys.argv[1:])
