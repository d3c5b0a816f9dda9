"""`make bench`: run every script in turn, then print one table of all rows. `python -m bench decide push` runs
some."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import yaml

from bench.harness import RESULTS, SCRIPTS, Row, print_table, read_rows

RANGES = Path(__file__).resolve().parent / "ranges.yaml"


def main(arguments: list[str]) -> int:
    """Run the named scripts, or all. Return 0 if every script ran and every goal was met, else 1."""
    write_ranges = "--write-ranges" in arguments
    wanted = [name for name in arguments if not name.startswith("-")] or [
        name for name in SCRIPTS if is_there(name)
    ]
    broken = [name for name in wanted if run(name) != 0]
    rows = [row for name in wanted if name not in broken for row in read(name)]
    print("\n== all of it\n")
    print_table(rows)
    outside = compare(rows)
    if write_ranges:
        widen(rows)
    for line in [*outside, *(f"{name}: the script failed" for name in broken)]:
        print(line)
    return 1 if broken or any(row.is_met is False for row in rows) else 0


def is_there(name: str) -> bool:
    return importlib.util.find_spec(f"bench.{name}") is not None


def run(name: str) -> int:
    """Run one script in a process of its own, so that it does not inherit memory and caches. Return its exit code."""
    print(f"\n== python -m bench.{name}\n", flush=True)
    return subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode


def read(name: str) -> list[Row]:
    """Return the rows of a script's last report; [] if there is none."""
    path = RESULTS / f"{name}.json"
    return read_rows(json.loads(path.read_text())) if path.exists() else []


def compare(rows: list[Row]) -> list[str]:
    """Return a sentence for each figure outside the recorded range, which means a regression, a gain, or another
    machine."""
    ranges: dict[str, list[float]] = yaml.safe_load(RANGES.read_text()) if RANGES.exists() else {}
    return [
        f"{row.work}: {row.value:.3g} {row.unit} is outside the range seen before, {low:.3g} to {high:.3g}"
        for row in rows
        for low, high in [ranges.get(row.work, [row.value, row.value])[:2]]
        if not low <= row.value <= high
    ]


def widen(rows: list[Row]) -> None:
    """Extend the recorded ranges so that they contain these figures."""
    ranges: dict[str, list[float]] = (yaml.safe_load(RANGES.read_text()) or {}) if RANGES.exists() else {}
    for row in rows:
        low, high = ranges.get(row.work, [row.value, row.value])
        ranges[row.work] = [round(min(low, row.value), 4), round(max(high, row.value), 4)]
    header = (
        "# Lowest and highest figure of each line over the runs so far: `python -m bench --write-ranges`.\n"
    )
    RANGES.write_text(header + yaml.safe_dump(ranges, sort_keys=True, width=200))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
