"""The common form of all measurements: samples, and a table row with goal, median, spread and peer."""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
# They run in this order: first those that only compute, then those that start servers, then those that
# install, and last those that take a whole cluster.
SCRIPTS = (
    "decide", "kueue", "traces", "elastic_trace", "cycle", "crowd", "loop", "spawn", "lists", "cli", "page", "overview",
    "push", "submit", "code", "elastic", "elastic_start", "elastic_refused", "elastic_kills", "scnn", "up", "idle",
    "attack", "install", "csi", "membership_kubernetes", "elastic_kubernetes", "datasets", "kubernetes",
)  # fmt: skip
COMPUTED = ("value", "ratio", "is_met")  # kept for other readers; a Row works them out itself


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the bench table. `value`, a quantile of `samples` (in `unit`), is compared with `limit`, the
    most, or the least if `at_least`. `ratio_limit`: the most that it may be as a multiple of the peer's. `goal`:
    the same for people. None: no such goal."""

    work: str
    goal: str  # as a person reads it: "<= 250 ms"
    unit: str
    samples: Sequence[float]
    limit: float | None = None  # the goal as a number in `unit`; None when it is a ratio to the peer
    at_least: bool = False  # the goal is a floor, not a ceiling
    quantile: float = 0.5
    peer: str = ""
    peer_samples: Sequence[float] = field(default=())
    ratio_limit: float | None = None  # goal for value / peer value
    note: str = ""

    @property
    def value(self) -> float:
        """Return the quantile of the samples that is compared with the goal."""
        return quantile(self.samples, self.quantile)

    @property
    def peer_value(self) -> float | None:
        return quantile(self.peer_samples, self.quantile) if self.peer_samples else None

    @property
    def ratio(self) -> float | None:
        """Return our value divided by the peer's; None without a peer."""
        return None if not self.peer_value else self.value / self.peer_value

    @property
    def is_met(self) -> bool | None:
        """Return whether all bounds are met; None if there is no bound, or a ratio without a peer."""
        verdicts = []
        if self.limit is not None:
            verdicts.append(self.value >= self.limit if self.at_least else self.value <= self.limit)
        if self.ratio_limit is not None and self.ratio is not None:
            verdicts.append(self.ratio <= self.ratio_limit)
        return all(verdicts) if verdicts else None


def quantile(samples: Iterable[float], share: float) -> float:
    """Return the sample at the quantile `share` (nearest rank; the median for 0.5). Raises ValueError without
    samples."""
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("no samples were taken")
    if share == 0.5:
        return statistics.median(ordered)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def time_ms(work: Callable[[], object], repeats: int, warm_up: int = 1) -> list[float]:
    """Return the wall milliseconds of each of `repeats` calls of `work`, made after `warm_up` calls that are not
    counted."""
    for _ in range(warm_up):
        work()
    samples = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        samples.append((time.perf_counter() - began) * 1000)
    return samples


def report(script: str, rows: Sequence[Row]) -> None:
    """Print the table of `python -m bench.SCRIPT` and write it to bench/results with the machine and its load,
    for `make bench` and the README."""
    RESULTS.mkdir(exist_ok=True)
    kept = [{**asdict(row), "value": row.value, "ratio": row.ratio, "is_met": row.is_met} for row in rows]
    document = {"script": script, "command": f"python -m bench.{script}", "machine": machine(), "rows": kept}
    (RESULTS / f"{script}.json").write_text(json.dumps(document, indent=1) + "\n")
    print_table(rows)


def read_rows(document: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a written report."""
    return [
        Row(**{key: value for key, value in row.items() if key not in COMPUTED}) for row in document["rows"]
    ]


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows as aligned columns, then their notes."""
    head = ("work", "goal", "reached", "spread", "peer", "met")
    body = [head, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in body) for column in range(len(head))]
    for line in body:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for row in rows:
        if row.note:
            print(f"  {row.work}: {row.note}")
    sys.stdout.flush()


def cells(row: Row) -> tuple[str, ...]:
    """Return a row's texts: work, goal, reached, spread, peer, met."""
    spread = f"{short(min(row.samples))}-{short(max(row.samples))} (n={len(row.samples)})"
    peer = ""
    if row.peer and row.peer_value is not None and row.ratio is not None:
        peer = f"{row.peer}: {short(row.peer_value)} {row.unit}, ratio {row.ratio:.2g}"
    met = {True: "yes", False: "NO", None: "-"}[row.is_met]
    return row.work, row.goal, f"{short(row.value)} {row.unit}", spread, peer or row.peer, met


def short(value: float) -> str:
    """Return a value as text with three significant digits; whole numbers from 100 on."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, str | int | list[float]]:
    """Return the CPU count, system, Python version and load of this machine."""
    return {
        "cpus": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
