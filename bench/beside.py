"""The lines of the bench beside those of another commit: each script runs in both checkouts in turn.

Run: python -m bench.beside CHECKOUT [SCRIPT ...] [--rounds N]

CHECKOUT is a clone of the other commit with an environment of its own (`python3 -IS tools/install.py --dev` there).
Lines are compared that have the same words in both. A line has become worse if its median over the rounds is further
behind the other commit's median than the values of the other commit lie apart.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Row, report

HERE = Path(__file__).resolve().parent.parent
# Those that measure the product alone, on one machine, in both.
SCRIPTS = ("decide", "cycle", "crowd", "spawn", "lists", "cli", "page", "overview", "push", "submit", "up")

# The lines of each round by script and words: some scripts use the same words ("the same, p95").
Lines = defaultdict[tuple[str, str], list[Row]]


def main() -> int:
    """Run the scripts, print the table. Return 1 if a line has become worse or a script failed, else 0."""
    options = parse()
    ours, theirs, failed = measure(options.checkout, options.scripts or SCRIPTS, options.rounds)
    peer = commit(options.checkout)
    rows = [compared(ours[line], theirs[line], peer) for line in ours if line in theirs]
    report("beside", rows)
    for script, work in sorted(ours.keys() ^ theirs.keys()):
        print(f"only in one of the commits: {script}: {work}")
    print("\n".join(failed))
    return 1 if failed or any(row.is_met is False for row in rows) else 0


def measure(checkout: Path, scripts: Sequence[str], rounds: int) -> tuple[Lines, Lines, list[str]]:
    """Run each script in both checkouts, in turn. Return the lines of ours, those of `checkout`, and a sentence for
    each run that failed."""
    ours, theirs, failed = Lines(list), Lines(list), []
    for script in (script for _ in range(rounds) for script in scripts):
        for where, lines in ((checkout, theirs), (HERE, ours)):
            if run(where, script):
                for row in rows_of(where, script):
                    lines[script, row.work].append(row)
            else:
                failed.append(f"{script}: the script failed in {where}")
    return ours, theirs, failed


def parse() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m bench.beside")
    parser.add_argument("checkout", type=Path)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"default: {' '.join(SCRIPTS)}")
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def run(checkout: Path, script: str) -> bool:
    """Run a script of a checkout with that checkout's Python. Return whether it wrote a report: a script may end with 1
    because a goal was missed."""
    print(f"\n== {checkout}: python -m bench.{script}\n", flush=True)
    command = [str(checkout / ".venv/bin/python"), "-m", f"bench.{script}"]
    report_file = checkout / f"bench/results/{script}.json"
    report_file.unlink(missing_ok=True)
    subprocess.run(command, cwd=checkout, check=False)
    return report_file.exists()


def rows_of(checkout: Path, script: str) -> list[Row]:
    """Return the rows that the script's last run wrote, reduced to the fields that the rows of both commits have."""
    document = json.loads((checkout / f"bench/results/{script}.json").read_text())
    return [
        Row(row["work"], row["goal"], row["unit"], [row["value"]], at_least=row["at_least"])
        for row in document["rows"]
    ]


def compared(ours: list[Row], theirs: list[Row], peer: str) -> Row:
    """Return one line: the values of our rounds, with the bound that those of the commit `peer` give."""
    work, unit, more_is_better = ours[0].work, ours[0].unit, ours[0].at_least or ours[0].unit == "/s"
    before = [row.value for row in theirs]
    spread = max(before) - min(before)
    limit = statistics.median(before) + (-spread if more_is_better else spread)
    return Row(
        work, f"{'>=' if more_is_better else '<='} {limit:.3g} {unit}", unit, [row.value for row in ours],
        limit=limit, at_least=more_is_better, peer=peer, peer_samples=before,
    )  # fmt: skip


def commit(checkout: Path) -> str:
    """Return the short name of a checkout's commit."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=8", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
