"""The committed tables: all rows in bench/README.md, the headlines in the project's README.

Run: python -m bench.table    (after `make bench`; reads bench/results)
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, SCRIPTS, Row, cells, read_rows

BENCH_PAGE = Path(__file__).resolve().parent / "README.md"
README = Path(__file__).resolve().parent.parent / "README.md"
# The project's README shows only these rows, by which a new reader judges first; bench/README.md has all.
HEADLINES = (
    "`make install`, warm",
    "`make up` again",
    "idle",
    "submit answered to process running, p50",
    "submit asked to process",
    "push to 1,000 clients",
)
BETWEEN = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Replace the text between the markers of both pages."""
    documents = [
        json.loads(path.read_text()) for name in SCRIPTS if (path := RESULTS / f"{name}.json").exists()
    ]
    rows = [(document["command"], row) for document in documents for row in read_rows(document)]
    headlines = [(command, row) for command, row in rows if row.work.startswith(HEADLINES)]
    tables = {"all": markdown(rows), "headlines": markdown(headlines), "machine": machine(documents)}
    for page in (BENCH_PAGE, README):
        text = page.read_text(encoding="utf-8")
        page.write_text(
            BETWEEN.sub(lambda found: found[1] + tables[found[2]] + found[3], text), encoding="utf-8"
        )


def markdown(rows: Iterable[tuple[str, Row]]) -> str:
    """Return the rows as a Markdown table, each with the command that prints it."""
    lines = ["| what | goal | reached | spread | beside it | command |", "|---|---|---|---|---|---|"]
    for command, row in rows:
        work, goal, reached, spread, peer, met = cells(row)
        mark = " **(not met)**" if met == "NO" else ""
        lines.append(f"| {work} | {goal} | {reached}{mark} | {spread} | {peer} | `{command}` |")
    return "\n".join(lines) + "\n"


def machine(documents: list[dict[str, Any]]) -> str:
    """Return a sentence with the machine on which the reports `documents` were measured, and its load."""
    loads = sorted({load for document in documents for load in document["machine"]["load_average"][:1]})
    first = documents[0]["machine"]
    busy = f"load average {loads[0]:.1f} to {loads[-1]:.1f}"
    return f"Measured on {first['cpus']} CPUs, {first['system']}, Python {first['python']}, {busy}.\n"


if __name__ == "__main__":
    main()
